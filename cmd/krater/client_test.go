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
	"strconv"
	"strings"
	"time"
)

// The clients of the tests read strictly: what API.md says of streams is
// checked on every answer any test asks for.

// question is a request in the terms that every route has.
type question struct {
	text   string         // the user's message, or a raw prompt
	raw    bool           // for /v1/completions
	max    int            // tokens of the answer; 0: as many as fit
	forget bool           // the Responses API is asked to keep nothing
	fields map[string]any // sampling fields by their common names
}

// greedy asks for the most likely answer.
func greedy(text string, max int) question {
	return question{text: text, max: max, fields: map[string]any{"temperature": 0}}
}

// with returns the question with another field.
func (q question) with(name string, value any) question {
	q.fields = maps.Clone(q.fields)
	q.fields[name] = value
	return q
}

// reply is an answer as a client put it together.
type reply struct {
	text               string
	deltas             int // pieces it came in, 0 if whole
	finish             string
	prompt, completion int // tokens
}

func (r reply) String() string { return fmt.Sprintf("%q (%s)", r.text, r.finish) }

// refusal is an error answer of the server.
type refusal struct {
	status  int
	code    string
	param   string
	message string
	retry   time.Duration
}

func (r *refusal) Error() string {
	return fmt.Sprintf("%d %s (%s): %s", r.status, r.code, r.param, r.message)
}

// errLeft ends a client that has seen enough.
var errLeft = errors.New("the client has left")

// watcher sees every piece of text as it comes; with an error the client leaves.
type watcher func(delta string) error

func idle(string) error { return nil }

// route is one way to ask.
type route struct {
	name string
	raw  bool // takes raw prompts instead of messages
	ask  func(context.Context, *site, question, watcher) (reply, error)
}

// routes are the ways of the OpenAI API. The answer to a question does not depend on the way,
// apart from raw ones.
var routes = []route{
	{"chat", false, post("/v1/chat/completions", wholeChat)},
	{"chat stream", false, post("/v1/chat/completions", streamChat)},
	{"completions", true, post("/v1/completions", wholeText)},
	{"completions stream", true, post("/v1/completions", streamText)},
	{"responses", false, post("/v1/responses", wholeResponse)},
	{"responses stream", false, post("/v1/responses", streamResponse)},
	{"websocket", false, askSocket},
}

// streams are the routes that take a question and whose text comes in pieces.
func streams(q question) []route {
	var out []route
	for _, r := range everyRoute() {
		if r.takes(q) && (strings.Contains(r.name, "stream") || r.name == "websocket") {
			out = append(out, r)
		}
	}
	return out
}

// body is the question as the route at path wants it.
func (q question) body(path string, stream bool) map[string]any {
	if b := q.dialect(path, stream); b != nil {
		return b
	}
	b := maps.Clone(q.fields)
	if b == nil {
		b = map[string]any{}
	}
	limit := "max_tokens"
	switch path {
	case "/v1/chat/completions":
		b["messages"] = []any{map[string]any{"role": "user", "content": q.text}}
	case "/v1/completions":
		b["prompt"] = q.text
	default:
		b["input"], limit = q.text, "max_output_tokens"
		if q.forget {
			b["store"] = false
		}
	}
	if q.max != 0 {
		b[limit] = q.max
	}
	if stream {
		b["stream"] = true
		if path != "/v1/responses" {
			b["stream_options"] = map[string]any{"include_usage": true}
		}
	}
	return b
}

// reader puts one kind of answer together.
type reader struct {
	stream bool
	read   func(io.Reader, watcher) (reply, error)
}

// post makes the way over HTTP to a path.
func post(path string, r reader) func(context.Context, *site, question, watcher) (reply, error) {
	return func(ctx context.Context, s *site, q question, see watcher) (reply, error) {
		ctx, leave := context.WithCancel(ctx)
		defer leave()
		data, err := json.Marshal(q.body(path, r.stream))
		if err != nil {
			return reply{}, err
		}
		req, err := http.NewRequestWithContext(ctx, "POST", s.base+path, strings.NewReader(string(data)))
		if err != nil {
			return reply{}, err
		}
		s.dress(req)
		res, err := s.http.Do(req)
		if err != nil {
			return reply{}, err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return reply{}, readRefusal(res)
		}
		kind, want := res.Header.Get("Content-Type"), "application/json"
		switch {
		case r.stream && strings.HasPrefix(path, "/api/"):
			want = "application/x-ndjson"
		case r.stream:
			want = "text/event-stream"
		}
		if !strings.HasPrefix(kind, want) {
			return reply{}, fmt.Errorf("the answer is %q, want %s", kind, want)
		}
		return r.read(res.Body, see)
	}
}

