package grammar

import (
	"bytes"
	"slices"
)

// Vocabulary is the tokens of a model by their bytes. It does not change, but for what grammars share.
type Vocabulary struct {
	texts   [][]byte // by id; nil: the token has no text, as control tokens
	ends    []int32  // tokens that end a text
	nodes   []node   // the trie of all texts, each node before those below it
	longest int      // bytes of a text
	shared  shared
}

// node is a byte of one or several texts.
type node struct {
	after int32 // the node behind all those below this one
	token int32 // whose text ends here; -1: none
	depth uint16
	char  byte
	inner bool // there are nodes below
}

// MaxToken is how many bytes of text a token may have. Longer ones never come.
const MaxToken = 256

// NewVocabulary makes the vocabulary of a model with size tokens. text gives the bytes of a token,
// nil for one that is never a part of a text. Tokens in ends end a text.
func NewVocabulary(size int, text func(id int32) []byte, ends []int32) *Vocabulary {
	v := &Vocabulary{texts: make([][]byte, size), ends: slices.Clone(ends)}
	var ids []int32
	for id := range int32(size) {
		if slices.Contains(ends, id) {
			continue
		}
		if t := text(id); len(t) > 0 && len(t) <= MaxToken {
			v.texts[id] = t
			v.longest = max(v.longest, len(t))
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b int32) int { return bytes.Compare(v.texts[a], v.texts[b]) })
	v.nodes = append(v.nodes, node{token: -1}) // the empty text
	open := []int32{0}                         // the nodes from the root to the last one
	var last []byte
	for _, id := range ids {
		t := v.texts[id]
		common := 0
		for common < len(last) && common < len(t) && last[common] == t[common] {
			common++
		}
		common = min(common, len(t)-1) // of equal texts each has a node
		for len(open) > common+1 {
			v.nodes[open[len(open)-1]].after = int32(len(v.nodes))
			open = open[:len(open)-1]
		}
		for i := common; i < len(t); i++ {
			v.nodes[open[len(open)-1]].inner = true
			open = append(open, int32(len(v.nodes)))
			v.nodes = append(v.nodes, node{token: -1, depth: uint16(i + 1), char: t[i]})
		}
		v.nodes[len(v.nodes)-1].token = id
		last = t
	}
	for _, at := range open {
		v.nodes[at].after = int32(len(v.nodes))
	}
	return v
}

// words returns the size of a mask.
func (v *Vocabulary) words() int { return (len(v.texts) + 31) / 32 }

// None returns a mask in which no token may come.
func (v *Vocabulary) None() []uint32 { return make([]uint32, v.words()) }

func (v *Vocabulary) isEnd(token int32) bool { return slices.Contains(v.ends, token) }

func (v *Vocabulary) bytes(token int32) []byte {
	if token < 0 || int(token) >= len(v.texts) {
		return nil
	}
	return v.texts[token]
}
