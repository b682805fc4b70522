package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// preTokenizer is one step that splits a piece of text into smaller ones.
type preTokenizer interface {
	// split calls yield for the parts of piece, valid UTF-8 and not empty, from left to right, and
	// returns yield's first error. An empty part is left out. start is true for the first piece of
	// a text.
	split(piece string, start bool, b *regexBudget, yield func(part string) error) error
}

// behavior says what a Split does with the text that its pattern matches.
type behavior uint8

const (
	isolated           behavior = iota // a separate piece
	removed                            // left out
	mergedWithPrevious                 // joined to the piece before
	mergedWithNext                     // joined to the next piece
	contiguous                         // neighbouring matches are one piece
)

var behaviors = map[string]behavior{
	"Isolated": isolated, "Removed": removed, "Contiguous": contiguous,
	"MergedWithPrevious": mergedWithPrevious, "MergedWithNext": mergedWithNext,
}

// splitter is Split: it splits at the matches of a pattern or, with invert, at the text between
// them.
type splitter struct {
	find     finder
	behavior behavior
	invert   bool
}

func (p splitter) split(piece string, _ bool, b *regexBudget, yield func(string) error) error {
	if m, ok := p.find.(matcher); ok && p.behavior == isolated {
		return isolate(piece, m, yield)
	}
	j := joiner{yield: yield, text: piece, behavior: p.behavior, from: -1}
	at := 0
	err := p.find.all(piece, b, func(start, end int) error {
		if at != start {
			j.add(at, start, p.invert)
		}
		j.add(start, end, !p.invert)
		at = end
		return j.err
	})
	if err != nil {
		return err
	}
	if at != len(piece) {
		j.add(at, len(piece), p.invert)
	}
	j.emit()
	return j.err
}

// isolate is split for the common case: matches and the text between them are both pieces.
func isolate(piece string, m matcher, yield func(string) error) error {
	for i := 0; i < len(piece); {
		start, end := m(piece, i)
		if start < 0 {
			return yield(piece[i:])
		}
		if start > i {
			if err := yield(piece[i:start]); err != nil {
				return err
			}
		}
		if err := yield(piece[start:end]); err != nil {
			return err
		}
		i = end
	}
	return nil
}

// joiner puts matches and gaps together as a behavior wants it. It holds one piece, text[from:to],
// that may still grow.
type joiner struct {
	yield    func(string) error
	err      error // the first one of yield, which is not called again
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
		// Only the last of several matches is joined to the gap after them.
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
	if j.from >= 0 && j.from < j.to && j.err == nil {
		j.err = j.yield(j.text[j.from:j.to])
	}
	j.from = -1
}

// digitSplitter is Digits: numbers, as a whole or each digit, are pieces.
type digitSplitter struct{ individual bool }

func (p digitSplitter) split(piece string, _ bool, _ *regexBudget, yield func(string) error) error {
	for i := 0; i < len(piece); {
		end := runNot(piece, i, classN)
		if end == i && p.individual {
			_, n := runeAt(piece, i)
			end = i + n
		} else if end == i {
			end = run(piece, i, classN)
		}
		if err := yield(piece[i:end]); err != nil {
			return err
		}
		i = end
	}
	return nil
}

// byteLevelSplitter is ByteLevel. The bytes stay bytes here: the model looks them up without the
// detour over the characters that spell them.
type byteLevelSplitter struct{ addPrefixSpace, useRegex bool }

func (p byteLevelSplitter) split(piece string, _ bool, _ *regexBudget, yield func(string) error) error {
	if p.addPrefixSpace && piece[0] != ' ' {
		piece = " " + piece
	}
	if !p.useRegex {
		return yield(piece)
	}
	return isolate(piece, matchGPT2, yield)
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

func (p metaspaceSplitter) split(piece string, start bool, _ *regexBudget, yield func(string) error) error {
	piece = strings.ReplaceAll(piece, " ", p.mark)
	if !strings.HasPrefix(piece, p.mark) && (p.prefix == prefixAlways || p.prefix == prefixFirst && start) {
		piece = p.mark + piece
	}
	if !p.cut {
		return yield(piece)
	}
	for {
		_, n := utf8.DecodeRuneInString(piece)
		k := strings.Index(piece[n:], p.mark)
		if k < 0 {
			return yield(piece)
		}
		if err := yield(piece[:n+k]); err != nil {
			return err
		}
		piece = piece[n+k:]
	}
}
