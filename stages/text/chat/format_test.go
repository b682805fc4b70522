package chat

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"krater/stages/text/grammar"
	"krater/stages/text/toolcall"
)

const weatherTool = `{"type":"function","function":{"name":"get_weather","description":"d","parameters":{"type":"object","properties":{` +
	`"city":{"type":"string","description":"d"},"days":{"type":"integer","description":"d"},"tags":{"type":"array","description":"d","items":{"type":"string"}}},"required":["city"]}}}`

// weatherCalls are two calls as a client's history has them.
const weatherCalls = `[{"id":"abcdefgh1","type":"function","function":{"name":"get_weather","arguments":"{\"city\": \"Köln \\\"x\\\" 🦀\\n<b>\", \"days\": 2, \"tags\": [\"a\", \"b\"]}"}},` +
	`{"id":"abcdefgh2","type":"function","function":{"name":"get_weather","arguments":"{\"city\": \"12\"}"}}]`

// answered takes a model's text apart and returns it as a client sees it.
func answered(p *toolcall.Parser, text string) (answer string, calls []string) {
	for _, events := range [][]toolcall.Event{append([]toolcall.Event{}, p.Push(text)...), p.Flush()} {
		for _, e := range events {
			switch e.Kind {
			case toolcall.Text:
				answer += e.Text
			case toolcall.Call:
				calls = append(calls, e.Text+" ")
			case toolcall.Arguments:
				calls[len(calls)-1] += e.Text
			}
		}
	}
	return answer, calls
}

// byteTokens is a vocabulary of single bytes and an end.
var byteTokens = grammar.NewVocabulary(257, func(id int32) []byte {
	if id == 256 {
		return nil
	}
	return []byte{byte(id)}
}, []int32{256})

// demanded returns the longest beginning of a text that is an answer where calls are demanded.
func demanded(t *testing.T, c *Template, text string) string {
	t.Helper()
	s := &toolcall.Speaker{Rules: &grammar.Rules{}, Spell: grammar.Text, Tools: []byte(`[` + weatherTool + `]`)}
	calls, err := c.Speech().Calls(s)
	if err != nil {
		t.Fatal(err)
	}
	g, err := grammar.New(s.Rules, s.Rules.Add(c.Speech().Answer(s, calls, false)), byteTokens)
	if err != nil {
		t.Fatal(err)
	}
	m, whole := g.Matcher(), 0
	for i := range len(text) {
		if m.Accept(int32(text[i])) != nil {
			break
		}
		if m.Complete() {
			whole = i + 1
		}
	}
	return text[:whole]
}

// same reports whether two calls have the same name and arguments, in whatever order.
func same(a, b string) bool {
	nameA, argsA, _ := strings.Cut(a, " ")
	nameB, argsB, _ := strings.Cut(b, " ")
	var x, y any
	if json.Unmarshal([]byte(argsA), &x) != nil || json.Unmarshal([]byte(argsB), &y) != nil {
		return false
	}
	return nameA == nameB && fmt.Sprint(x) == fmt.Sprint(y)
}

// otherForms are templates whose calls have a form that is not known, or that judge a conversation.
var otherForms = []string{"Kimi-K3", "DeepSeek-V4.1", "Beam", "cogito_3b", "firefunction", "guard", "shieldgemma"}

// otherSpellings are templates that write calls as the model does, but not all around them: gpt-oss names the recipient before the channel, and
// others have more blanks, or text of the prompt in a history.
var otherSpellings = []string{"gpt-oss", "xinference-DeepSeek-V3.2", "xinference-Deepseek-V3.1", "mixtral_8x22b"}

// TestCallsOfTemplates renders a history with calls by every real template of a format that is known,
// and takes the text apart again. The grammar of calls that are demanded takes the text, too.
func TestCallsOfTemplates(t *testing.T) {
	sources := allTemplates(t)
	seen := map[string]int{}
	for _, name := range names(sources) {
		c, err := Compile(sources[name], Options{BOS: "<s>", EOS: "</s>", Now: fixedNow})
		if err != nil {
			t.Fatal(err)
		}
		known := c.format.Name() != "hermes" || c.traits.noTools || strings.Contains(sources[name], "<tool_call>")
		if !known || slices.ContainsFunc(otherForms, func(s string) bool { return strings.Contains(name, s) }) {
			continue
		}
		calls, want := weatherCalls, 2
		if c.format.Name() == "kimi_k2" { // the model's own ids have the name
			calls = strings.NewReplacer("abcdefgh1", "functions.get_weather:0", "abcdefgh2", "functions.get_weather:1").Replace(calls)
		}
		if c.format.Name() == "harmony" || c.format.Name() == "llama3" { // these templates write one call a message
			calls, want = calls[:strings.Index(calls, `,{"id":"abcdefgh2"`)]+"]", 1
		}
		user := `{"role":"user","content":"u"}`
		prompt, err := c.Render(Conversation{Messages: []byte(`[` + user + `]`), Tools: []byte(`[` + weatherTool + `]`), AddGenerationPrompt: true})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		whole, err := c.Render(Conversation{Messages: []byte(`[` + user + `,{"role":"assistant","content":"","tool_calls":` + calls + `}]`), Tools: []byte(`[` + weatherTool + `]`)})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		n := 0
		for n < min(len(prompt.Text), len(whole.Text)) && prompt.Text[n] == whole.Text[n] {
			n++
		}
		if tag := strings.LastIndexByte(whole.Text[:n], '<'); tag >= 0 && !strings.Contains(whole.Text[tag:n], ">") {
			n = tag
		}
		text := whole.Text[n:]
		special := func(s string) bool { return strings.HasPrefix(s, "<|") }
		p := c.Parser(toolcall.Options{Tools: []byte(`[` + weatherTool + `]`), Special: special, Inside: c.format.Opens(prompt.Text[:n])})
		_, got := answered(p, text)
		if len(got) != want || !same(got[0], `get_weather {"city": "Köln \"x\" 🦀\n<b>", "days": 2, "tags": ["a", "b"]}`) || want > 1 && !same(got[1], `get_weather {"city": "12"}`) {
			t.Errorf("%s (%s): %q gives %q", name, c.format.Name(), text, got)
			continue
		}
		seen[c.format.Name()]++
		if slices.ContainsFunc(otherSpellings, func(s string) bool { return strings.Contains(name, s) }) {
			continue
		}
		if end := c.format.Closing(); end != "" && strings.Contains(text, end) { // the prompt has the reasoning's beginning
			text = text[strings.LastIndex(text, end)+len(end):]
		}
		text = strings.Replace(text, "['a', 'b']", `["a", "b"]`, 1)
		fits := demanded(t, c, text)
		if _, got := answered(c.Parser(toolcall.Options{Tools: []byte(`[` + weatherTool + `]`), Special: special}), fits); len(got) != want {
			t.Errorf("%s (%s): of %q the grammar of calls takes %q", name, c.format.Name(), text, fits)
		}
	}
	for _, name := range []string{"harmony", "kimi_k2", "deepseek_v32", "deepseek_v3", "minimax_m3", "minimax_m2", "gemma4", "mistral", "glm4", "qwen3_coder", "hermes", "llama3"} {
		if seen[name] == 0 {
			t.Errorf("no template of format %s", name)
		}
	}
	t.Log(seen)
}
