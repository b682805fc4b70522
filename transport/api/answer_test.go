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
	first := NewTextLogprobs(tokens[:2], &at)
	rest := NewTextLogprobs(tokens[2:], &at)
	offsets := append(first.TextOffset, rest.TextOffset...)
	if fmt.Sprint(offsets) != "[0 1 1 2]" {
		t.Errorf("offsets %v", offsets)
	}
	if first.Tokens[1] != `bytes:\xf0\x9f` || len(first.TopLogprobs[0]) != 2 {
		t.Errorf("%+v", first)
	}
	if NewChatLogprobs(nil) != nil || NewTextLogprobs(nil, &at) != nil {
		t.Error("no tokens is null")
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
