package tokenizer

import "slices"

// MaxText bounds the text that Encode takes, in bytes.
const MaxText = 1 << 25

// Range is text[Start:End] of a text, in bytes.
type Range struct{ Start, End int }

// EncodeOptions say how Encode treats text that spells an added token, and what
// it puts around the ids.
type EncodeOptions struct {
	// ParseSpecial recognises added tokens in the text. Without it "<|im_end|>"
	// is ten characters like any others, which is what foreign text must be.
	ParseSpecial bool
	// AddSpecial puts in front and behind what the post-processor, or
	// add_bos_token and add_eos_token, ask for. It does not look whether the text
	// begins with BOS already.
	AddSpecial bool
	// Protected are byte ranges of the text in which no added token is
	// recognised although ParseSpecial is set: what a user wrote, within a
	// rendered chat template. A token that begins or ends outside is not
	// recognised either if it touches the range. Splitting and merging see the
	// same text as without.
	Protected []Range
}

// Encode returns the token ids of text. Bytes that are not UTF-8 are treated as
// U+FFFD. It returns nil where TryEncode fails, which cannot happen to a text of
// at most MaxText bytes unless the tokenizer has a split pattern that this
// package does not know; a server, which knows neither, calls TryEncode.
func (t *Tokenizer) Encode(text string, o EncodeOptions) []int32 {
	ids, err := t.TryEncode(text, o)
	if err != nil {
		return nil
	}
	return ids
}

// TryEncode is Encode with its errors: ErrTextTooLong, and ErrSplitTime where an
// unknown split pattern ran into its time limit.
func (t *Tokenizer) TryEncode(text string, o EncodeOptions) ([]int32, error) {
	if len(text) > MaxText {
		return nil, ErrTextTooLong
	}
	text, ranges := validText(text, ordered(o.Protected, len(text)))
	g := guard{ranges: ranges, all: !o.ParseSpecial}

	sc := t.getScratch()
	defer t.putScratch(sc)
	ids := make([]int32, 0, len(text)/4+8)
	if o.AddSpecial {
		ids = append(ids, t.prefix...)
	}
	for at := 0; at < len(text); {
		start, end, tok := t.raw.find(text, at, &g)
		if tok != nil {
			start, end = stripped(text, at, start, end, tok)
		}
		var err error
		if ids, err = t.encodeBetween(ids, text[at:start], at == 0, g.within(at, start), sc); err != nil {
			return nil, err
		}
		if tok != nil {
			ids = append(ids, tok.ID)
		}
		at = end
	}
	if o.AddSpecial {
		ids = append(ids, t.suffix...)
	}
	return ids, nil
}

// Wrap puts around the ids of a text what AddSpecial puts there, but nothing with which
// they begin or end already. It tells how many tokens it put in front and behind.
func (t *Tokenizer) Wrap(ids []int32) (out []int32, front, back int) {
	prefix, suffix := t.prefix, t.suffix
	if len(ids) >= len(prefix) && slices.Equal(ids[:len(prefix)], prefix) {
		prefix = nil
	}
	if len(ids) >= len(suffix) && slices.Equal(ids[len(ids)-len(suffix):], suffix) {
		suffix = nil
	}
	return slices.Concat(prefix, ids, suffix), len(prefix), len(suffix)
}

// encodeBetween appends the ids of the text between two added tokens.
func (t *Tokenizer) encodeBetween(ids []int32, text string, first bool, g guard, sc *scratch) ([]int32, error) {
	if text == "" {
		return ids, nil
	}
	if t.normalized.count == 0 {
		g.ranges = nil
	}
	text, ranges, err := normalize(t.normalizers, text, g.ranges, &sc.regex)
	if err != nil {
		return nil, err
	}
	g.ranges = ranges
	for at := 0; at < len(text); {
		start, end, tok := t.normalized.find(text, at, &g)
		if tok != nil {
			start, end = stripped(text, at, start, end, tok)
		}
		if at < start {
			pieces, err := preTokenize(t.splitters, text[at:start], first && at == 0, sc)
			if err != nil {
				return nil, err
			}
			for _, p := range pieces {
				ids = t.model.appendPiece(ids, p, sc)
			}
		}
		if tok != nil {
			ids = append(ids, tok.ID)
		}
		at = end
	}
	return ids, nil
}

// ordered returns the ranges cut to [0, size), in order, overlaps joined.
func ordered(ranges []Range, size int) []Range {
	if len(ranges) == 0 {
		return nil
	}
	in := slices.Clone(ranges)
	slices.SortFunc(in, func(a, b Range) int { return a.Start - b.Start })
	out := in[:0]
	for _, r := range in {
		r.Start, r.End = max(r.Start, 0), min(r.End, size)
		if r.Start >= r.End {
			continue
		}
		if n := len(out); n > 0 && r.Start <= out[n-1].End {
			out[n-1].End = max(out[n-1].End, r.End)
			continue
		}
		out = append(out, r)
	}
	return out
}

// scratchKeep is up to how many symbols the memory of an Encode is kept for the
// next one. One huge text must not hold its memory for ever.
const scratchKeep = 1 << 16

func (t *Tokenizer) getScratch() *scratch {
	if sc, ok := t.scratch.Get().(*scratch); ok {
		return sc
	}
	return new(scratch)
}

func (t *Tokenizer) putScratch(sc *scratch) {
	if cap(sc.ids) > scratchKeep || cap(sc.text) > scratchKeep || cap(sc.text2) > scratchKeep {
		return
	}
	// The pieces refer to the caller's text.
	clear(sc.text[:cap(sc.text)])
	clear(sc.text2[:cap(sc.text2)])
	sc.regex = regexBudget{}
	t.scratch.Put(sc)
}