func readRefusal(res *http.Response) error {
	var doc struct {
		Error struct{ Message, Type, Code, Param string }
	}
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	var plain struct{ Error string } // of the Ollama API
	if json.Unmarshal(data, &plain) == nil && plain.Error != "" {
		doc.Error.Message, doc.Error.Type = plain.Error, "error"
	} else if err := json.Unmarshal(data, &doc); err != nil || doc.Error.Message == "" || doc.Error.Type == "" {
		return fmt.Errorf("status %d with %q, which is no error object", res.StatusCode, data)
	}
	r := &refusal{status: res.StatusCode, code: doc.Error.Code, param: doc.Error.Param, message: doc.Error.Message}
	if after := res.Header.Get("Retry-After"); after != "" {
		n, err := strconv.Atoi(after)
		if err != nil {
			return err
		}
		r.retry = time.Duration(n) * time.Second
	}
	if res.StatusCode == http.StatusTooManyRequests && r.retry == 0 {
		return errors.New("a 429 without Retry-After")
	}
	return r
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

func (u *usage) into(r *reply) error {
	if u == nil || u.Prompt+u.Completion != u.Total || u.Prompt == 0 {
		return fmt.Errorf("the usage is %+v", u)
	}
	r.prompt, r.completion = u.Prompt, u.Completion
	return nil
}

var (
	wholeChat  = reader{false, readWhole}
	wholeText  = reader{false, readWhole}
	streamChat = reader{true, func(in io.Reader, see watcher) (reply, error) { return readChunks(in, see, true) }}
	streamText = reader{true, func(in io.Reader, see watcher) (reply, error) { return readChunks(in, see, false) }}
)

func readWhole(in io.Reader, see watcher) (reply, error) {
	var doc struct {
		Choices []struct {
			Text         string
			Message      struct{ Role, Content string }
			FinishReason string `json:"finish_reason"`
		}
		Usage *usage
	}
	if err := json.NewDecoder(in).Decode(&doc); err != nil {
		return reply{}, err
	}
	if len(doc.Choices) != 1 {
		return reply{}, fmt.Errorf("%d choices", len(doc.Choices))
	}
	c := doc.Choices[0]
	r := reply{text: c.Text + c.Message.Content, finish: c.FinishReason}
	if err := see(r.text); err != nil {
		return r, err
	}
	return r, doc.Usage.into(&r)
}

// chunk is a stream event of chat or text completions.
type chunk struct {
	Choices []struct {
		Text  string
		Delta struct {
			Role    string
			Content *string
		}
		FinishReason *string `json:"finish_reason"`
	}
	Usage *usage
	Error *struct{ Message string }
}

// readChunks holds a stream to the rules: the role first and once, one chunk
// with a finish reason and nothing after it but the usage, then [DONE].
func readChunks(in io.Reader, see watcher, chat bool) (reply, error) {
	var r reply
	counted, roles := false, 0
	err := events(in, func(_, data string) error {
		var c chunk
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			return fmt.Errorf("%s: %w", data, err)
		}
		switch {
		case c.Error != nil:
			return &refusal{message: c.Error.Message}
		case len(c.Choices) == 0:
			if counted || r.finish == "" {
				return fmt.Errorf("a usage chunk too many or too early: %s", data)
			}
			counted = true
			return c.Usage.into(&r)
		case c.Usage != nil:
			return fmt.Errorf("usage on a chunk with choices: %s", data)
		case r.finish != "":
			return fmt.Errorf("a chunk after the one with the finish reason: %s", data)
		}
		choice := c.Choices[0]
		if choice.FinishReason != nil {
			if r.finish = *choice.FinishReason; r.finish == "" {
				return errors.New("an empty finish_reason")
			}
		}
		text := choice.Text
		if choice.Delta.Content != nil {
			text += *choice.Delta.Content
		}
		if choice.Delta.Role != "" {
			if roles++; roles > 1 || r.deltas > 0 {
				return fmt.Errorf("a second or late role: %s", data)
			}
		}
		if text == "" {
			return nil
		}
		r.text += text
		r.deltas++
		return see(text)
	})
	switch {
	case err != nil:
		return r, err
	case !counted || r.finish == "" || chat && roles != 1:
		return r, fmt.Errorf("the stream ended with finish reason %q, usage %v, %d roles", r.finish, counted, roles)
	}
	return r, nil
}

// events calls f for every event of a stream. Chat streams end with [DONE],
// which f does not see; others with the connection.
func events(in io.Reader, f func(name, data string) error) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	name, done, responses := "", false, false
	for lines.Scan() {
		line := lines.Text()
		switch {
		case line == "" || line[0] == ':':
			continue
		case done:
			return fmt.Errorf("after [DONE]: %s", line)
		case line == "data: [DONE]":
			done = true
			continue
		}
		if value, ok := strings.CutPrefix(line, "event: "); ok {
			name, responses = value, true
			continue
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			return fmt.Errorf("a foreign line: %q", line)
		}
		if err := f(name, data); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if done == responses {
		return io.ErrUnexpectedEOF
	}
	return nil
}
