package tokenizer

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// componentVector is a line of testdata/components.jsonl: a small tokenizer with one thing to test,
// and what the reference makes of some texts.
type componentVector struct {
	Name      string
	Tokenizer json.RawMessage
	Cases     [][5]json.RawMessage
}

// componentCase is one text of a componentVector.
type componentCase struct {
	text                 string
	ids, special         []int32
	decoded, skipSpecial string
}

func (v componentVector) cases(t testing.TB) []componentCase {
	var out []componentCase
	for _, raw := range v.Cases {
		var c componentCase
		var special []int32
		var skipped *string
		for i, to := range []any{&c.text, &c.ids, &special, &c.decoded, &skipped} {
			if err := json.Unmarshal(raw[i], to); err != nil {
				t.Fatal(err)
			}
		}
		if c.special = special; special == nil {
			c.special = c.ids
		}
		if c.skipSpecial = c.decoded; skipped != nil {
			c.skipSpecial = *skipped
		}
		out = append(out, c)
	}
	return out
}

func readComponents(t testing.TB) []componentVector {
	t.Helper()
	f, err := os.Open("testdata/components.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []componentVector
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		var v componentVector
		if err := json.Unmarshal(s.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	if len(out) < 50 {
		t.Fatalf("only %d vectors", len(out))
	}
	return out
}

func TestComponents(t *testing.T) {
	for _, v := range readComponents(t) {
		t.Run(v.Name, func(t *testing.T) {
			tok, err := Parse(v.Tokenizer, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range v.cases(t) {
				if got := tok.Encode(c.text, EncodeOptions{ParseSpecial: true}); !slices.Equal(got, c.ids) {
					t.Errorf("%q: %v, want %v", c.text, got, c.ids)
				}
				if got := tok.Encode(c.text, EncodeOptions{ParseSpecial: true, AddSpecial: true}); !slices.Equal(got, c.special) {
					t.Errorf("%q with specials: %v, want %v", c.text, got, c.special)
				}
				for skip, want := range map[bool]string{false: c.decoded, true: c.skipSpecial} {
					if got := tok.Decode(c.ids, skip); got != want {
						t.Errorf("%v decoded, skip %v: %q, want %q", c.ids, skip, got, want)
					}
					if got := streamed(tok, c.ids, skip); got != want {
						t.Errorf("%v streamed, skip %v: %q, want %q", c.ids, skip, got, want)
					}
				}
			}
		})
	}
}
