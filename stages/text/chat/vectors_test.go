package chat

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var writeTemplates = flag.String("templates", "", "a folder to write all real templates to, for testdata/renders.py")

// fixedNow is when the reference rendered.
func fixedNow() time.Time { return time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC) }

// scenarios are the conversations of the vectors.
type scenarios struct {
	Scenarios map[string]json.RawMessage            `json:"scenarios"`
	Tokens    map[string]map[string]json.RawMessage `json:"tokens"`
	Default   map[string]json.RawMessage            `json:"default_tokens"`
}

func readScenarios(t *testing.T) *scenarios {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "testdata", "vectors", "chat_template_scenarios.json"))
	if err != nil {
		t.Fatal(err)
	}
	s := new(scenarios)
	if err := json.Unmarshal(data, s); err != nil {
		t.Fatal(err)
	}
	return s
}

// line is a scenario as a line of `krater template`.
func (s *scenarios) line(t *testing.T, template, scenario string) []byte {
	t.Helper()
	tokens := s.Tokens[template]
	if tokens == nil {
		tokens = s.Default
	}
	var b bytes.Buffer
	b.WriteByte('{')
	for _, name := range []string{"bos_token", "eos_token"} {
		fmt.Fprintf(&b, "%q: %s, ", name, tokens[name])
	}
	rest, ok := bytes.CutPrefix(bytes.TrimSpace(s.Scenarios[scenario]), []byte("{"))
	if !ok {
		t.Fatalf("no scenario %q", scenario)
	}
	b.Write(rest)
	return b.Bytes()
}

// vector is one render by the reference: the text or its hash, or an error.
type vector struct {
	Template string  `json:"template"`
	Source   string  `json:"template_sha256"`
	Scenario string  `json:"scenario"`
	Expected *string `json:"expected"`
	SHA256   *string `json:"sha256"`
	Error    string  `json:"error"`
}

func readVectors(t *testing.T, path string) []vector {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []vector
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var v vector
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
	if lines.Err() != nil {
		t.Fatal(lines.Err())
	}
	return out
}

// tally is how a set of vectors came out.
type tally struct {
	templates, renders, exact, errors, raised int
	differences                               []string
}

// holds runs vectors against the templates.
func holds(t *testing.T, s *scenarios, sources map[string]string, vectors []vector) tally {
	t.Helper()
	var n tally
	compiled := map[string]*Template{}
	for _, v := range vectors {
		source, ok := sources[v.Template]
		if !ok || hexSum(source) != v.Source {
			t.Fatalf("%s: the template is not the one that the vector was made with", v.Template)
		}
		c := compiled[v.Template]
		if c == nil {
			var err error
			if c, err = Compile(source, Options{Now: fixedNow}); err != nil {
				t.Fatalf("%s: %v", v.Template, err)
			}
			compiled[v.Template] = c
			n.templates++
		}
		out := c.RenderLine(s.line(t, v.Template, v.Scenario))
		var got string
		rendered := json.Unmarshal(out, &got) == nil
		differ := func(what string) {
			n.differences = append(n.differences, fmt.Sprintf("`%s`, scenario `%s`: %s", v.Template, v.Scenario, what))
		}
		if v.Error != "" {
			n.errors++
			if !rendered {
				n.raised++
			} else {
				differ("Python raises " + v.Error)
			}
			continue
		}
		n.renders++
		switch {
		case !rendered:
			differ(string(out))
		case v.Expected != nil && got == *v.Expected, v.SHA256 != nil && hexSum(got) == *v.SHA256:
			n.exact++
		default:
			differ("another text")
			if v.Expected != nil {
				t.Logf("%s %s\n got %q\nwant %q", v.Template, v.Scenario, got, *v.Expected)
			}
		}
	}
	return n
}

// TestRenders holds all real templates against the reference, and keeps the counts and the
// differences in docs/chat-templates.md true.
func TestRenders(t *testing.T) {
	sources := allTemplates(t)
	if *writeTemplates != "" {
		for name, source := range sources {
			if err := os.WriteFile(filepath.Join(*writeTemplates, name+".jinja"), []byte(source), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	s := readScenarios(t)
	sets := []struct{ name, path string }{
		{"`testdata/vectors/chat_template_vectors.jsonl`", filepath.Join(root, "testdata", "vectors", "chat_template_vectors.jsonl")},
		{"`stages/text/chat/testdata/renders.jsonl`", filepath.Join("testdata", "renders.jsonl")},
	}
	var b strings.Builder
	b.WriteString("| vectors | templates | renders | exact | errors of Python | raised here |\n|---|---|---|---|---|---|\n")
	var differences []string
	for _, set := range sets {
		n := holds(t, s, sources, readVectors(t, set.path))
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d |\n", set.name, n.templates, n.renders, n.exact, n.errors, n.raised)
		differences = append(differences, n.differences...)
		if n.exact*100 < n.renders*98 {
			t.Errorf("%s: %d of %d renders are exact, 98 %% must be", set.name, n.exact, n.renders)
		}
	}
	b.WriteString("\nDifferences:\n\n")
	if len(differences) == 0 {
		b.WriteString("- none\n")
	}
	for _, d := range differences {
		b.WriteString("- " + d + "\n")
	}
	section(t, filepath.Join(root, "docs", "chat-templates.md"), "renders", b.String())
}

// section compares the part of a document between two marks with text, or writes it.
func section(t *testing.T, path, name, text string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	open, shut := "<!-- "+name+": written by a test -->\n", "<!-- end of "+name+" -->"
	before, rest, ok1 := strings.Cut(string(data), open)
	old, after, ok2 := strings.Cut(rest, shut)
	switch {
	case !ok1 || !ok2:
		t.Fatalf("%s has no section %s", path, name)
	case old == text:
	case *rewriteGolden:
		if err := os.WriteFile(path, []byte(before+open+text+shut+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s: the section %s is not what the test finds (go test -rewrite writes it again):\n%s", path, name, text)
	}
}
