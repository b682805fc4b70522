package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"krater/cmd/krater/console"
)

const (
	bosText  = "<｜begin▁of▁sentence｜>"
	rendered = bosText + "<｜User｜>" + lighthouse + "<｜Assistant｜>"
)

// textAnswer is an answer of /v1/completions.
type textAnswer struct {
	Choices []struct {
		Text         string
		FinishReason string `json:"finish_reason"`
		Logprobs     *struct {
			Tokens        []string
			TokenLogprobs []*float64 `json:"token_logprobs"`
			TextOffset    []int      `json:"text_offset"`
		}
		PromptLogprobs []map[string]struct{ Logprob float64 } `json:"prompt_logprobs"`
	}
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
}

func completion(t testing.TB, s *site, fields map[string]any) textAnswer {
	t.Helper()
	if _, ok := fields["temperature"]; !ok {
		fields["temperature"] = 0
	}
	return post200[textAnswer](t, s, "/v1/completions", fields)
}

// TestRenderedPrompt: the text of a conversation as the template renders it gives the ids,
// and the answer, of that conversation, with one begin token.
func TestRenderedPrompt(t *testing.T) {
	s := open(t)
	conversation := map[string]any{"messages": []any{map[string]any{"role": "user", "content": lighthouse}}}
	text := post200[struct{ Prompt string }](t, s, "/apply-template", conversation).Prompt
	if text != rendered {
		t.Fatalf("%q", text)
	}
	chat := post200[tokens](t, s, "/tokenize", conversation)
	raw := post200[tokens](t, s, "/tokenize", map[string]any{"prompt": text, "parse_special": true})
	if !slices.Equal(chat.Tokens, raw.Tokens) {
		t.Errorf("the conversation is %v, its text %v", chat.Tokens, raw.Tokens)
	}
	want := readGolden(t).Prompts[0].Answer
	for _, prompt := range []any{text, []string{text}, strings.TrimPrefix(text, bosText)} {
		if got := completion(t, s, map[string]any{"prompt": prompt}); got.Choices[0].Text != want || got.Usage.Prompt != chat.Count {
			t.Errorf("%v: %q after %d tokens, want %q after %d", prompt, got.Choices[0].Text, got.Usage.Prompt, want, chat.Count)
		}
	}
	for _, c := range []struct {
		prompt string
		more   string
		tokens int
	}{
		{text, "", chat.Count},
		{strings.TrimPrefix(text, bosText), "", chat.Count},
		{strings.TrimPrefix(text, bosText), `"add_special_tokens":false`, chat.Count - 1},
		{text, `"add_special_tokens":false`, chat.Count},
		{bosText + bosText, "", 2},
		{bosText, `"parse_special":false`, 1 + post200[tokens](t, s, "/tokenize", map[string]any{"prompt": bosText, "add_special_tokens": false}).Count},
	} {
		fields := map[string]any{"prompt": c.prompt, "max_tokens": 1}
		if c.more != "" {
			if err := json.Unmarshal([]byte("{"+c.more+"}"), &fields); err != nil {
				t.Fatal(err)
			}
		}
		if got := completion(t, s, fields); got.Usage.Prompt != c.tokens {
			t.Errorf("%q with %s: %d tokens, want %d", c.prompt, c.more, got.Usage.Prompt, c.tokens)
		}
	}
	// A user's words stay words.
	said := post200[tokens](t, s, "/tokenize", map[string]any{"messages": []any{map[string]any{"role": "user", "content": bosText}}})
	if n := len(said.Tokens); slices.Contains(said.Tokens[1:n], said.Tokens[0]) {
		t.Errorf("a begin token came out of a message: %v", said.Tokens)
	}
	args := []string{"run", "--raw", "--temperature", "0", "--threads", "1", "--ids", "--max-tokens", "8"}
	if got, want := answers(t, "", append(args, text)...), answers(t, "", append(slices.Delete(slices.Clone(args), 1, 2), lighthouse)...); got != want {
		t.Errorf("krater run --raw gives %s, the question %s", got, want)
	}
}

