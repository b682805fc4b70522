package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// normalized runs one normalizer.
func normalized(t testing.TB, n normalizer, s string) string {
	t.Helper()
	got, _, err := normalize([]normalizer{n}, s, nil, new(regexBudget))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

var forms = map[string]unicodeForm{"NFC": formNFC, "NFD": formNFD, "NFKC": formNFKC, "NFKD": formNFKD}

// oldText is random text of characters that normVersion knows, with at most max marks in a row.
func oldText(r *rand.Rand, n, max int) string {
	var b strings.Builder
	marks := 0
	// Starters that combine backward, and what they combine with.
	pairs := []rune{0x9C7, 0x9BE, 0x9D7, 0xB47, 0xB3E, 0xDD9, 0xDCF, 0x1025, 0x102E, 0x1100, 0x1161, 0x11A8, 0x315E, 0x314F, 0xFF76, 0xFF9E, 0x110A5, 0x110BA}
	for b.Len() < n {
		c := rune(r.IntN(0x3200))
		switch r.IntN(8) {
		case 4, 5:
			c = pairs[r.IntN(len(pairs))]
		case 0:
			c = rune(0x300 + r.IntN(0x70))
		case 1:
			c = rune(0xAC00 + r.IntN(11172))
		case 2:
			c = rune(0x1100 + r.IntN(0x100))
		case 3:
			c = []rune{0x344, 0xF73, 0xF75, 0x1D15E, 0x212B, 0x2126, 0xFB1D, 0x1F71, 0x9CB, 0x2ADC, 0xFDFA, 0x1E9B}[r.IntN(12)]
		}
		if !unicode.Is(normKnown, c) || !utf8.ValidRune(c) {
			continue
		}
		if norm.NFD.PropertiesString(string(c)).BoundaryBefore() {
			marks = 0
		} else if marks++; marks > max {
			continue
		}
		b.WriteRune(c)
	}
	return b.String()
}

// Where package norm does what the standard says, so do we.
func TestFormsEqualNorm(t *testing.T) {
	for name, f := range forms {
		r := rand.New(rand.NewPCG(19, 20))
		for range 3000 {
			text := oldText(r, 1+r.IntN(60), 8)
			want := f.form.String(text)
			if got := normalized(t, f, text); got != want {
				t.Fatalf("%s of %+q: %+q, want %+q", name, text, got, want)
			}
			if got := f.long(text); got != want {
				t.Fatalf("%s of %+q by the book: %+q, want %+q", name, text, got, want)
			}
		}
	}
}

// Long runs of marks: the result has the expected marks and no U+034F, which package norm inserts into
// runs above its limit, and normalizing it again changes nothing.
func TestFormsOfLongRuns(t *testing.T) {
	for _, n := range []int{9, 10, 11, 29, 30, 31, 32, 60, 1000} {
		above, below := strings.Repeat("\u0301", n), strings.Repeat("\u0323", n)
		for in, want := range map[string]map[string]string{
			"e" + above:                 {"NFC": "\u00e9" + above[2:], "NFD": "e" + above},
			"x" + above + below:         {"NFC": "x" + below + above, "NFD": "x" + below + above},
			"a" + above + below + "b":   {"NFC": "\u1ea1" + below[2:] + above + "b", "NFKD": "a" + below + above + "b"},
			above:                       {"NFC": above, "NFKC": above},
			strings.Repeat("\u0344", n): {"NFC": strings.Repeat("\u0308\u0301", n)},
		} {
			for name, text := range want {
				if got := normalized(t, forms[name], in); got != text {
					t.Errorf("%s, %d marks: %+.60q, want %+.60q", name, n, got, text)
				}
			}
		}
	}
	r := rand.New(rand.NewPCG(21, 22))
	for range 200 {
		text := oldText(r, 400, 1000)
		for name, f := range forms {
			got := normalized(t, f, text)
			if strings.Contains(got, "\u034f") && !strings.Contains(text, "\u034f") {
				t.Fatalf("%s of %+q has a U+034F", name, text)
			}
			if again := normalized(t, f, got); again != got {
				t.Fatalf("%s of %+q is not stable: %+q, %+q", name, text, got, again)
			}
		}
	}
}

// Characters that came after the reference's Unicode keep apart what is around them, and stay.
func TestFormsLeaveNewCharactersAlone(t *testing.T) {
	for in, want := range map[string]string{
		"a\u08d0\u0323":        "a\u08d0\u0323", // U+08D0 has class 230 today and would go after
		"a\u0301\u1df8\u0323":  "\u00e1\u1df8\u0323",
		"e\u08d0\u0301":        "e\u08d0\u0301",
		"e\u0301\u08d0e\u0301": "\u00e9\u08d0\u00e9",
	} {
		if got := normalized(t, formNFC, in); got != want {
			t.Errorf("%+q: %+q, want %+q", in, got, want)
		}
	}
}

func TestNormalizedLengthIsBounded(t *testing.T) {
	steps := []normalizer{literalReplacer{"a", strings.Repeat("b", 1<<20)}}
	text := strings.Repeat("a", 4*MaxText>>20+1)
	for _, ranges := range [][]Range{nil, {{0, 1}}} {
		if _, _, err := normalize(steps, text, ranges, new(regexBudget)); err != ErrTextTooLong {
			t.Errorf("with ranges %v: %v, want ErrTextTooLong", ranges, err)
		}
	}
}

func TestLowercase(t *testing.T) {
	for in, want := range map[string]string{"aBc": "abc", "İI": "i\u0307i", "ΑΣ": "ας"[:2] + "σ", "ÀǅẞⅧ": "àǆßⅷ", "\U00010400": "\U00010428"} {
		if got := normalized(t, lowercaser{}, in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
