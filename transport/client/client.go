// Package client is a small typed client of a Krater server: HTTP, WebSocket, metrics. It has chat
// and text completions, streamed or whole, the Responses API over a WebSocket, the tokenizer
// routes, metrics, and the wait for a server to become ready.
package client

import (
	"bytes"
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"krater/scheduler/jsonlines"
	"krater/transport/api"
)

const (
	// maxAnswer bounds how much of an answer is read, in bytes.
	maxAnswer = 256 << 20
	// readyPoll is the time between two looks at /ready.
	readyPoll = 50 * time.Millisecond
)

// Client is safe for concurrent use.
type Client struct {
	base string
	key  string
	http *http.Client
}

// New makes a client for a server's address (http://127.0.0.1:8080). An empty key sends none; a nil
// hc means http.DefaultClient. Answers may take long: give hc no Timeout, use the context.
func New(base, key string, hc *http.Client) *Client {
	if hc == nil {
		hc = http.DefaultClient
	}
	return &Client{base: strings.TrimSuffix(base, "/"), key: key, http: hc}
}

// Message is one text message of a conversation.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Messages encodes a conversation for api.ChatRequest.
func Messages(messages ...Message) []byte { return api.Marshal(messages) }

// WaitReady polls /ready until it answers 200 or ctx ends; the error then says what the server last
// answered.
func (c *Client) WaitReady(ctx context.Context) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		err := c.get(ctx, "/ready", &struct{}{})
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the server is not ready: %w", err)
		}
	}
}

// Models lists what the server serves.
func (c *Client) Models(ctx context.Context) (*api.ModelList, error) {
	out := &api.ModelList{}
	return out, c.get(ctx, "/v1/models", out)
}

// Chat asks for a whole chat answer; Stream of the request is overruled.
func (c *Client) Chat(ctx context.Context, req api.ChatRequest) (*api.ChatCompletion, error) {
	req.Stream = nil
	out := &api.ChatCompletion{}
	return out, c.post(ctx, "/v1/chat/completions", &req, out)
}

// ChatStream asks for a streamed chat answer. Close the stream.
func (c *Client) ChatStream(ctx context.Context, req api.ChatRequest) (*Stream[api.ChatChunk], error) {
	on := true
	req.Stream = &on
	return openStream[api.ChatChunk](ctx, c, "/v1/chat/completions", &req)
}

// Complete asks for a whole text completion; Stream of the request is overruled.
func (c *Client) Complete(ctx context.Context, req api.CompletionRequest) (*api.TextCompletion, error) {
	req.Stream = nil
	out := &api.TextCompletion{}
	return out, c.post(ctx, "/v1/completions", &req, out)
}

// CompleteStream asks for a streamed text completion. Close the stream.
func (c *Client) CompleteStream(ctx context.Context, req api.CompletionRequest) (*Stream[api.TextCompletion], error) {
	on := true
	req.Stream = &on
	return openStream[api.TextCompletion](ctx, c, "/v1/completions", &req)
}

// Tokenize returns the token ids of a text or conversation.
func (c *Client) Tokenize(ctx context.Context, req api.TokenizeRequest) (*api.TokenizeAnswer, error) {
	out := &api.TokenizeAnswer{}
	return out, c.post(ctx, "/tokenize", &req, out)
}

func (c *Client) get(ctx context.Context, path string, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return err
	}
	return c.whole(req, out)
}

func (c *Client) post(ctx context.Context, path string, body, out any) error {
	req, err := c.request(ctx, path, body)
	if err != nil {
		return err
	}
	return c.whole(req, out)
}

func (c *Client) request(ctx context.Context, path string, body any) (*http.Request, error) {
	data, err := json.Marshal(body, json.OmitZeroStructFields(true))
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(jsonlines.Escape(data)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return req, nil
}

// whole sends req and decodes its answer into out.
func (c *Client) whole(req *http.Request, out any) error {
	res, err := c.do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return err
	}
	return json.Unmarshal(data, out)
}

// do sends req; any status but 200 is an error, an *api.Error where the body holds one. The caller
// closes the body.
func (c *Client) do(req *http.Request) (*http.Response, error) {
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	failure, err := parseError(data)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %s", req.Method, req.URL.Path, res.Status)
	}
	failure.Status, failure.RetryAfter = res.StatusCode, retryAfter(res.Header)
	return nil, failure
}

// retryAfter is when a refused request may come again; 0 if the server does not say.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

var errNoError = errors.New("not an error object")

// parseError reads {"error":{...}}.
func parseError(data []byte) (*api.Error, error) {
	var body struct {
		Error *api.Body `json:"error"`
	}
	if err := json.Unmarshal(data, &body); err != nil {
		return nil, err
	}
	if body.Error == nil {
		return nil, errNoError
	}
	e := &api.Error{Type: body.Error.Type, Message: body.Error.Message}
	if body.Error.Param != nil {
		e.Param = *body.Error.Param
	}
	if body.Error.Code != nil {
		e.Code = *body.Error.Code
	}
	return e, nil
}
