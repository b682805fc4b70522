package api

import (
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"math"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"krater/actors/engine"
)

func TestErrorForm(t *testing.T) {
	got := string(Marshal(BadRequest(CodeInvalidValue, "n", "no <b>")))
	if want := `{"error":{"message":"no <b>","type":"invalid_request_error","param":"n","code":"invalid_value"}}`; got != want {
		t.Errorf("%s", got)
	}
	got = string(Marshal(Internal()))
	if want := `{"error":{"message":"internal server error","type":"server_error","param":null,"code":null}}`; got != want {
		t.Errorf("%s", got)
	}
}

func TestFromEngine(t *testing.T) {
	for _, c := range []struct {
		in         error
		status     int
		kind, code string
	}{
		{&engine.Error{Kind: engine.Internal, Message: "x"}, 500, TypeServer, ""},
		{&engine.Error{Kind: engine.BadRequest, Message: "x", Param: "p"}, 400, TypeInvalidRequest, CodeInvalidValue},
		{&engine.Error{Kind: engine.ContextLength, Message: "x"}, 400, TypeInvalidRequest, CodeContextLength},
		{&engine.Error{Kind: engine.Overloaded, Message: "x"}, 429, TypeRateLimit, CodeOverloaded},
		{&engine.Error{Kind: engine.Unavailable, Message: "x"}, 503, TypeServer, CodeUnavailable},
		{&engine.Error{Kind: engine.Cancelled, Message: "x"}, 499, TypeServer, CodeCancelled},
		{&engine.Error{Kind: engine.Timeout, Message: "x"}, 408, TypeServer, CodeTimeout},
		{fmt.Errorf("wrapped: %w", &engine.Error{Kind: engine.Overloaded, Message: "x"}), 429, TypeRateLimit, CodeOverloaded},
		{context.Canceled, 499, TypeServer, CodeCancelled},
		{context.DeadlineExceeded, 408, TypeServer, CodeTimeout},
		{errors.New("secret path /root"), 500, TypeServer, ""},
	} {
		e := FromEngine(c.in)
		if e.Status != c.status || e.Type != c.kind || e.Code != c.code || e.Message == "" {
			t.Errorf("%v: %+v", c.in, e)
		}
		if strings.Contains(e.Message, "secret") {
			t.Errorf("an untyped error reaches the client: %s", e.Message)
		}
	}
	if FromEngine(nil) != nil {
		t.Error("nil is no error")
	}
}

// TestLoadingIsTold: a refusal while the model is loading says how far the load is.
func TestLoadingIsTold(t *testing.T) {
	left := 1500 * time.Millisecond
	e := &engine.Error{Kind: engine.Unavailable, Message: "x", Loading: &engine.Loading{Phase: "load weights", Share: 0.25, Rate: "1.2 GB/s", Left: &left}}
	const body = `{"error":{"message":"x","type":"server_error","param":null,"code":"unavailable"}`
	if got, want := string(Marshal(FromEngine(e))), body+`,"phase":"load weights","share":0.25,"rate":"1.2 GB/s","left_seconds":1.5}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	e.Loading = &engine.Loading{Phase: "prepare"}
	if got, want := string(Marshal(FromEngine(e))), body+`,"phase":"prepare","share":0,"rate":""}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestRetryAfterRoundsUp(t *testing.T) {
	w := httptest.NewRecorder()
	FromEngine(&engine.Error{Kind: engine.Overloaded, Message: "x", RetryAfter: 1100 * time.Millisecond}).Write(w)
	if w.Code != 429 || w.Header().Get("Retry-After") != "2" {
		t.Errorf("%d %q", w.Code, w.Header().Get("Retry-After"))
	}
}

