package tokenizer

import (
	"slices"
	"testing"
	"unicode/utf8"
)

// FuzzParse: no tokenizer.json makes Parse or the returned tokenizer panic, and a stream delivers the
// same text as Decode.
func FuzzParse(f *testing.F) {
	f.Add([]byte(base), []byte(nil), "aab<s> b")
	f.Add([]byte(base), []byte(`{"bos_token":"<s>","add_bos_token":true,"added_tokens_decoder":{"6":{"content":"x","lstrip":true}}}`), " x <s>")
	for _, v := range readComponents(f) {
		f.Add([]byte(v.Tokenizer), []byte("{}"), " ab  12 é中 'S <x>.")
	}
	f.Fuzz(func(t *testing.T, file, config []byte, text string) {
		tok, err := Parse(file, config)
		if err != nil {
			return
		}
		for _, o := range []EncodeOptions{{}, {ParseSpecial: true, AddSpecial: true}, {ParseSpecial: true, Protected: []Range{{1, 3}, {5, len(text)}}}} {
			ids, err := tok.TryEncode(text, o)
			if err != nil {
				continue
			}
			if least := tok.AtLeast(len(text)); least > len(ids) {
				t.Fatalf("%q: at least %d tokens are expected, and it has %d", text, least, len(ids))
			}
			for _, id := range ids {
				if _, ok := tok.TokenBytes(id); !ok {
					t.Fatalf("Encode returned the unknown id %d", id)
				}
			}
			ids = append(ids, -1, int32(tok.VocabSize()), 0, 1, 2)
			if got, want := streamed(tok, ids, true), tok.Decode(ids, true); got != want || !utf8.ValidString(got) {
				t.Fatalf("streamed %q, decoded %q", got, want)
			}
		}
	})
}

// FuzzEncode: a byte-level tokenizer whose vocabulary has every byte gives back what it got, and
// cuts nothing else for protection.
func FuzzEncode(f *testing.F) {
	f.Add("a lighthouse, 12 <｜User｜> é", 3, 9)
	for _, a := range atoms {
		f.Add("x"+a+"y"+a, 1, 2)
	}
	tok := kraterTiny(f)
	f.Fuzz(func(t *testing.T, text string, from, to int) {
		want, _ := validText(text, nil)
		for _, o := range []EncodeOptions{{}, {ParseSpecial: true}, {ParseSpecial: true, Protected: []Range{{from, to}}}} {
			ids, err := tok.TryEncode(text, o)
			if err != nil {
				t.Fatal(err)
			}
			if got := tok.Decode(ids, false); got != want {
				t.Fatalf("%+v: %q, want %q", o, got, want)
			}
			if got := streamed(tok, ids, false); got != want {
				t.Fatalf("%+v: streamed %q, want %q", o, got, want)
			}
		}
		plain := tok.Encode(text, EncodeOptions{})
		if all := tok.Encode(text, EncodeOptions{ParseSpecial: true, Protected: []Range{{0, len(text)}}}); !slices.Equal(all, plain) {
			t.Fatalf("all protected %v, without ParseSpecial %v", all, plain)
		}
	})
}
