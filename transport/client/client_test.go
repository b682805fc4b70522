package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/transport/api"
	"krater/transport/enginetest"
	"krater/transport/server"
)

func pair(t *testing.T, opt server.Options, key string) (*enginetest.Engine, *Client) {
	t.Helper()
	e := enginetest.New()
	s := httptest.NewServer(server.New(e, opt).Handler())
	t.Cleanup(s.Close)
	return e, New(s.URL+"/", key, s.Client())
}

func TestRoutes(t *testing.T) {
	e, c := pair(t, server.Options{Keys: []server.KeyHash{server.HashKey("k")}}, "k")
	ctx := t.Context()
	seed := int64(7)
	chat := api.ChatRequest{Messages: Messages(Message{"user", "<hi> \"x\""}), Sampling: api.Sampling{Seed: &seed, Stop: api.StringList{"z"}}}
	whole, err := c.Chat(ctx, chat)
	if err != nil || *whole.Choices[0].Message.Content != "Hello world!" || whole.Usage.CompletionTokens != 3 {
		t.Fatalf("%+v %v", whole, err)
	}
	if r := e.Requests()[0]; *r.Sampling.Seed != 7 || r.Stop[0] != "z" || string(r.Prompt.Chat.Messages) != `[{"role":"user","content":"<hi> \"x\""}]` {
		t.Errorf("%+v", r)
	}
	stream, err := c.ChatStream(ctx, chat)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	text := ""
	for {
		chunk, err := stream.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if d := chunk.Choices[0].Delta; d.Content != nil {
			text += *d.Content
		}
	}
	if text != "Hello world!" {
		t.Errorf("%q", text)
	}
	for _, p := range []api.Prompts{{Texts: []string{"a"}}, {Texts: []string{"a", "b"}}, {IDs: [][]int32{{1, 2}}}, {IDs: [][]int32{{1}, {2}}}} {
		got, err := c.Complete(ctx, api.CompletionRequest{Prompt: p})
		if err != nil || len(got.Choices) != p.Len() || got.Usage.Value == nil {
			t.Errorf("%+v: %+v %v", p, got, err)
		}
	}
	texts, err := c.CompleteStream(ctx, api.CompletionRequest{Prompt: api.Prompts{Texts: []string{"a"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer texts.Close()
	if first, err := texts.Next(); err != nil || first.Choices[0].Text != "Hello" {
		t.Errorf("%+v %v", first, err)
	}
	if models, err := c.Models(ctx); err != nil || models.Data[0].ID != "test-model" {
		t.Errorf("%+v %v", models, err)
	}
	prompt := "hi"
	if tokens, err := c.Tokenize(ctx, api.TokenizeRequest{Prompt: &prompt}); err != nil || tokens.Count != 3 {
		t.Errorf("%+v %v", tokens, err)
	}
}

func TestErrors(t *testing.T) {
	e, c := pair(t, server.Options{}, "")
	e.Choose(func(*engine.Request) (enginetest.Script, error) {
		return nil, &engine.Error{Kind: engine.Overloaded, Message: "full", RetryAfter: 4 * time.Second}
	})
	_, err := c.ChatStream(t.Context(), api.ChatRequest{Messages: Messages(Message{"user", "a"})})
	got, ok := errors.AsType[*api.Error](err)
	if !ok || got.Status != 429 || got.Code != api.CodeOverloaded || got.RetryAfter != 4*time.Second || got.Message != "full" {
		t.Errorf("%+v", err)
	}
	_, err = c.Chat(t.Context(), api.ChatRequest{})
	if got, ok := errors.AsType[*api.Error](err); !ok || got.Status != 400 || got.Param != "messages" {
		t.Errorf("%+v", err)
	}
	e.Play(enginetest.Fail(&engine.Error{Kind: engine.Internal, Message: "broke"}, "a"))
	stream, err := c.ChatStream(t.Context(), api.ChatRequest{Messages: Messages(Message{"user", "a"})})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for err == nil {
		_, err = stream.Next()
	}
	if got, ok := errors.AsType[*api.Error](err); !ok || got.Message != "broke" {
		t.Errorf("%+v", err)
	}
	if _, again := stream.Next(); !errors.Is(again, err) {
		t.Errorf("after the end: %v", again)
	}
}

// canned answers every request with one text.
func canned(t *testing.T, status int, text string) *Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(s.Close)
	return New(s.URL, "", nil)
}

func TestForeignStreams(t *testing.T) {
	chunk := `{"id":"1","choices":[{"index":0,"delta":{"content":"x"}}]}`
	for name, c := range map[string]struct {
		text string
		n    int
		end  error
	}{
		"ends without DONE":  {"data: " + chunk + "\n\n", 1, io.ErrUnexpectedEOF},
		"cut inside":         {"data: " + chunk + "\n\ndata: {", 1, io.ErrUnexpectedEOF},
		"empty":              {"", 0, io.ErrUnexpectedEOF},
		"carriage returns":   {"data:" + chunk + "\r\n\r\ndata: [DONE]\r\n\r\n", 1, io.EOF},
		"comments and names": {": c\n\nevent: e\nid: 5\ndata: " + chunk + "\n\nevent: ping\n\ndata: [DONE]\n\n", 1, io.EOF},
		"two lines":          {"data: {\"id\":\ndata: \"1\"}\n\ndata: [DONE]\n\n", 1, io.EOF},
		"too long":           {"data: " + strings.Repeat("x", maxEvent+1) + "\n\n", 0, ErrEventTooLong},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := canned(t, 200, c.text).ChatStream(t.Context(), api.ChatRequest{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			n := 0
			for {
				if _, err = s.Next(); err != nil {
					break
				}
				n++
			}
			if n != c.n || !errors.Is(err, c.end) {
				t.Errorf("%d events, then %v; want %d, %v", n, err, c.n, c.end)
			}
		})
	}
	if _, err := canned(t, 502, "<html>").Chat(t.Context(), api.ChatRequest{}); err == nil || !strings.Contains(err.Error(), "502") {
		t.Errorf("%v", err)
	}
	if _, err := canned(t, 200, "no").Chat(t.Context(), api.ChatRequest{}); err == nil {
		t.Error("no JSON is an answer")
	}
}

func TestWaitReady(t *testing.T) {
	e, c := pair(t, server.Options{}, "")
	e.SetReady(&engine.Error{Kind: engine.Unavailable, Message: "loading the model"})
	ctx, cancel := context.WithTimeout(t.Context(), 3*readyPoll)
	defer cancel()
	if err := c.WaitReady(ctx); err == nil || !strings.Contains(err.Error(), "loading the model") && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	waited := make(chan error, 1)
	go func() { waited <- c.WaitReady(t.Context()) }()
	e.SetReady(nil)
	if err := <-waited; err != nil {
		t.Error(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close() // nobody listens there
	gone, stop := context.WithTimeout(t.Context(), readyPoll)
	defer stop()
	if err := New("http://"+addr, "", nil).WaitReady(gone); err == nil {
		t.Error("nobody there is ready")
	}
}
