package tokenizer

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

func osDir(dir string) fs.FS { return os.DirFS(dir) }

// A pattern that backtracks without end costs a text, not the server.
func TestSplitTimeIsLimited(t *testing.T) {
	tok, err := Parse(patched(t, "pre_tokenizer", `{"type":"Split","pattern":{"Regex":"(?:a|a?)+$"},"behavior":"Isolated"}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("a", 5000) + "b"
	if _, err := tok.TryEncode(text, EncodeOptions{}); !errors.Is(err, ErrSplitTime) {
		t.Errorf("%v, want ErrSplitTime", err)
	}
	if ids := tok.Encode(text, EncodeOptions{}); ids != nil {
		t.Errorf("Encode returned %d ids", len(ids))
	}
	if got, err := tok.TryEncode("aab", EncodeOptions{}); err != nil || !slices.Equal(got, []int32{1, 3}) {
		t.Errorf("%v, %v; want [1 3]", got, err)
	}
}

func TestTextIsLimited(t *testing.T) {
	tok, err := Parse([]byte(base), nil)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("a", MaxText+1)
	if _, err := tok.TryEncode(text, EncodeOptions{}); err != ErrTextTooLong {
		t.Errorf("%v, want ErrTextTooLong", err)
	}
}

// One tokenizer serves all requests at once.
func TestConcurrentUse(t *testing.T) {
	for _, name := range []string{"byte_level", "fallback", "added_both", "metaspace_first_true", "nfkc"} {
		for _, v := range readComponents(t) {
			if v.Name != name {
				continue
			}
			tok, err := Parse(v.Tokenizer, nil)
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					cases := v.cases(t)
					for i := range 400 {
						c := cases[(i*7+g)%len(cases)]
						if got := tok.Encode(c.text, EncodeOptions{ParseSpecial: true}); !slices.Equal(got, c.ids) {
							t.Errorf("%s %q: %v, want %v", name, c.text, got, c.ids)
							return
						}
						if got := streamed(tok, c.ids, false); got != c.decoded {
							t.Errorf("%s %v: %q, want %q", name, c.ids, got, c.decoded)
							return
						}
					}
				})
			}
			wg.Wait()
		}
	}
}

// Encode must not hold on to a text by way of its cache or scratch memory, nor return memory that
// the next call writes to.
func TestEncodeReturnsItsOwnMemory(t *testing.T) {
	tok := small(t, "byte_level")
	first := tok.Encode("ab ab 12", EncodeOptions{})
	want := slices.Clone(first)
	for _, text := range []string{"c c c c c c", strings.Repeat("ab", 100)} {
		tok.Encode(text, EncodeOptions{})
	}
	if !slices.Equal(first, want) {
		t.Errorf("%v, was %v", first, want)
	}
}
