package cmdline

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestChanges: the distance between two names.
func TestChanges(t *testing.T) {
	for pair, want := range map[string]int{"|": 0, "a|": 1, "|ab": 2, "abc|abc": 0, "abc|axc": 1, "abcd|bcd": 1, "kitten|sitting": 3} {
		a, b, _ := strings.Cut(pair, "|")
		if got := changes(a, b); got != want || changes(b, a) != want {
			t.Errorf("from %q to %q it is %d and %d, want %d", a, b, got, changes(b, a), want)
		}
	}
}

// TestNamesModel: words that name models, and words of questions.
func TestNamesModel(t *testing.T) {
	for _, word := range strings.Fields("llama3 llama3:8b Llama-3.1-8B-Instruct mistral qwen2.5-7b deepseek-r1:7b gemma:2b phi-4 gpt-oss:20b deepseek-ai/DeepSeek-V2-Lite model.gguf krater-tiny kimi-k2 " + filepath.Join("..", "..", "..", "testdata", "goldens", "qwen2")) {
		if !NamesModel(word) {
			t.Errorf("%s is a model", word)
		}
	}
	for _, word := range []string{"", "hi", "Hello", "river", "lighthouse?", "yield-curve", "phi", "falcon", "What is llama3?", "llama3?", "granite", "glimmer", "2/3 of it", "yiddish", "krater"} {
		if NamesModel(word) {
			t.Errorf("%q is no model", word)
		}
	}
}
