package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
	"golang.org/x/text/unicode/rangetable"
)

// atoms are strings that split patterns distinguish, and strings that are easily split wrongly.
var atoms = []string{
	" ", " ", "  ", "\n", "\r\n", "\t", "\v", "\u00a0", "\u3000", "\u2028", "\u0085", "\u180e", "\u200b", "\ufeff",
	"'", "'s", "'S", "'ll", "'Re", "'vE", "'d", "'T", "'m", "'r", "'l", "a", "B", "the", " The", "HTTPServer", "iPhone", "ǅ", "ʰ",
	"1", "23", "4567", "٣", "½", "Ⅷ", ".", ",", "!!", "/", "//\n", "_", "$", "+=", "«", "—", "\x00", "\x7f", "\u00ad",
	"é", "e\u0301", "\u0301", "\u0323\u0301", "\u20dd", "中", "文", "の", "カ", "・", "ー", "한", "ก", "ิ", "क्ष", "😀", "\u200d", "\ufffd", "\U00011bf1", "\ue000", "\U0010ffff",
}

// randomText is valid UTF-8 of about n atoms.
func randomText(r *rand.Rand, n int) string {
	var b strings.Builder
	for range n {
		switch r.IntN(8) {
		case 0:
			b.WriteByte(byte(r.IntN(0x80)))
		case 1:
			b.WriteRune(rune(r.IntN(0x3100)))
		case 2:
			b.WriteString(string(rune(r.IntN(0x110000)))) // U+FFFD for a surrogate
		default:
			b.WriteString(atoms[r.IntN(len(atoms))])
		}
	}
	return b.String()
}

// known drops the characters that regexp2 and the matchers see differently: those that are newer
// than the reference's Unicode, and the long s, which regexp2 does not fold to s.
func known(s string) string {
	assigned := rangetable.Assigned(unicodeVersion)
	return strings.Map(func(r rune) rune {
		if r == 'ſ' || !unicode.Is(assigned, r) && unicode.Is(rangetable.Assigned("17.0.0"), r) {
			return -1
		}
		return r
	}, s)
}

// The matchers against regexp2 with the pattern they stand for.
func TestMatchersEqualRegexp(t *testing.T) {
	loadClasses()
	all := map[string]matcher{patternGPT2: matchGPT2}
	for p, m := range matchers {
		all[p] = m
	}
	for pattern, m := range all {
		re := regexp2.MustCompile(pattern, regexp2.Multiline)
		r := rand.New(rand.NewPCG(1, uint64(len(pattern))))
		for range 4000 {
			text := known(randomText(r, 1+r.IntN(30)))
			want, err := re.FindAllStringIndex(text, -1)
			if err != nil {
				t.Fatal(err)
			}
			got := [][]int{}
			if err := m.all(text, nil, func(start, end int) error {
				got = append(got, []int{start, end})
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(got, want, slices.Equal[[]int]) {
				t.Fatalf("%s\n%+q:\n%v, want\n%v", pattern, text, got, want)
			}
		}
	}
}

// FuzzMatchers: no matcher may return an empty match, go back or panic.
func FuzzMatchers(f *testing.F) {
	loadClasses()
	for _, a := range atoms {
		f.Add("x" + a + "y 1" + a + a)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) {
			text, _ = validText(text, nil)
		}
		for pattern, m := range matchers {
			at := 0
			m.all(text, nil, func(start, end int) error {
				if start < at || end <= start || end > len(text) {
					t.Fatalf("%s\n%q: match [%d, %d) behind %d", pattern, text, start, end, at)
				}
				at = end
				return nil
			})
		}
	})
}

func TestClassesAgreeWithUnicode(t *testing.T) {
	loadClasses()
	assigned := rangetable.Assigned(unicodeVersion)
	tables := map[class]*unicode.RangeTable{
		classLu: unicode.Lu, classLl: unicode.Ll, classLt: unicode.Lt, classLm: unicode.Lm, classLo: unicode.Lo,
		classM: unicode.M, classN: unicode.N, classP: unicode.P, classS: unicode.S, classWs: unicode.White_Space,
	}
	for r := rune(0); r <= unicode.MaxRune; r++ {
		c := classOf(r)
		for set, table := range tables {
			want := unicode.Is(table, r) && unicode.Is(assigned, r)
			if got := c&set != 0; got != want {
				t.Fatalf("%U: in class %b: %v, want %v", r, set, got, want)
			}
		}
	}
}

func TestForeignSyntaxIsRefused(t *testing.T) {
	for pattern, want := range map[string]string{
		`[a-z&&[^b]]`: "&&", `[a[b]]`: "a set within a set", `[[:alpha:]]`: "a set within a set", `\h+`: `\h`, `a\Rb`: `\R`,
		`a{,3}`: "{,", `(?~ab)`: "(?~", `(?m:.)`: "(?m", `[]a]`: "] as the first of a set", `(?i-m:a)`: "(?i-m",
	} {
		if got := foreignSyntax(pattern); got != want {
			t.Errorf("%s: %q, want %q", pattern, got, want)
		}
		if _, err := newFinder(pattern); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", pattern, err, want)
		}
	}
	for pattern := range matchers {
		if got := foreignSyntax(pattern); got != "" {
			t.Errorf("%s is refused for %q", pattern, got)
		}
	}
	for _, pattern := range []string{`\[a\]`, `[\[\]&]+`, `(?i:a)|(?:b)|(?=c)|(?!d)|(?<=e)|(?<!f)`, `[^\s\p{L}]{1,3}?`} {
		if _, err := newFinder(pattern); err != nil {
			t.Errorf("%s: %v", pattern, err)
		}
	}
}

// What regexp2 does not fold, and the reference does.
func TestLongSIsAContraction(t *testing.T) {
	loadClasses()
	for _, m := range []matcher{matchLlama3, matchQwen2, matchQwen35} {
		if _, end := m("'ſx", 0); end != len("'ſ") {
			t.Errorf("the match ends at %d, want %d", end, len("'ſ"))
		}
	}
	if _, end := matchO200k("a'ſx", 0); end != len("a'ſ") {
		t.Errorf("o200k: the match ends at %d, want %d", end, len("a'ſ"))
	}
}
