package tokenizer

import (
	"context"
	"math"
	"slices"
)

// MaxText bounds the text that Encode takes, in bytes.
const MaxText = 1 << 25

// Range is text[Start:End] of a text, in bytes.
type Range struct{ Start, End int }

// EncodeOptions say how Encode treats text that spells an added token, and what it puts around the
// ids.
type EncodeOptions struct {
	// ParseSpecial recognises added tokens in the text. Without it, "<|im_end|>" is ten ordinary
	// characters, as it must be in untrusted text.
	ParseSpecial bool
	// AddSpecial adds the tokens that the post-processor, or add_bos_token and add_eos_token, ask
	// for. It does not check whether the text begins with BOS already.
	AddSpecial bool
	// Protected are byte ranges of the text in which no added token is recognised although
	// ParseSpecial is set: what a user wrote, within a rendered chat template. A token that begins
	// or ends outside is not recognised either if it touches the range. Splitting and merging see
	// the same text as without.
	Protected []Range
	// Limit is the maximum number of ids, 0 for any number. For a longer text, Encode stops early
	// and returns a *LimitError.
	Limit int
}

// Encode returns the token ids of text. Bytes that are not UTF-8 are treated as U+FFFD. It returns
// nil where TryEncode fails, which cannot happen without a limit to a text of at most MaxText bytes
// unless the tokenizer has a split pattern that this package does not know; a server, which knows
// neither, calls EncodeContext.
func (t *Tokenizer) Encode(text string, o EncodeOptions) []int32 {
	ids, err := t.TryEncode(text, o)
	if err != nil {
		return nil
	}
	return ids
}

// TryEncode is Encode with its errors: ErrTextTooLong, a *LimitError, and ErrSplitTime where an
// unknown split pattern ran into its time limit.
func (t *Tokenizer) TryEncode(text string, o EncodeOptions) ([]int32, error) {
	return t.EncodeContext(context.Background(), text, o)
}

// longText is the length from which texts are encoded one at a time, because the worst of them take
// about 45 bytes of memory per byte: a text of one repeated character, or one that a normalizer
// changes everywhere.
const longText = 256 << 10

// EncodeContext is TryEncode until ctx ends, whose error it returns then, also in the middle of a
// long piece. A text that cannot have as few tokens as EncodeOptions.Limit is refused before any
// work.
func (t *Tokenizer) EncodeContext(ctx context.Context, text string, o EncodeOptions) ([]int32, error) {
	if len(text) > MaxText {
		return nil, ErrTextTooLong
	}
	if least := t.AtLeast(len(text)); o.Limit > 0 && least > o.Limit {
		return nil, &LimitError{Limit: o.Limit, AtLeast: least}
	}
	if len(text) > longText {
		select {
		case t.long <- struct{}{}:
			defer func() { <-t.long }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	sc := t.getScratch()
	defer t.putScratch(sc)
	sc.ctx, sc.limit = ctx, o.Limit
	if sc.limit <= 0 {
		sc.limit = math.MaxInt
	}
	sc.out = make([]int32, 0, min(len(text)/4, sc.limit)+8)
	err := t.encode(text, o, sc)
	ids := sc.out
	if sc.out = nil; err != nil {
		return nil, err
	}
	return ids, nil
}

// AtLeast returns the minimum number of tokens of a text with the given number of bytes, without
// added tokens around it: 0 if unknown.
func (t *Tokenizer) AtLeast(bytes int) int {
	if t.longest == 0 {
		return 0
	}
	return (bytes + t.longest - 1) / t.longest
}

func (t *Tokenizer) encode(text string, o EncodeOptions, sc *scratch) error {
	text, ranges := validText(text, ordered(o.Protected, len(text)))
	g := guard{ranges: ranges, all: !o.ParseSpecial}
	if o.AddSpecial {
		sc.out = append(sc.out, t.prefix...)
	}
	for at := 0; at < len(text); {
		start, end, tok := t.raw.find(text, at, &g)
		if tok != nil {
			start, end = stripped(text, at, start, end, tok)
		}
		if err := t.encodeBetween(text[at:start], at == 0, g.within(at, start), sc); err != nil {
			return err
		}
		if tok != nil {
			sc.out = append(sc.out, tok.ID)
		}
		if !sc.spend(end-start, len(sc.out)) {
			return sc.err
		}
		at = end
	}
	if o.AddSpecial {
		sc.out = append(sc.out, t.suffix...)
		sc.spend(0, len(sc.out))
	}
	return sc.err
}

// Wrap puts around the ids of a text the tokens of AddSpecial, except those that are there already.
// It returns how many tokens it put in front and after.
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
func (t *Tokenizer) encodeBetween(text string, first bool, g guard, sc *scratch) error {
	if text == "" {
		return nil
	}
	if t.normalized.count == 0 {
		g.ranges = nil
	}
	text, ranges, err := normalize(t.normalizers, text, g.ranges, &sc.regex)
	if err != nil {
		return err
	}
	g.ranges = ranges
	for at := 0; at < len(text); {
		start, end, tok := t.normalized.find(text, at, &g)
		if tok != nil {
			start, end = stripped(text, at, start, end, tok)
		}
		if at < start {
			if err := sc.preTokenize(text[at:start], first && at == 0); err != nil {
				return err
			}
		}
		if tok != nil {
			sc.out = append(sc.out, tok.ID)
		}
		if !sc.spend(end-start, len(sc.out)) {
			return sc.err
		}
		at = end
	}
	return nil
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
