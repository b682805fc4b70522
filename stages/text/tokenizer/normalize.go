package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// normalizer changes text before it is split. It appends its changes of s, valid UTF-8, to e.
type normalizer interface {
	edits(s string, e *edits, b *regexBudget) error
}

// normalize runs the normalizers over s and moves the ranges along. The result is bounded: more
// than four times MaxText is ErrTextTooLong.
func normalize(steps []normalizer, s string, ranges []Range, b *regexBudget) (string, []Range, error) {
	for _, n := range steps {
		if r, ok := n.(literalReplacer); ok && len(ranges) == 0 {
			// The one step of byte-fallback models, without the detour.
			if len(s)+strings.Count(s, r.old)*max(0, len(r.repl)-len(r.old)) > 4*MaxText {
				return "", nil, ErrTextTooLong
			}
			s = strings.ReplaceAll(s, r.old, r.repl)
			continue
		}
		e := edits{exact: len(ranges) > 0}
		if err := n.edits(s, &e, b); err != nil {
			return "", nil, err
		}
		if len(s)+len(e.buf) > 4*MaxText {
			return "", nil, ErrTextTooLong
		}
		s, ranges = e.apply(s), e.move(ranges)
	}
	return s, ranges, nil
}

// prepender is Prepend: it puts text in front of a text that is not empty.
type prepender struct{ text string }

func (n prepender) edits(s string, e *edits, _ *regexBudget) error {
	if s != "" {
		e.replace(0, 0, n.text)
	}
	return nil
}

// literalReplacer is Replace with a String pattern, which is not empty.
type literalReplacer struct{ old, repl string }

func (n literalReplacer) edits(s string, e *edits, _ *regexBudget) error {
	for i := 0; ; {
		k := strings.Index(s[i:], n.old)
		if k < 0 {
			return nil
		}
		e.replace(i+k, i+k+len(n.old), n.repl)
		if i += k + len(n.old); len(e.buf) > 4*MaxText {
			return ErrTextTooLong
		}
	}
}

// regexReplacer is Replace with a Regex pattern. The replacement is literal.
type regexReplacer struct {
	find finder
	repl string
}

func (n regexReplacer) edits(s string, e *edits, b *regexBudget) error {
	return n.find.all(s, b, func(start, end int) error {
		if e.replace(start, end, n.repl); len(e.buf) > 4*MaxText {
			return ErrTextTooLong
		}
		return nil
	})
}

// lowercaser is Lowercase: the full mapping of each character on its own.
type lowercaser struct{}

func (lowercaser) edits(s string, e *edits, _ *regexBudget) error {
	for i, r := range s {
		switch l := unicode.ToLower(r); {
		case r == 0x130: // the only character whose full mapping is longer
			e.replace(i, i+2, "i\u0307")
		case l != r:
			e.replace(i, i+utf8.RuneLen(r), string(l))
		}
	}
	return nil
}

// stripper is Strip: it takes the white space off the ends.
type stripper struct{ left, right bool }

func (n stripper) edits(s string, e *edits, _ *regexBudget) error {
	from, to := 0, len(s)
	if n.left {
		from = len(s) - len(strings.TrimLeftFunc(s, unicode.IsSpace))
	}
	if n.right {
		to = from + len(strings.TrimRightFunc(s[from:], unicode.IsSpace))
	}
	if from > 0 {
		e.replace(0, from, "")
	}
	if to < len(s) {
		e.replace(to, len(s), "")
	}
	return nil
}
