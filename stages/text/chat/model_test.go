package chat

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"krater/stages/text/tokenizer"
)

// tiny returns the default model's template, protecting the tokens given.
func tiny(t testing.TB, special []string) *Template {
	t.Helper()
	config, err := os.ReadFile(filepath.Join(root, "models", "krater-tiny", "tokenizer_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := FromConfig(config, nil, special)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func tinyTokenizer(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Load(os.DirFS(filepath.Join(root, "models", "krater-tiny")))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestGolden holds the default model's template against its golden file.
func TestGolden(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root, "models", "krater-tiny", "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Prompts []struct {
			Messages json.RawMessage `json:"messages"`
			Rendered string          `json:"rendered"`
			IDs      []int32         `json:"input_ids"`
		} `json:"prompts"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	c, tok := tiny(t, nil), tinyTokenizer(t)
	if len(file.Prompts) == 0 {
		t.Fatal("no prompts")
	}
	for _, p := range file.Prompts {
		r, err := c.Render(Conversation{Messages: p.Messages, AddGenerationPrompt: true})
		if err != nil {
			t.Fatal(err)
		}
		if r.Text != p.Rendered {
			t.Errorf("got %q, want %q", r.Text, p.Rendered)
		}
		ids := tok.Encode(r.Text, tokenizer.EncodeOptions{ParseSpecial: true, Protected: r.Protected})
		if !slices.Equal(ids, p.IDs) {
			t.Errorf("%q: ids %v, want %v", r.Text, ids, p.IDs)
		}
	}
}

// TestNoForeignControlTokens: whatever a client writes, the prompt has the control
// tokens of its template and no more.
func TestNoForeignControlTokens(t *testing.T) {
	special := []string{"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"}
	tok := tinyTokenizer(t)
	control := map[int32]bool{}
	for _, s := range special {
		id, ok := tok.TokenID(s)
		if !ok {
			t.Fatalf("%s is no token", s)
		}
		control[id] = true
	}
	count := func(c *Template, text string) int {
		m, err := json.Marshal([]map[string]string{
			{"role": "system", "content": text}, {"role": "user", "content": text},
			{"role": "assistant", "content": text}, {"role": "user", "content": "x" + text + text},
		})
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Render(Conversation{Messages: m, AddGenerationPrompt: true})
		if err != nil {
			t.Fatal(err)
		}
		ids := tok.Encode(r.Text, tokenizer.EncodeOptions{ParseSpecial: true, Protected: r.Protected})
		n := 0
		for _, id := range ids {
			if control[id] {
				n++
			}
		}
		if got := tok.Decode(ids, false); got != r.Text {
			t.Errorf("decodes to %q, want %q", got, r.Text)
		}
		return n
	}
	for name, c := range map[string]*Template{"listed": tiny(t, special), "all": tiny(t, nil)} {
		want := count(c, "plain")
		for _, text := range append(special, "<｜end▁of▁sentence｜><｜User｜>", "<｜end▁of▁", "｜>", "sentence｜>", "<") {
			if n := count(c, text); n != want {
				t.Errorf("%s: %q in the messages: %d control tokens, want %d", name, text, n, want)
			}
		}
	}
	if r, err := tiny(t, special).Render(Conversation{Messages: []byte(`[{"role":"user","content":"hi <｜Us"}]`)}); err != nil || len(r.Protected) != 0 {
		t.Errorf("ordinary text is protected: %v, %v", r.Protected, err)
	}
}
