package tokenizer

import (
	"context"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

// endsAfter is a context that ends when it has been looked at so often.
type endsAfter struct {
	context.Context
	left, looks int
}

func (c *endsAfter) Err() error {
	c.looks++
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// longTexts are texts of 400 KB that are hard in one way each.
func longTexts() map[string]string {
	const size = 400_000
	return map[string]string{
		"one character": strings.Repeat("a", size),
		"words":         strings.Repeat("a word ", size/7),
		"no space":      strings.Repeat("zjdk", size/4),
		"control":       strings.Repeat("<｜User｜>", size/12),
	}
}

// boundTokenizers differ in how they cut a text: by pieces, or only where no merge reaches across.
func boundTokenizers(t *testing.T) map[string]*Tokenizer {
	return map[string]*Tokenizer{"krater-tiny": kraterTiny(t), "byte_level": small(t, "byte_level"), "fallback": small(t, "fallback")}
}

// A client that has left must not keep a core for its text, whatever the text.
func TestEncodeEndsWithItsContext(t *testing.T) {
	for name, tok := range boundTokenizers(t) {
		for kind, text := range longTexts() {
			ctx := &endsAfter{Context: t.Context(), left: 3}
			if ids, err := tok.EncodeContext(ctx, text, EncodeOptions{ParseSpecial: true}); !errors.Is(err, context.Canceled) || ids != nil {
				t.Errorf("%s, %s: %d ids, %v", name, kind, len(ids), err)
			}
			if ctx.looks != 4 {
				t.Errorf("%s, %s: the context was looked at %d times, want 4", name, kind, ctx.looks)
			}
		}
	}
}

// A text with more tokens than wanted is given up, with a number that is true.
func TestEncodeStopsAtItsLimit(t *testing.T) {
	for name, tok := range boundTokenizers(t) {
		for kind, text := range longTexts() {
			all, err := tok.EncodeContext(t.Context(), text, EncodeOptions{ParseSpecial: true})
			if err != nil {
				t.Fatal(err)
			}
			for _, limit := range []int{1, 1000, len(all) - 1} {
				_, err := tok.EncodeContext(t.Context(), text, EncodeOptions{ParseSpecial: true, Limit: limit})
				long, ok := errors.AsType[*LimitError](err)
				if !ok || long.Limit != limit || long.AtLeast <= limit || long.AtLeast > len(all) {
					t.Errorf("%s, %s of %d tokens, limit %d: %+v", name, kind, len(all), limit, err)
				}
			}
			if ids, err := tok.EncodeContext(t.Context(), text, EncodeOptions{ParseSpecial: true, Limit: len(all)}); err != nil || len(ids) != len(all) {
				t.Errorf("%s, %s: %d ids, %v, where just as many are allowed", name, kind, len(ids), err)
			}
		}
	}
}

// The bytes alone say that a text is far too long, before anything is done for it.
func TestBytesBoundTokens(t *testing.T) {
	for name, tok := range boundTokenizers(t) {
		if name == "byte_level" { // it leaves out bytes that have no token: nothing is known
			if n := tok.AtLeast(1 << 20); n != 0 {
				t.Errorf("%s: a text of 1 MiB has at least %d tokens", name, n)
			}
			continue
		}
		if n := tok.AtLeast(1 << 20); n < 1<<20/256 {
			t.Errorf("%s: a text of 1 MiB has at least %d tokens", name, n)
		}
		text := strings.Repeat("a", 4<<20)
		n := testing.AllocsPerRun(1, func() {
			ctx := &endsAfter{Context: t.Context()}
			_, err := tok.EncodeContext(ctx, text, EncodeOptions{Limit: 16})
			if long, ok := errors.AsType[*LimitError](err); !ok || long.AtLeast != tok.AtLeast(len(text)) || ctx.looks > 0 {
				t.Errorf("%s: %v after %d looks", name, err, ctx.looks)
			}
		})
		if n > 4 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// No step makes more bytes to one than longestText reckons with.
func TestNormalizersShrinkWithinTheirBound(t *testing.T) {
	forms := map[string]normalizer{"NFC": formNFC, "NFD": formNFD, "NFKC": formNFKC, "NFKD": formNFKD, "Lowercase": lowercaser{}}
	marks := []string{"", "\u0300", "\u0301", "\u0303", "\u0308\u0301", "\u0313\u0300\u0345", "\u0323\u0302", "\u3099"}
	for name, n := range forms {
		for r := rune(0); r <= utf8.MaxRune; r++ {
			if r >= 0xD800 && r <= 0xDFFF {
				continue
			}
			for i, m := range marks {
				if i > 0 && !strings.Contains("ιυαεηωΑΩKÅaeoAEOかハ", string(r)) && r != 0x1FBE && r != 0x212B && (r < 0x1D400 || r > 0x1D7FF) {
					continue
				}
				text := string(r) + m
				out, _, err := normalize([]normalizer{n}, text, nil, new(regexBudget))
				if err != nil || len(text) > shrinks(n)*len(out) {
					t.Fatalf("%s of %q: %q, %v; the bound is %d", name, text, out, err, shrinks(n))
				}
			}
		}
	}
}
