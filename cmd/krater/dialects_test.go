package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// dialects are the ways to ask by the APIs of others, and with a conversation of the Responses API.
var dialects = []route{
	{"messages", false, post("/v1/messages", reader{false, readMessage})},
	{"messages stream", false, post("/v1/messages", reader{true, readMessageEvents})},
	{"ollama chat", false, post("/api/chat", reader{false, readLine})},
	{"ollama chat stream", false, post("/api/chat", reader{true, readLines})},
	{"ollama generate", true, post("/api/generate", reader{false, readLine})},
	{"ollama generate stream", true, post("/api/generate", reader{true, readLines})},
	{"conversation", false, askConversation},
}

// everyRoute returns all ways to ask.
func everyRoute() []route { return slices.Concat(routes, dialects) }

// takes reports whether a way has a place for all fields of a question.
func (r route) takes(q question) bool {
	for name := range q.fields {
		if strings.HasPrefix(r.name, "ollama") && ollamaOptions[name] == "" {
			return false
		}
	}
	return true
}

// ollamaOptions are the options of the Ollama API by the fields' common names.
var ollamaOptions = map[string]string{
	"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repeat_penalty",
	"presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty", "seed": "seed", "stop": "stop",
}

// dialect is the question as the route of another API at path wants it, nil for the others.
func (q question) dialect(path string, stream bool) map[string]any {
	messages := []any{map[string]any{"role": "user", "content": q.text}}
	if path == "/v1/messages" {
		b := map[string]any{"messages": messages, "stream": stream, "max_tokens": 2048}
		if q.max != 0 {
			b["max_tokens"] = q.max
		}
		maps.Copy(b, q.fields)
		return b
	}
	if !strings.HasPrefix(path, "/api/") {
		return nil
	}
	options := map[string]any{}
	for name, value := range q.fields {
		options[ollamaOptions[name]] = value
	}
	if q.max != 0 {
		options["num_predict"] = q.max
	}
	b := map[string]any{"stream": stream, "options": options}
	if path == "/api/chat" {
		b["messages"] = messages
	} else {
		b["prompt"], b["raw"] = q.text, true
	}
	return b
}

// message is an answer, or an event of one, of the Anthropic API.
type message struct {
	Type    string
	Message *message
	Content []struct{ Type, Text string }
	Stop    string `json:"stop_reason"`
	Delta   struct {
		Type, Text string
		Stop       string `json:"stop_reason"`
	}
	Usage struct {
		Input  int `json:"input_tokens"`
		Cached int `json:"cache_read_input_tokens"`
		Output int `json:"output_tokens"`
	}
	Error struct{ Type, Message string }
}

// finishes are the words of the other routes for the ends of a message.
var finishes = map[string]string{"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}

func readMessage(in io.Reader, see watcher) (reply, error) {
	var m message
	if err := json.NewDecoder(in).Decode(&m); err != nil {
		return reply{}, err
	}
	r := reply{finish: finishes[m.Stop], prompt: m.Usage.Input + m.Usage.Cached, completion: m.Usage.Output}
	for _, block := range m.Content {
		r.text += block.Text
	}
	if m.Type != "message" || r.finish == "" || r.prompt == 0 {
		return r, fmt.Errorf("a message %+v", m)
	}
	return r, see(r.text)
}

// readMessageEvents: message_start comes first, message_stop last, and one message_delta has the end.
func readMessageEvents(in io.Reader, see watcher) (reply, error) {
	var r reply
	last := ""
	err := events(in, func(name, data string) error {
		var m message
		if err := json.Unmarshal([]byte(data), &m); err != nil || m.Type != name {
			return fmt.Errorf("event %s holds %s: %w", name, data, err)
		}
		if (last == "") != (name == "message_start") || last == "message_stop" {
			return fmt.Errorf("%s after %q", name, last)
		}
		switch last = name; name {
		case "error":
			return &refusal{message: m.Error.Message, code: m.Error.Type}
		case "content_block_delta":
			r.text += m.Delta.Text
			r.deltas++
			return see(m.Delta.Text)
		case "message_delta":
			r.finish, r.completion, r.prompt = finishes[m.Delta.Stop], m.Usage.Output, m.Usage.Input+m.Usage.Cached
		}
		return nil
	})
	if err == nil && (last != "message_stop" || r.finish == "") {
		err = fmt.Errorf("the stream ends with %q", last)
	}
	return r, err
}

// line is an answer or a line of one of the Ollama API.
type line struct {
	Message    struct{ Content string }
	Response   string
	Done       bool
	DoneReason string `json:"done_reason"`
	Prompt     int    `json:"prompt_eval_count"`
	Completion int    `json:"eval_count"`
	Error      string
}

func (l *line) into(r *reply) error {
	text := l.Message.Content + l.Response
	r.text += text
	if l.Done {
		r.finish, r.prompt, r.completion = l.DoneReason, l.Prompt, l.Completion
	}
	if l.Error != "" {
		return &refusal{message: l.Error}
	}
	return nil
}

func readLine(in io.Reader, see watcher) (reply, error) {
	var l line
	var r reply
	if err := json.NewDecoder(in).Decode(&l); err != nil {
		return r, err
	}
	if err := l.into(&r); err != nil || !l.Done {
		return r, fmt.Errorf("an answer %+v: %w", l, err)
	}
	return r, see(r.text)
}

func readLines(in io.Reader, see watcher) (reply, error) {
	var r reply
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil || r.finish != "" {
			return r, fmt.Errorf("%q after the finish %q: %w", lines.Text(), r.finish, err)
		}
		if err := l.into(&r); err != nil {
			return r, err
		}
		if text := l.Message.Content + l.Response; text != "" {
			r.deltas++
			if err := see(text); err != nil {
				return r, err
			}
		}
	}
	if lines.Err() == nil && r.finish == "" {
		return r, io.ErrUnexpectedEOF
	}
	return r, lines.Err()
}

// askConversation asks within a conversation of its own, and forgets it.
func askConversation(ctx context.Context, s *site, q question, see watcher) (reply, error) {
	send := func(method, path, body string) (id string, err error) {
		req, err := http.NewRequestWithContext(ctx, method, s.base+path, strings.NewReader(body))
		if err != nil {
			return "", err
		}
		s.dress(req)
		res, err := s.http.Do(req)
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return "", readRefusal(res)
		}
		var made struct{ ID string }
		return made.ID, json.NewDecoder(res.Body).Decode(&made)
	}
	id, err := send("POST", "/v1/conversations", "{}")
	if err != nil {
		return reply{}, err
	}
	got, err := post("/v1/responses", wholeResponse)(ctx, s, q.with("conversation", id), see)
	_, gone := send("DELETE", "/v1/conversations/"+id, "")
	return got, errors.Join(err, gone)
}

// TestDialectsGiveTheSame: the API is not part of the question either.
func TestDialectsGiveTheSame(t *testing.T) {
	s := open(t)
	for _, q := range []question{
		greedy(lighthouse, 12), greedy(lighthouse, 30).with("stop", []string{"tower", "ship"}),
		greedy(lighthouse, 12).with("temperature", 2).with("seed", 7).with("top_k", 40).with("repetition_penalty", 1.2),
	} {
		want := map[bool]reply{false: s.reply(t, routes[0], q), true: s.reply(t, routes[2], q)}
		for _, r := range dialects {
			if got := s.reply(t, r, q); !same(got, want[r.raw]) {
				t.Errorf("%s: %v of %d and %d tokens, by the OpenAI API %v of %d and %d", r.name, got, got.prompt, got.completion, want[r.raw], want[r.raw].prompt, want[r.raw].completion)
			}
		}
	}
}