func TestEventWriter(t *testing.T) {
	w := httptest.NewRecorder()
	e := NewEventWriter(w, time.Second)
	if e.Opened() {
		t.Error("open before the first event")
	}
	for _, err := range []error{
		e.Data(map[string]any{"a": "x\ny"}), e.Event("ping", struct{}{}), e.Heartbeat(), e.Raw("", []byte("{}")), e.Done(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := "data: {\"a\":\"x\\ny\"}\n\nevent: ping\ndata: {}\n\n: keep-alive\n\ndata: {}\n\ndata: [DONE]\n\n"
	if got := w.Body.String(); got != want {
		t.Errorf("%q", got)
	}
	if !w.Flushed || w.Header().Get("Content-Type") != "text/event-stream; charset=utf-8" || !e.Opened() {
		t.Errorf("%v", w.Header())
	}
}

func TestIDs(t *testing.T) {
	a, b := NewID("x-"), NewID("x-")
	if a == b || len(a) != 34 || !strings.HasPrefix(a, "x-") {
		t.Errorf("%s %s", a, b)
	}
}

func TestLogprobs(t *testing.T) {
	inf := float32(math.Inf(-1))
	tokens := []engine.Token{
		{ID: 1, Text: []byte("a"), Logprob: -0.5, Top: []engine.TokenProb{{ID: 1, Text: []byte("a"), Logprob: -0.5}, {ID: 2, Text: []byte{0xe2}, Logprob: inf}}},
		{ID: 3, Text: []byte{0xf0, 0x9f}, Logprob: float32(math.NaN())},
		{ID: 4, Text: []byte{0x98, 0x80}, Logprob: 0},
		{ID: 5, Text: []byte("b"), Logprob: 0.25},
	}
	chat := string(Marshal(NewChatLogprobs(tokens)))
	for _, want := range []string{
		`{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[{"token":"a","logprob":-0.5,"bytes":[97]},{"token":"�","logprob":-9999,"bytes":[226]}]}`,
		`{"token":"�","logprob":-9999,"bytes":[240,159],"top_logprobs":[]}`,
		`{"token":"b","logprob":0,`,
	} {
		if !strings.Contains(chat, want) {
			t.Errorf("%s\nlacks %s", chat, want)
		}
	}
	var at TextOffsets
	first := NewTextLogprobs(&at, nil, tokens[:2])
	rest := NewTextLogprobs(&at, nil, tokens[2:])
	offsets := append(first.TextOffset, rest.TextOffset...)
	if fmt.Sprint(offsets) != "[0 1 1 2]" {
		t.Errorf("offsets %v", offsets)
	}
	if first.Tokens[1] != `bytes:\xf0\x9f` || len(first.TopLogprobs[0]) != 2 {
		t.Errorf("%+v", first)
	}
	if NewChatLogprobs(nil) != nil || NewTextLogprobs(&at, nil, nil) != nil {
		t.Error("no tokens is null")
	}
}

// TestTextOffsets: offsets count the characters of the text that is sent, in which each piece of a
// broken character is one U+FFFD, also at the end of the prompt.
func TestTextOffsets(t *testing.T) {
	tokens := func(texts ...string) (all []engine.Token) {
		for _, s := range texts {
			all = append(all, engine.Token{Text: []byte(s)})
		}
		return all
	}
	for _, c := range []struct {
		prompt, answer []engine.Token
		want           string
	}{
		{nil, tokens("\xf0", "\x9f", "A", "\xff", "B", "\xe2", "\x82"), "[0 0 1 2 3 4 4]"},
		{nil, tokens("\xf0\x9fA\xffB\xe2\x82", "C"), "[0 5]"},
		{nil, tokens("\xf0\x9f", "\xf0\x9f\x98", "\x80x", "y"), "[0 1 1 3]"},
		{nil, tokens("\xed", "\xa0", "\x80", "a"), "[0 1 2 3]"},
		{nil, tokens("\xc0\xaf", "a", "\xf8", "b"), "[0 2 3 4]"},
		{nil, tokens("\uFFFD", "a", "日", "b"), "[0 1 2 3]"},
		{tokens("a", "\xe6\x97"), tokens("\xa5", "b", "\xe6\x97", "\xa5", "c"), "[0 1 2 3 4 4 5]"},
		{append(tokens("<bos>", "a"), engine.Token{Text: []byte("<s>"), Hidden: true}), tokens("b"), "[0 5 6 6]"},
	} {
		var whole TextOffsets
		if got := fmt.Sprint(NewTextLogprobs(&whole, c.prompt, c.answer).TextOffset); got != c.want {
			t.Errorf("%v, %v: %s, want %s", c.prompt, c.answer, got, c.want)
		}
		var at TextOffsets
		var pieces []int
		for i := range c.prompt {
			pieces = append(pieces, NewTextLogprobs(&at, c.prompt[i:i+1], nil).TextOffset...)
		}
		for i := range c.answer {
			pieces = append(pieces, NewTextLogprobs(&at, nil, c.answer[i:i+1]).TextOffset...)
		}
		if got := fmt.Sprint(pieces); got != c.want {
			t.Errorf("one at a time: %s, want %s", got, c.want)
		}
	}
}

// TestOffsetsOfPrompt: where a tokenizer changed the prompt, its tokens are found in the text that
// is sent, and the answer begins behind it.
func TestOffsetsOfPrompt(t *testing.T) {
	for _, c := range []struct {
		prompt string
		tokens []string
		want   string // the last is the answer's
	}{
		{"a b", []string{"a", " b"}, "[0 1 3]"},
		{"Hello, you", []string{" Hello", ",", " you"}, "[0 5 6 10]"},                             // a space in front
		{"a  <s>\n b", []string{"a", "<s>", "b"}, "[0 3 8 9]"},                                    // stripped around an added token
		{"e\u0301 x", []string{"\u00e9", " x"}, "[0 2 4]"},                                        // normalised
		{"日本 a", []string{"\xe6", "\x97\xa5", "\xe6\x9c", "\xac a"}, "[0 0 1 1 4]"},               // in pieces
		{"\uFFFDA\uFFFDB\uFFFD", []string{"\xf0\x9f", "A", "\xff", "B", "\xe2"}, "[0 1 2 3 4 5]"}, // ids
		{"abc", []string{"xyz", "w"}, "[0 3 3]"},                                                  // nothing is found
	} {
		at := OffsetsOf(c.prompt)
		var got []int
		for _, s := range c.tokens {
			got = append(got, NewTextLogprobs(&at, []engine.Token{{Text: []byte(s)}}, nil).TextOffset...)
		}
		got = append(got, NewTextLogprobs(&at, nil, []engine.Token{{Text: []byte("!")}}).TextOffset...)
		if fmt.Sprint(got) != c.want {
			t.Errorf("%q as %q: %v, want %s", c.prompt, c.tokens, got, c.want)
		}
	}
}

// TestSeparators: no answer holds a character at which readers with universal line ends would split
// it.
func TestSeparators(t *testing.T) {
	const text = "A\u2028B\u0085C\u2029"
	rec := httptest.NewRecorder()
	WriteJSON(rec, 200, map[string]string{text: text})
	Invalid(text, "%s", text).Write(rec)
	out := NewEventWriter(rec, 0)
	if err := errors.Join(out.Data(TextChoice{Text: text}), out.Event("e", Invalid(text, "%s", text))); err != nil {
		t.Fatal(err)
	}
	body := rec.Body.String()
	if strings.ContainsAny(body, "\u0085\u2028\u2029") || strings.Count(body, `A\u2028B\u0085C\u2029`) != 7 {
		t.Errorf("%q", body)
	}
}

func TestNullable(t *testing.T) {
	var chunk ChatChunk
	if got := string(Marshal(chunk)); strings.Contains(got, "usage") || !strings.Contains(got, `"choices":[]`) {
		t.Errorf("%s", got)
	}
	chunk.Usage.Set = true
	if got := string(Marshal(chunk)); !strings.Contains(got, `"usage":null`) {
		t.Errorf("%s", got)
	}
	u := NewUsage(engine.Usage{Prompt: 3, Completion: 4, Cached: 1, Reasoning: 2})
	chunk.Usage.Value = &u
	text := Marshal(chunk)
	if want := `"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":{"reasoning_tokens":2}}`; !strings.Contains(string(text), want) {
		t.Errorf("%s", text)
	}
	var back ChatChunk
	if err := json.Unmarshal(text, &back); err != nil || back.Usage.Value == nil || *back.Usage.Value != u {
		t.Errorf("%+v %v", back.Usage, err)
	}
}
