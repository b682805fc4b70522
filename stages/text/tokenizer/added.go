package tokenizer

import (
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is an entry of added_tokens: text that becomes one token before the model sees it.
type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only where no word character touches it
	LStrip     bool   `json:"lstrip"`      // takes the white space on its left with it
	RStrip     bool   `json:"rstrip"`      // and on its right
	Normalized bool   `json:"normalized"`  // looked for after normalisation
	Special    bool   `json:"special"`     // Decode with skipSpecial omits it
}

// trie finds added tokens in a text, the longest at each place, from left to right without overlap.
// It works on bytes.
type trie struct {
	nodes []trieNode
	first [256]bool // bytes that some token starts with
	only  int       // the one such byte, -1 if there are several
	count int
}

type trieNode struct {
	edges []trieEdge
	token *addedToken // the token that ends here
}

type trieEdge struct {
	b  byte
	to int32
}

func newTrie() *trie { return &trie{nodes: make([]trieNode, 1), only: -1} }

func (t *trie) step(node int32, b byte) int32 {
	for _, e := range t.nodes[node].edges {
		if e.b == b {
			return e.to
		}
	}
	return -1
}

// add makes the trie find text and report tok. A text that is already present keeps its token.
func (t *trie) add(text string, tok *addedToken) {
	if text == "" {
		return
	}
	node := int32(0)
	for i := range len(text) {
		to := t.step(node, text[i])
		if to < 0 {
			to = int32(len(t.nodes))
			t.nodes = append(t.nodes, trieNode{})
			t.nodes[node].edges = append(t.nodes[node].edges, trieEdge{text[i], to})
		}
		node = to
	}
	if t.nodes[node].token != nil {
		return
	}
	t.nodes[node].token = tok
	if t.count == 0 {
		t.only = int(text[0])
	} else if t.only != int(text[0]) {
		t.only = -1
	}
	t.first[text[0]] = true
	t.count++
}

// candidate returns the next place at or after i where a token may start, len(text) if there is
// none.
func (t *trie) candidate(text string, i int) int {
	if t.count == 0 {
		return len(text)
	}
	if t.only >= 0 {
		n := strings.IndexByte(text[i:], byte(t.only))
		if n < 0 {
			return len(text)
		}
		return i + n
	}
	for i < len(text) && !t.first[text[i]] {
		i++
	}
	return i
}

// find returns the first match at or after i, tok == nil if there is none. A match that guard does
// not allow is as if its token did not exist.
func (t *trie) find(text string, i int, guard *guard) (start, end int, tok *addedToken) {
	if guard.all {
		return len(text), len(text), nil
	}
	for i = t.candidate(text, i); i < len(text); i = t.candidate(text, i+1) {
		node := int32(0)
		for j := i; j < len(text); {
			if node = t.step(node, text[j]); node < 0 {
				break
			}
			j++
			if c := t.nodes[node].token; c != nil && guard.allows(i, j) {
				end, tok = j, c
			}
		}
		if tok == nil {
			continue
		}
		if tok.SingleWord && touchesWord(text, i, end) {
			i, tok = end-1, nil
			continue
		}
		return i, end, tok
	}
	return len(text), len(text), nil
}

// guard says where added tokens may be recognised: nowhere in the ranges, which are ordered and do
// not overlap, nor anywhere if all is set.
type guard struct {
	ranges []Range
	all    bool
	next   int // ranges[:next] end at or before the last place asked for
}

// allows reports whether a match at [start, end) keeps clear of the ranges. It must be asked for
// ascending starts.
func (g *guard) allows(start, end int) bool {
	for g.next < len(g.ranges) && g.ranges[g.next].End <= start {
		g.next++
	}
	return g.next == len(g.ranges) || g.ranges[g.next].Start >= end
}

// within returns the guard for text[start:end].
func (g *guard) within(start, end int) guard {
	if g.all || len(g.ranges) == 0 {
		return guard{all: g.all}
	}
	var out []Range
	k := sort.Search(len(g.ranges), func(i int) bool { return g.ranges[i].End > start })
	for ; k < len(g.ranges) && g.ranges[k].Start < end; k++ {
		r := g.ranges[k]
		out = append(out, Range{max(r.Start, start) - start, min(r.End, end) - start})
	}
	return guard{ranges: out}
}

// stripped widens a match over the white space that its token takes with it, not before from, where
// the match before it ended.
func stripped(text string, from, start, end int, tok *addedToken) (int, int) {
	if tok.LStrip {
		start = from + len(strings.TrimRightFunc(text[from:start], unicode.IsSpace))
	}
	if tok.RStrip {
		end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
	}
	return start, end
}

// touchesWord reports whether a word character is next to text[start:end].
func touchesWord(text string, start, end int) bool {
	before, _ := utf8.DecodeLastRuneInString(text[:start])
	after, _ := utf8.DecodeRuneInString(text[end:])
	return start > 0 && isWord(before) || end < len(text) && isWord(after)
}

// isWord is \w of Unicode's UTS 18: alphabetic, mark, decimal digit, connector punctuation or join
// control.
func isWord(r rune) bool {
	return r == 0x200C || r == 0x200D ||
		unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic)
}
