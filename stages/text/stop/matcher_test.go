package stop

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// search returns the naive version: it looks at the whole text from each end on.
func search(text string, stops []string) (start int, matched string) {
	for end := 1; end <= len(text); end++ {
		for _, s := range stops {
			if s != "" && strings.HasSuffix(text[:end], s) && len(s) > len(matched) {
				matched = s
			}
		}
		if matched != "" {
			return end - len(matched), matched
		}
	}
	return len(text), ""
}

// withheld returns the longest end of text that a stop string begins with.
func withheld(text string, stops []string) int {
	for n := len(text); n > 0; n-- {
		for _, s := range stops {
			if n < len(s) && strings.HasPrefix(s, text[len(text)-n:]) {
				return n
			}
		}
	}
	return 0
}

// feed pushes pieces and checks after each one that what is out is exactly what may be out. It
// returns the whole text given out.
func feed(t *testing.T, pieces, stops []string, include bool) (out, matched string) {
	t.Helper()
	m := New(stops, include)
	in := ""
	for _, p := range pieces {
		in += p
		text, match := m.Push(p)
		out += text
		if match != "" {
			if more, again := m.Push("more"); more != "" || again != match {
				t.Errorf("after the match of %q: %q, %q", match, more, again)
			}
			if rest := m.Flush(); rest != "" {
				t.Errorf("after the match of %q, %q is left", match, rest)
			}
			return out, match
		}
		if want := in[:len(in)-withheld(in, stops)]; out != want {
			t.Errorf("stops %q: after %q the text is %q, want %q", stops, in, out, want)
		}
	}
	return out + m.Flush(), ""
}

// TestExamples pins the rules, each text cut in all possible ways.
func TestExamples(t *testing.T) {
	tests := []struct {
		text    string
		stops   []string
		out     string
		matched string
	}{
		{"alpha beta gamma delta", []string{"beta gamma"}, "alpha ", "beta gamma"},
		{"alpha beta gam", []string{"beta gamma"}, "alpha beta gam", ""},
		{"alpha beta game", []string{"beta gamma"}, "alpha beta game", ""},
		{"no stop", nil, "no stop", ""},
		{"no stop", []string{""}, "no stop", ""},
		{"stop", []string{"stop"}, "", "stop"},
		{"aaab", []string{"aab"}, "a", "aab"},
		{"abababc", []string{"ababc"}, "ab", "ababc"},
		{"abc", []string{"abc", "ab"}, "", "ab"},    // complete first
		{"xabc", []string{"bc", "abc"}, "x", "abc"}, // the same end: the longest
		{"abcd", []string{"abcd", "bc"}, "a", "bc"}, // complete first, though it begins later
		{"one\n\ntwo", []string{"\n\n"}, "one", "\n\n"},
		{"naïve é", []string{"é"}, "naïve ", "é"},
		{"ê", []string{"é"}, "ê", ""}, // the same first byte
		{"日本語", []string{"本"}, "日", "本"},
		{"a\xa9", []string{"\xa9"}, "a\xa9", ""}, // not text, so no stop string
	}
	for _, tt := range tests {
		n := len(tt.text)
		for cut := range 1 << (n - 1) {
			if n > 12 && cut%37 != 0 { // long ones: a sample
				continue
			}
			var pieces []string
			from := 0
			for i := 1; i < n; i++ {
				if cut>>(i-1)&1 == 1 {
					pieces, from = append(pieces, tt.text[from:i]), i
				}
			}
			pieces = append(pieces, tt.text[from:])
			out, matched := feed(t, pieces, valid(tt.stops), false)
			if out != tt.out || matched != tt.matched {
				t.Fatalf("%q with %q: %q, %q; want %q, %q", pieces, tt.stops, out, matched, tt.out, tt.matched)
			}
			with, _ := feed(t, pieces, valid(tt.stops), true)
			if with != tt.out+tt.matched {
				t.Fatalf("%q with %q included: %q", pieces, tt.stops, with)
			}
		}
		// The invalid ones too, as they came.
		m := New(tt.stops, false)
		if out, matched := m.Push(tt.text); out+m.Flush() != tt.out || matched != tt.matched {
			t.Errorf("%q: %q, %q", tt.text, out, matched)
		}
	}
}

func valid(stops []string) (out []string) {
	for _, s := range stops {
		if utf8.ValidString(s) {
			out = append(out, s)
		}
	}
	return out
}

// TestAgainstSearch: random texts of few letters, random stops and cuts.
func TestAgainstSearch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	letters := []string{"a", "b", "é", "ê", "日", "😀", "😁"}
	word := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString(letters[r.IntN(2+r.IntN(len(letters)-1))])
		}
		return b.String()
	}
	matches := 0
	for range 20_000 {
		var stops []string
		for range r.IntN(4) {
			stops = append(stops, word(1+r.IntN(5)))
		}
		text := word(r.IntN(20))
		bytewise := r.IntN(2) == 0
		var pieces []string
		for rest := text; rest != ""; {
			n := 1 + r.IntN(len(rest))
			for !bytewise && n < len(rest) && !utf8.RuneStart(rest[n]) {
				n++
			}
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		include := r.IntN(2) == 0
		out, matched := feed(t, pieces, stops, include)
		start, want := search(text, stops)
		wantOut := text[:start]
		if include {
			wantOut += want
		}
		if out != wantOut || matched != want {
			t.Fatalf("%q, stops %q: %q, %q; want %q, %q", pieces, stops, out, matched, wantOut, want)
		}
		if matched != "" {
			matches++
		}
	}
	if matches < 3000 || matches > 17_000 {
		t.Errorf("%d texts had a match: too one-sided a test", matches)
	}
}

// TestWholeCharacters: whole characters in, whole characters out.
func TestWholeCharacters(t *testing.T) {
	text := "é日😀ê日😁é"
	for _, stop := range []string{"日😂", "😁ê", "éé", "日😁ê"} {
		m := New([]string{stop}, false)
		var got []string
		for _, c := range text {
			out, matched := m.Push(string(c))
			if !utf8.ValidString(out) || matched != "" {
				t.Errorf("stop %q: %q, %q", stop, out, matched)
			}
			got = append(got, out)
		}
		got = append(got, m.Flush())
		if strings.Join(got, "") != text || slices.ContainsFunc(got, func(s string) bool { return !utf8.ValidString(s) }) {
			t.Errorf("stop %q: %q", stop, got)
		}
	}
}

// TestNoAllocation: text without a beginning of a stop passes through.
func TestNoAllocation(t *testing.T) {
	m := New([]string{"\n\n", "<|end|>"}, false)
	if n := testing.AllocsPerRun(100, func() { m.Push("some words of an answer") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkPush(b *testing.B) {
	m := New([]string{"\n\n", "<|end|>", "User:", "###"}, false)
	text := strings.Repeat("some words of an answer ", 40)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		m.Push(text)
	}
}
