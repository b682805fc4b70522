package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// preTokenizer is one step that splits pieces of text into smaller ones.
type preTokenizer interface {
	// split appends the parts of piece, valid UTF-8 and not empty, to dst. An
	// empty part is left out. start is true for the first piece of a text.
	split(dst []string, piece string, start bool, b *regexBudget) ([]string, error)
}

// preTokenize runs the steps over text and returns the pieces, which are valid
// until the next call with the same scratch.
func preTokenize(steps []preTokenizer, text string, start bool, sc *scratch) ([]string, error) {
	in, out := append(sc.text[:0], text), sc.text2[:0]
	for _, step := range steps {
		out = out[:0]
		for i, piece := range in {
			var err error
			if out, err = step.split(out, piece, start && i == 0, &sc.regex); err != nil {
				return nil, err
			}
		}
		in, out = out, in
	}
	sc.text, sc.text2 = in, out
	return in, nil
}

// behavior is what a Split does with the text that its pattern matches.
type behavior uint8

const (
	isolated           behavior = iota // a piece of its own
	removed                            // left out
	mergedWithPrevious                 // joined to the piece before
	mergedWithNext                     // joined to the piece behind
	contiguous                         // neighbouring matches are one piece
)

var behaviors = map[string]behavior{
	"Isolated": isolated, "Removed": removed, "Contiguous": contiguous,
	"MergedWithPrevious": mergedWithPrevious, "MergedWithNext": mergedWithNext,
}

// splitter is Split: at the matches of a pattern, or at what they leave if
// invert is set.
type splitter struct {
	find     finder
	behavior behavior
	invert   bool
}

func (p splitter) split(dst []string, piece string, _ bool, b *regexBudget) ([]string, error) {
	if m, ok := p.find.(matcher); ok && p.behavior == isolated {
		return isolate(dst, piece, m), nil
	}
	j := joiner{dst: dst, text: piece, behavior: p.behavior, from: -1}
	at := 0
	err := p.find.all(piece, b, func(start, end int) error {
		if at != start {
			j.add(at, start, p.invert)
		}
		j.add(start, end, !p.invert)
		at = end
		return nil
	})
	if at != len(piece) {
		j.add(at, len(piece), p.invert)
	}
	return j.flush(), err
}

// isolate is split for the common case: matches and what is between them, both
// as pieces.
func isolate(dst []string, piece string, m matcher) []string {
	for i := 0; i < len(piece); {
		start, end := m(piece, i)
		if start < 0 {
			return append(dst, piece[i:])
		}
		if start > i {
			dst = append(dst, piece[i:start])
		}
		dst = append(dst, piece[start:end])
		i = end
	}
	return dst
}

// joiner puts matches and gaps together as a behavior wants it. It holds one
// piece, text[from:to], that may still grow.
type joiner struct {
	dst      []string
	text     string
	behavior behavior
	from, to int  // from < 0: no piece is held
	match    bool // the last part was a match
}

// add takes the next part of the text, a match or a gap.
func (j *joiner) add(start, end int, match bool) {
	grow := false
	switch j.behavior {
	case removed:
		if match {
			j.emit()
			return
		}
	case mergedWithPrevious:
		grow = match && !j.match
	case mergedWithNext:
		// Only the last of several matches goes with the gap behind them.
		grow = !match && j.match
	case contiguous:
		grow = match == j.match
	}
	j.match = match
	if grow && j.from >= 0 {
		j.to = end
		return
	}
	j.emit()
	j.from, j.to = start, end
}

func (j *joiner) emit() {
	if j.from >= 0 && j.from < j.to {
		j.dst = append(j.dst, j.text[j.from:j.to])
	}
	j.from = -1
}

func (j *joiner) flush() []string {
	j.emit()
	return j.dst
}

// digitSplitter is Digits: numbers, as a whole or each digit, are pieces.
type digitSplitter struct{ individual bool }

func (p digitSplitter) split(dst []string, piece string, _ bool, _ *regexBudget) ([]string, error) {
	for i := 0; i < len(piece); {
		end := runNot(piece, i, classN)
		if end > i {
			dst = append(dst, piece[i:end])
			i = end
			continue
		}
		if p.individual {
			_, n := runeAt(piece, i)
			end = i + n
		} else {
			end = run(piece, i, classN)
		}
		dst = append(dst, piece[i:end])
		i = end
	}
	return dst, nil
}

// byteLevelSplitter is ByteLevel. The bytes stay bytes here: the model looks
// them up without the detour over the characters that spell them.
type byteLevelSplitter struct{ addPrefixSpace, useRegex bool }

func (p byteLevelSplitter) split(dst []string, piece string, _ bool, _ *regexBudget) ([]string, error) {
	if p.addPrefixSpace && piece[0] != ' ' {
		piece = " " + piece
	}
	if !p.useRegex {
		return append(dst, piece), nil
	}
	return isolate(dst, piece, matchGPT2), nil
}

// metaspaceSplitter is Metaspace: spaces become the mark, which starts a piece.
type metaspaceSplitter struct {
	mark   string // one character, "▁" as a rule
	prefix prefixScheme
	cut    bool // field split
}

// prefixScheme says where Metaspace puts a mark in front.
type prefixScheme uint8

const (
	prefixAlways prefixScheme = iota // every piece that has none
	prefixFirst                      // the first piece of a text
	prefixNever
)

var prefixSchemes = map[string]prefixScheme{"always": prefixAlways, "first": prefixFirst, "never": prefixNever}

func (p metaspaceSplitter) split(dst []string, piece string, start bool, _ *regexBudget) ([]string, error) {
	piece = strings.ReplaceAll(piece, " ", p.mark)
	if !strings.HasPrefix(piece, p.mark) && (p.prefix == prefixAlways || p.prefix == prefixFirst && start) {
		piece = p.mark + piece
	}
	if !p.cut {
		return append(dst, piece), nil
	}
	for {
		_, n := utf8.DecodeRuneInString(piece)
		k := strings.Index(piece[n:], p.mark)
		if k < 0 {
			return append(dst, piece), nil
		}
		dst = append(dst, piece[:n+k])
		piece = piece[n+k:]
	}
}
