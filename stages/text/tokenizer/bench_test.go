package tokenizer

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// prose is 216 KB of English prose.
func prose(b testing.TB) string {
	text, err := os.ReadFile(filepath.Join(root, "models/krater-tiny/heldout.txt"))
	if err != nil {
		b.Fatal(err)
	}
	return string(text)
}

// code returns the source of this package.
func code(b testing.TB) string {
	var all strings.Builder
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		b.Fatal("no source here", err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			b.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// words is 200 KB of words that no cache has seen: random letters, with a space after every wordLen
// of them on average, or with none at all if it is 0.
func words(wordLen int) string {
	r := rand.New(rand.NewPCG(25, 26))
	var all strings.Builder
	for all.Len() < 200_000 {
		if wordLen > 0 && r.IntN(wordLen+1) == 0 {
			all.WriteByte(' ')
			continue
		}
		all.WriteByte("etaoinshrdlucmfwypvbgkjqxz"[min(r.IntN(26), r.IntN(26))])
	}
	return all.String()
}

// multilingual returns the text of the multilingual vectors put together.
func multilingual(b testing.TB) string {
	var all strings.Builder
	for _, v := range readVectors[encodeVector](b, "tokenizer_vectors_public.jsonl") {
		if v.Category == "multilingual" {
			all.WriteString(v.text(b))
		}
	}
	return all.String()
}

var benchFamilies = []string{"deepseek_v3", "qwen3", "llama2", "llama3", "gpt_oss", "gemma3", "krater-tiny"}

func benchTokenizer(b *testing.B, name string) *Tokenizer {
	if name == "krater-tiny" {
		return kraterTiny(b)
	}
	return family(b, name)
}

// BenchmarkEncode encodes whole texts. Cold starts every time with an empty word cache: no word is
// known from a previous round, only from earlier in the text.
func BenchmarkEncode(b *testing.B) {
	texts := map[string]string{"prose": prose(b), "code": code(b), "multilingual": multilingual(b), "random": words(6), "unbroken": words(0)}
	for _, name := range benchFamilies {
		for _, kind := range []string{"prose", "code", "multilingual", "random", "unbroken"} {
			for _, heat := range []string{"cold", "warm"} {
				b.Run(name+"/"+kind+"/"+heat, func(b *testing.B) {
					tok := benchTokenizer(b, name)
					tok.Encode(texts[kind], EncodeOptions{ParseSpecial: true})
					b.SetBytes(int64(len(texts[kind])))
					b.ReportAllocs()
					for b.Loop() {
						if heat == "cold" {
							tok.model.cache = new(wordCache)
						}
						tok.Encode(texts[kind], EncodeOptions{ParseSpecial: true})
					}
				})
			}
		}
	}
}

// BenchmarkEncodeOneCharacter is the worst case for merging: 200 KB of one character, which is one
// piece.
func BenchmarkEncodeOneCharacter(b *testing.B) {
	for _, name := range benchFamilies {
		for _, char := range []string{"a", " ", "\n", "0", ".", "é", "中"} {
			b.Run(name+"/"+char, func(b *testing.B) {
				tok := benchTokenizer(b, name)
				text := strings.Repeat(char, 200_000/len(char))
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					tok.Encode(text, EncodeOptions{ParseSpecial: true})
				}
			})
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, name := range benchFamilies {
		b.Run(name, func(b *testing.B) {
			tok := benchTokenizer(b, name)
			ids := tok.Encode(prose(b), EncodeOptions{ParseSpecial: true})
			for b.Loop() {
				tok.Decode(ids, true)
			}
			b.ReportMetric(float64(len(ids))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mtok/s")
		})
	}
}

func BenchmarkStream(b *testing.B) {
	for _, name := range benchFamilies {
		b.Run(name, func(b *testing.B) {
			tok := benchTokenizer(b, name)
			ids := tok.Encode(prose(b), EncodeOptions{ParseSpecial: true})
			for b.Loop() {
				s := tok.NewStream(true)
				for _, id := range ids {
					s.Push(id)
				}
				s.Flush()
			}
			b.ReportMetric(float64(len(ids))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mtok/s")
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	for _, name := range benchFamilies {
		b.Run(name, func(b *testing.B) {
			dir := filepath.Join(root, "models/krater-tiny")
			if name != "krater-tiny" {
				dir = modelFolder(b, name)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Load(os.DirFS(dir)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