// TestPromptOnly: with max_tokens 0 a prompt is repeated and scored, up to the whole
// context, and no token is made.
func TestPromptOnly(t *testing.T) {
	s := open(t)
	const text = rendered + "A tower 日本 \u2028 with a light."
	one := completion(t, s, map[string]any{"prompt": text, "echo": true, "logprobs": 1, "max_tokens": 1}).Choices[0]
	zero := completion(t, s, map[string]any{"prompt": text, "echo": true, "logprobs": 1, "max_tokens": 0})
	c := zero.Choices[0]
	n := len(c.Logprobs.Tokens)
	if c.Text != text || c.FinishReason != "length" || zero.Usage.Completion != 0 || zero.Usage.Prompt != n || n != len(one.Logprobs.Tokens)-1 {
		t.Fatalf("%+v, usage %+v", c, zero.Usage)
	}
	if c.Logprobs.TokenLogprobs[0] != nil {
		t.Error("the first token has a log-probability")
	}
	for i := range c.Logprobs.Tokens {
		a, b := c.Logprobs.TokenLogprobs[i], one.Logprobs.TokenLogprobs[i]
		if c.Logprobs.Tokens[i] != one.Logprobs.Tokens[i] || (a == nil) != (b == nil) || a != nil && math.Abs(*a-*b) > 1e-4 {
			t.Errorf("token %d differs: %v %v", i, a, b)
		}
	}
	// Each token stands in the text where its offset says.
	for i, token := range c.Logprobs.Tokens {
		rest := string([]rune(text)[c.Logprobs.TextOffset[i]:])
		if !strings.HasPrefix(token, "bytes:") && !strings.HasPrefix(rest, token) {
			t.Errorf("token %d %q stands at %d: %q", i, token, c.Logprobs.TextOffset[i], rest)
		}
	}
	ids := make([]int, 2048)
	for i := range ids {
		ids[i] = 100 + i%50
	}
	full := completion(t, s, map[string]any{"prompt": ids, "prompt_logprobs": 0, "max_tokens": 0, "n": 2})
	if len(full.Choices) != 2 || len(full.Choices[1].PromptLogprobs) != len(ids) || full.Choices[0].Text != "" || full.Usage.Completion != 0 {
		t.Errorf("%d choices, usage %+v", len(full.Choices), full.Usage)
	}
	status, _, stream := s.do("POST", "/v1/completions", `{"prompt":"a b","echo":true,"logprobs":0,"max_tokens":0,"stream":true,"stream_options":{"include_usage":true}}`)
	if status != 200 || !strings.Contains(stream, `"finish_reason":"length"`) || !strings.Contains(stream, `"completion_tokens":0`) || !strings.HasSuffix(stream, "data: [DONE]\n\n") {
		t.Errorf("%d %s", status, stream)
	}
	// Without log-probabilities, and where the model would end at once.
	if got := completion(t, s, map[string]any{"prompt": rendered + "x", "echo": true, "max_tokens": 0, "logit_bias": map[string]int{"1": 100}}); got.Choices[0].Text != rendered+"x" || got.Choices[0].FinishReason != "length" {
		t.Errorf("%+v", got.Choices[0])
	}
}

// TestOffsetsOfBrokenText: offsets count characters of the text that was sent, in which
// U+FFFD stands for what is not UTF-8.
func TestOffsetsOfBrokenText(t *testing.T) {
	s := open(t)
	var ids []int32
	for _, b := range []byte("\xf0\x9f\x41\xff\x42\xe2\x82") {
		ids = append(ids, rawByte(t, s, b))
	}
	got := completion(t, s, map[string]any{"prompt": ids, "echo": true, "logprobs": 1, "max_tokens": 4, "ignore_eos": true}).Choices[0]
	if want := "[0 0 1 2 3 4 4 5]"; !strings.HasPrefix(got.Text, "\uFFFDA\uFFFDB\uFFFD") || fmt.Sprint(got.Logprobs.TextOffset[:8]) != want {
		t.Errorf("%q has offsets %v, want %s", got.Text, got.Logprobs.TextOffset, want)
	}
	for i, at := range got.Logprobs.TextOffset {
		if token := got.Logprobs.Tokens[i]; at >= utf8.RuneCountInString(got.Text) || !strings.HasPrefix(token, "bytes:") && !strings.HasPrefix(string([]rune(got.Text)[at:]), token) {
			t.Errorf("token %d %q stands at %d of %q", i, token, at, got.Text)
		}
	}
}

