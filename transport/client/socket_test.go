package client

import (
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/transport/api"
	"krater/transport/enginetest"
	"krater/transport/responses"
	"krater/transport/server"
)

// socketPair is pair with the Responses door.
func socketPair(t *testing.T, opt server.Options, key string) (*enginetest.Engine, *Client) {
	t.Helper()
	e := enginetest.New()
	srv := server.New(e, opt)
	responses.New(e, responses.Options{Owner: srv.Owner, AllowOrigin: srv.OriginAllowed, ReadBody: srv.ReadBody, Acquire: srv.Acquire}).Mount(srv.Route)
	s := httptest.NewServer(srv.Handler())
	t.Cleanup(s.Close)
	return e, New(s.URL, key, s.Client())
}

func TestSocket(t *testing.T) {
	e, c := socketPair(t, server.Options{Keys: []server.KeyHash{server.HashKey("k")}}, "k")
	s, err := c.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	most, on := 7, true
	req := &ResponseRequest{Sampling: api.Sampling{IgnoreEOS: &on}, Input: []Message{{"system", "s"}, {"user", "u"}}, MaxTokens: &most}
	read := func() (text string, last *ResponseEvent) {
		t.Helper()
		if err := s.Create(req); err != nil {
			t.Fatal(err)
		}
		for {
			ev, err := s.Next()
			if err != nil {
				t.Fatal(err)
			}
			if text += ev.Delta; ev.Over() {
				return text, ev
			}
		}
	}
	text, last := read()
	if r := last.Response; text != "Hello world!" || r.Status != "completed" || r.Usage.OutputTokens != 3 || r.Usage.InputTokens == 0 {
		t.Errorf("%q %+v", text, last.Response)
	}
	if r := e.Requests()[0]; r.MaxTokens != 7 || !r.IgnoreEOS || string(r.Prompt.Chat.Messages) != `[{"role":"system","content":"s"},{"role":"user","content":"u"}]` {
		t.Errorf("%+v %s", r, r.Prompt.Chat.Messages)
	}
	// A refused frame leaves the socket usable; so does a cancelled response.
	e.Choose(func(*engine.Request) (enginetest.Script, error) {
		return nil, &engine.Error{Kind: engine.Overloaded, Message: "full", RetryAfter: 4 * time.Second}
	})
	if err := s.Create(req); err != nil {
		t.Fatal(err)
	}
	_, err = s.Next()
	if got, ok := errors.AsType[*api.Error](err); !ok || got.Status != 429 || got.RetryAfter != 4*time.Second || got.Message != "full" {
		t.Errorf("%+v", err)
	}
	e.Play(enginetest.Gated(enginetest.Text("a", "b"), 3, make(chan struct{})))
	cancelled(t, s, req)
	e.Play(enginetest.Text("more"))
	if text, _ := read(); text != "more" {
		t.Errorf("%q", text)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// cancelled asks, cancels at the first piece of text and reads to the end.
func cancelled(t *testing.T, s *Socket, req *ResponseRequest) {
	t.Helper()
	if err := s.Create(req); err != nil {
		t.Fatal(err)
	}
	id := ""
	for {
		ev, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		if id == "" {
			id = ev.Response.ID
		}
		if ev.Delta != "" {
			if err := s.Cancel(id); err != nil {
				t.Fatal(err)
			}
		}
		if ev.Over() {
			if d := ev.Response.IncompleteDetails; d == nil || d.Reason != "cancelled" {
				t.Errorf("%+v", ev.Response)
			}
			return
		}
	}
}

func TestSocketRefusedAndDropped(t *testing.T) {
	e, c := socketPair(t, server.Options{Keys: []server.KeyHash{server.HashKey("k")}}, "wrong")
	_, err := c.Dial(t.Context())
	if got, ok := errors.AsType[*api.Error](err); !ok || got.Status != 401 || got.Code != api.CodeInvalidAPIKey {
		t.Errorf("%+v", err)
	}
	e, c = socketPair(t, server.Options{}, "")
	s, err := c.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e.Play(enginetest.Gated(enginetest.Text("a"), 2, make(chan struct{})))
	if err := s.Create(&ResponseRequest{Input: []Message{{"user", "u"}}}); err != nil {
		t.Fatal(err)
	}
	if err := e.WaitOpen(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	s.Drop()
	for err == nil {
		_, err = s.Next()
	}
	if err := e.WaitOpen(t.Context(), 0); err != nil {
		t.Error(err)
	}
}
