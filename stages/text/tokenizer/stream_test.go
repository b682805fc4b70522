package tokenizer

import (
	"encoding/base64"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// A stream delivers what Decode returns, whole characters at any moment, for any ids.
func TestStreamEqualsDecode(t *testing.T) {
	for name := range families {
		t.Run(name, func(t *testing.T) {
			tok := family(t, name)
			r := rand.New(rand.NewPCG(17, uint64(len(name))))
			for range 400 {
				ids := make([]int32, r.IntN(60))
				for i := range ids {
					switch r.IntN(3) {
					case 0: // byte tokens are among the first
						ids[i] = int32(r.IntN(500))
					default:
						ids[i] = int32(r.IntN(tok.VocabSize() + 50))
					}
				}
				checkStream(t, tok, ids, r.IntN(2) == 0)
			}
			for _, text := range []string{"😀", "한국어", "👨‍👩‍👧‍👦", "a😀b", "ᄒ\u1161ᆫ", "\U0010fffd", "𝔘𝔫𝔦", " lead", "  two", "\u2581x"} {
				checkStream(t, tok, tok.Encode(text, EncodeOptions{}), false)
			}
		})
	}
}

func checkStream(t *testing.T, tok *Tokenizer, ids []int32, skip bool) {
	t.Helper()
	want := tok.Decode(ids, skip)
	s := tok.NewStream(skip)
	for round := range 2 { // after Flush the stream starts again
		var b strings.Builder
		for _, id := range ids {
			text := s.Push(id)
			if !utf8.ValidString(text) {
				t.Fatalf("Push(%d) returned %q of %v", id, text, ids)
			}
			b.WriteString(text)
			if !strings.HasPrefix(want, b.String()) {
				t.Fatalf("%v, skip %v: streamed %q so far, want %q", ids, skip, b.String(), want)
			}
		}
		b.WriteString(s.Flush())
		if b.String() != want {
			t.Fatalf("%v, skip %v, round %d: streamed %q, want %q", ids, skip, round, b.String(), want)
		}
	}
}

// A stream does not wait longer than it must: a byte-level text is out as soon as its last
// character is whole.
func TestStreamIsPrompt(t *testing.T) {
	tok := family(t, "llama3")
	ids := tok.Encode("ab 한 c 😀 d", EncodeOptions{})
	s := tok.NewStream(false)
	var sofar strings.Builder
	for i, id := range ids {
		sofar.WriteString(s.Push(id))
		var all []byte
		for _, id := range ids[:i+1] {
			b, _ := tok.TokenBytes(id)
			all = append(all, b...)
		}
		for len(all) > 0 {
			if r, n := utf8.DecodeLastRune(all); r != utf8.RuneError || n != 1 {
				break
			}
			all = all[:len(all)-1]
		}
		if sofar.String() != string(all) {
			t.Errorf("after %d tokens %q, want %q", i+1, sofar.String(), all)
		}
	}
	if rest := s.Flush(); rest != "" {
		t.Errorf("Flush returned %q", rest)
	}
}

func TestStreamHoldsBackTheBeginningOfACharacter(t *testing.T) {
	tok := small(t, "byte_level")
	first, _ := tok.TokenID("Ã")
	second, _ := tok.TokenID("©")
	s := tok.NewStream(false)
	if got := s.Push(first); got != "" {
		t.Errorf("half a character: %q", got)
	}
	if got := s.Push(second); got != "é" {
		t.Errorf("the other half: %q, want é", got)
	}
	s.Push(first)
	if got := s.Flush(); got != replacement {
		t.Errorf("half a character at the end: %q, want U+FFFD", got)
	}
}

func TestUnknownIDs(t *testing.T) {
	for _, name := range []string{"byte_level", "fallback", "plain"} {
		tok := small(t, name)
		for _, id := range []int32{-1, -1 << 31, int32(tok.VocabSize()), 1<<31 - 1} {
			if _, ok := tok.TokenBytes(id); ok {
				t.Errorf("%s: token %d has bytes", name, id)
			}
			if got := tok.Decode([]int32{id}, false); got != "" {
				t.Errorf("%s: token %d decodes to %q", name, id, got)
			}
			if got := tok.NewStream(true).Push(id); got != "" {
				t.Errorf("%s: token %d streams %q", name, id, got)
			}
			if tok.IsSpecial(id) {
				t.Errorf("%s: token %d is special", name, id)
			}
		}
	}
}

func TestTokenBytes(t *testing.T) {
	for _, c := range []struct{ family, token, want string }{
		{"llama3", "Ġthe", " the"}, {"llama3", "<|eot_id|>", "<|eot_id|>"}, {"llama3", "Ð", "\xd0"},
		{"llama2", "▁the", " the"}, {"llama2", "<0x0A>", "\n"}, {"llama2", "<0xE2>", "\xe2"}, {"llama2", "</s>", "</s>"},
		{"gemma3", "▁▁", "  "}, {"gemma3", "<0xFF>", "\xff"}, {"deepseek_v3", "<｜User｜>", "<｜User｜>"},
	} {
		tok := family(t, c.family)
		id, ok := tok.TokenID(c.token)
		if !ok {
			t.Errorf("%s has no token %q", c.family, c.token)
			continue
		}
		if got, ok := tok.TokenBytes(id); !ok || string(got) != c.want {
			t.Errorf("%s %q: %q, want %q", c.family, c.token, got, c.want)
		}
	}
	if _, ok := family(t, "llama3").TokenID("no such token"); ok {
		t.Error("a token that is none has an id")
	}
}

// The maximal subparts of the Unicode standard (tables 3-8 to 3-11) and of the WHATWG decoder.
func TestValidText(t *testing.T) {
	for in, want := range map[string]string{
		"abc":                                  "abc",
		"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41": "********A",
		"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41": "********A",
		"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42": "*****A**B",
		"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41": "****A",
		"\xe2\x82":                             "*",
		"\xf0\x9f\x98":                         "*",
		"\xf0\x9f\x98\x80\xf0\x9f":             "\U0001f600*",
		"a\x80b\xc3":                           "a*b*",
		"\xef\xbb\xbfx":                        "\ufeffx",
		"\xf8\x88\x80\x80\x80":                 "*****",
		base64Text("7aCB7bCB"):                 "******",
	} {
		want = strings.ReplaceAll(want, "*", replacement)
		if got, _ := validText(in, nil); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
		// The decoder must do the same however the bytes are cut.
		for i := range len(in) {
			var out output
			s := byteLevelStage{next: &out}
			s.put(in[:i])
			s.put(in[i:])
			s.end()
			if string(out.buf) != want {
				t.Errorf("%q cut at %d: %q, want %q", in, i, out.buf, want)
			}
		}
	}
}

func base64Text(s string) string {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}