// rawByte is the token of a single byte.
func rawByte(t *testing.T, s *site, b byte) int32 {
	t.Helper()
	tok, err := openTokenizer("")
	if err != nil {
		t.Fatal(err)
	}
	for id := range int32(tok.VocabSize()) {
		if text, ok := tok.TokenBytes(id); ok && len(text) == 1 && text[0] == b {
			return id
		}
	}
	t.Fatalf("no token for the byte %x", b)
	return 0
}

// TestExtremes: every value within the documented ranges is answered, beyond them it is a
// 400 that names the field; none is a 500.
func TestExtremes(t *testing.T) {
	s := open(t)
	type extreme struct {
		field string
		value string
		taken bool
	}
	var all []extreme
	for field, values := range map[string][2]string{
		"temperature":        {"0 5e-324 1e-300 1e-6 0.00001 2", "2.0000001 1e300 -5e-324 -1"},
		"top_p":              {"5e-324 1e-300 1e-38 1", "0 -0.0 1.0000001 1e300 -1e-300"},
		"top_k":              {"-1 0 1 2147483648 9223372036854775807", "-2 -9223372036854775808"},
		"min_p":              {"0 5e-324 1", "1.0000001 -5e-324 1e300"},
		"repetition_penalty": {"0.01 10", "1e-38 1e-300 5e-324 0 0.0099 10.1 1e300 -1"},
		"presence_penalty":   {"-2 2 5e-324", "2.1 -2.1 1e300"},
		"frequency_penalty":  {"-2 2 5e-324", "2.1 -2.1 1e300"},
		"logit_bias":         {`{"5":100} {"5":-100} {"5":5e-324,"6":-5e-324}`, `{"5":100.1} {"5":-1e300} {"99999999":1} {"-1":1}`},
		"seed":               {"0 -1 9223372036854775807 -9223372036854775808", "9223372036854775808 1e3 0.5"},
		"stop_token_ids":     {"[0] [1,1]", "[2147483647] [2147483648] [-1]"},
		"min_tokens":         {"0 2", "-1 3 9223372036854775807 9223372036854775808"},
		"priority":           {"-1000 1000", "-1001 9223372036854775807"},
		"stop":               {`"" "x" []`, `[""] ["x",""] 0`},
	} {
		for i, list := range values {
			for value := range strings.FieldsSeq(list) {
				all = append(all, extreme{field, value, i == 0})
			}
		}
	}
	for _, route := range []struct{ path, body string }{
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"What is a lighthouse?"}],"max_tokens":2,"n":2,"logprobs":true,"top_logprobs":20`},
		{"/v1/completions", `{"prompt":"What is a lighthouse?","max_tokens":2,"logprobs":20`},
		{"/v1/responses", `{"input":"What is a lighthouse?","max_output_tokens":2,"store":false`},
	} {
		for _, e := range all {
			more := ""
			if e.field != "temperature" {
				more = `,"temperature":1`
			}
			status, _, text := s.do("POST", route.path, fmt.Sprintf("%s,%q:%s%s}", route.body, e.field, e.value, more))
			if e.taken && status != 200 || !e.taken && (status != 400 || !strings.Contains(text, `"param":"`+e.field)) {
				t.Errorf("%s with %s %s: %d %.300s", route.path, e.field, e.value, status, text)
			}
		}
	}
}

// TestLogLines: a line of the log is a line for every reader, whatever a client sent.
func TestLogLines(t *testing.T) {
	var out bytes.Buffer
	c := serveCmd{LogLevel: "info", LogFormat: "json"}
	log, err := c.Logger(&console.Env{Err: &out})
	if err != nil {
		t.Fatal(err)
	}
	log.Info().Str("path", "/a\u0085b\u2028c\u2029").Msg("request")
	if text := out.String(); strings.ContainsAny(text, "\u0085\u2028\u2029") || !strings.Contains(text, `"/a\u0085b\u2028c\u2029"`) {
		t.Errorf("%q", text)
	}
}
