package grammar

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// largeVocabulary has 128K tokens: those of the tiktoken file that KRATER_TIKTOKEN names, or words made
// of syllables, with and without a blank, numbers, and what JSON is made of.
func largeVocabulary(tb testing.TB) *Vocabulary {
	const size = 128 << 10
	var texts [][]byte
	if path := os.Getenv("KRATER_TIKTOKEN"); path != "" {
		file, err := os.Open(path)
		if err != nil {
			tb.Fatal(err)
		}
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan() && len(texts) < size; {
			word, _, _ := strings.Cut(lines.Text(), " ")
			text, err := base64.StdEncoding.DecodeString(word)
			if err != nil {
				tb.Fatal(err)
			}
			texts = append(texts, text)
		}
	} else {
		rng := rand.New(rand.NewPCG(7, 7))
		for i := range 256 {
			texts = append(texts, []byte{byte(i)})
		}
		for _, a := range []string{"", " ", `"`, "{", "[", "}", "]", ",", ":", "\n"} {
			for _, b := range []string{`"`, "{", "}", "[", "]", ",", ":", "\n", "  ", "\t"} {
				for _, c := range []string{"", `"`, "{", "}", " ", "\n"} {
					texts = append(texts, []byte(a+b+c))
				}
			}
		}
		for i := range 1000 {
			texts = append(texts, fmt.Append(nil, i))
		}
		parts := []string{"a", "be", "con", "der", "en", "fi", "ge", "ho", "ing", "ja", "ka", "lo", "men", "ne", "or", "per", "qu", "re", "st", "tion", "un", "ver", "wa", "ex", "ly", "ze", "é", "日", "本", "и", "на", "ст"}
		seen := map[string]bool{}
		for len(texts) < size {
			word := []string{"", " ", " ", "_", "."}[rng.IntN(5)]
			for range 1 + rng.IntN(4) {
				word += parts[rng.IntN(len(parts))]
			}
			word += []string{"", "", "", "s", `"`, `":`, ",", "\n"}[rng.IntN(8)]
			if !seen[word] {
				seen[word] = true
				texts = append(texts, []byte(word))
			}
		}
	}
	return NewVocabulary(len(texts)+1, func(id int32) []byte {
		if int(id) >= len(texts) {
			return nil
		}
		return texts[id]
	}, []int32{int32(len(texts))})
}

// BenchmarkMasks follows random JSON texts: a new grammar's first masks, and those of one that has
// been used. The vocabulary has been used in both.
func BenchmarkMasks(b *testing.B) {
	v := largeVocabulary(b)
	for _, c := range []struct{ name, source string }{
		{"json", jsonGBNF},
		{"counts", "root ::= \"[\" item{1,200} \"]\"\nitem ::= \"\\\"\" [^\"\\\\\\x00-\\x1f]{3,40} \"\\\",\""},
	} {
		for _, first := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/new=%v", c.name, first), func(b *testing.B) {
				var times []time.Duration
				g := gbnfGrammar(b, c.source, v)
				if !first {
					walkMasks(b, g.Matcher(), rand.New(rand.NewPCG(1, 1)), 2000)
				}
				seed := uint64(0)
				for b.Loop() {
					seed++
					var least []time.Duration // of several walks of one text: the machine may be busy
					for range 5 {
						if first {
							g = gbnfGrammar(b, c.source, v)
						}
						walk := walkMasks(b, g.Matcher(), rand.New(rand.NewPCG(seed, 2)), 60)
						if least == nil {
							least = walk
						}
						for i := range least {
							least[i] = min(least[i], walk[i])
						}
					}
					times = append(times, least...)
				}
				slices.Sort(times)
				at := func(p int) float64 { return float64(times[len(times)*p/100].Nanoseconds()) / 1e3 }
				b.ReportMetric(at(50), "us-median")
				b.ReportMetric(at(99), "us-p99")
				b.ReportMetric(float64(times[len(times)-1].Nanoseconds())/1e3, "us-max")
			})
		}
	}
}

// walkMasks returns how long each mask took.
func walkMasks(tb testing.TB, m *Matcher, rng *rand.Rand, tokens int) (times []time.Duration) {
	for range tokens {
		began := time.Now()
		mask, err := m.Mask()
		times = append(times, time.Since(began))
		if err != nil {
			tb.Fatal(err)
		}
		token := int32(-1)
		for n, id := 0, int32(0); int(id) < len(m.g.vocab.texts); id++ {
			if mask[id/32]>>(id%32)&1 == 1 {
				if n++; rng.IntN(n) == 0 {
					token = id
				}
			}
		}
		if token < 0 {
			return times
		}
		if err := m.Accept(token); err != nil {
			tb.Fatal(err)
		}
	}
	return times
}

func BenchmarkVocabulary(b *testing.B) {
	for b.Loop() {
		largeVocabulary(b)
	}
}
