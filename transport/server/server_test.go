package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json/v2"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/transport/api"
	"krater/transport/client"
	"krater/transport/enginetest"
)

// patience bounds every wait of a test; none takes long unless it fails.
const patience = time.Minute

// fixture is a server on a real socket over a scripted engine.
type fixture struct {
	*Server
	engine *enginetest.Engine
	url    string
	addr   string
	client *client.Client
}

func start(t *testing.T, opt Options) *fixture {
	t.Helper()
	e := enginetest.New()
	return startWith(t, e, New(e, opt))
}

func startWith(t *testing.T, e *enginetest.Engine, s *Server) *fixture {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	hc := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		hc.CloseIdleConnections()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Shutdown(ctx)
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if e.Open() != 0 {
			t.Errorf("%d streams are still open", e.Open())
		}
	})
	url := "http://" + l.Addr().String()
	return &fixture{s, e, url, l.Addr().String(), client.New(url, "", hc)}
}

func (f *fixture) send(t *testing.T, method, path, body string, header ...string) *http.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, f.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

func (f *fixture) post(t *testing.T, path, body string) (int, string) {
	t.Helper()
	res := f.send(t, http.MethodPost, path, body)
	return res.StatusCode, readAll(t, res.Body)
}

func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// wantError checks an error answer's status and form.
func wantError(t *testing.T, res *http.Response, status int, kind, code string) api.Body {
	t.Helper()
	text := readAll(t, res.Body)
	var body struct {
		Error *api.Body `json:"error"`
	}
	if err := json.Unmarshal([]byte(text), &body, json.RejectUnknownMembers(true)); err != nil || body.Error == nil {
		t.Fatalf("%d %q is no error object: %v", res.StatusCode, text, err)
	}
	got := ""
	if body.Error.Code != nil {
		got = *body.Error.Code
	}
	if res.StatusCode != status || body.Error.Type != kind || got != code || body.Error.Message == "" {
		t.Errorf("got %d %s, want %d %s %s", res.StatusCode, text, status, kind, code)
	}
	if ct := res.Header.Get("Content-Type"); ct != "application/json" {
		t.Errorf("content type %q", ct)
	}
	return *body.Error
}

func (f *fixture) waitOpen(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := f.engine.WaitOpen(ctx, n); err != nil {
		t.Fatal(err)
	}
}

const hello = `{"messages":[{"role":"user","content":"hi"}]}`
const helloStream = `{"messages":[{"role":"user","content":"hi"}],"stream":true}`

func TestRouting(t *testing.T) {
	f := start(t, Options{Version: "1.2.3"})
	for _, c := range []struct{ method, path, body, want string }{
		{"GET", "/health", "", `{"status":"ok"}`},
		{"GET", "/ready", "", `{"status":"ready"}`},
		{"GET", "/version", "", `{"version":"1.2.3"}`},
		{"GET", "/v1/models", "", `{"object":"list","data":[{"id":"test-model","object":"model","created":1700000000,"owned_by":"krater","max_model_len":256}]}`},
		{"GET", "/models", "", `"max_model_len":256`},
		{"GET", "/v1/models/test-model", "", `{"id":"test-model",`},
		{"GET", "/models/test-model", "", `{"id":"test-model",`},
		{"POST", "/chat/completions", hello, `"content":"Hello world!"`},
		{"POST", "/completions", `{"prompt":"x"}`, `"text":"Hello world!"`},
		{"POST", "/tokenize", `{"prompt":"hi"}`, `{"count":3,"max_model_len":256,"tokens":[256,104,105]}`},
		{"POST", "/tokenize", `{"prompt":"hi","add_special_tokens":false,"return_token_strs":true}`, `"tokens":[104,105],"token_strs":["h","i"]}`},
		{"POST", "/tokenize", hello, `"count":20`},
		{"POST", "/detokenize", `{"tokens":[256,104,105]}`, `{"prompt":"<bos>hi"}`},
		{"POST", "/detokenize", `{"tokens":[256,104,105],"skip_special_tokens":true}`, `{"prompt":"hi"}`},
		{"POST", "/apply-template", hello, `{"prompt":"<user>hi<assistant>"}`},
		{"POST", "/apply-template", `{"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":false}`, `{"prompt":"<user>hi"}`},
	} {
		res := f.send(t, c.method, c.path, c.body)
		if text := readAll(t, res.Body); res.StatusCode != 200 || !strings.Contains(text, c.want) {
			t.Errorf("%s %s: %d %s", c.method, c.path, res.StatusCode, text)
		}
		if res.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s %s: no request id", c.method, c.path)
		}
	}
	f.engine.SetInfo(func(i *engine.Info) { i.ID = "org/model" })
	for _, path := range []string{"/v1/models/org/model", "/v1/models/org%2Fmodel"} {
		if res := f.send(t, "GET", path, ""); res.StatusCode != 200 {
			t.Errorf("%s: %d", path, res.StatusCode)
		}
	}
}

func TestRefusedRequests(t *testing.T) {
	f := start(t, Options{MaxBody: 1000})
	wantError(t, f.send(t, "GET", "/v1/nothing", ""), 404, api.TypeNotFound, "not_found")
	wantError(t, f.send(t, "GET", "/", ""), 404, api.TypeNotFound, "not_found")
	wantError(t, f.send(t, "GET", "/v1/models/other", ""), 404, api.TypeNotFound, "model_not_found")
	wantError(t, f.send(t, "GET", "/v1/models/", ""), 404, api.TypeNotFound, "model_not_found")
	wantError(t, f.send(t, "POST", "/v1/chat/completions", `{"model":"other","messages":[{"role":"user","content":"hi"}]}`), 404, api.TypeNotFound, "model_not_found")

	res := f.send(t, "GET", "/v1/chat/completions", "")
	wantError(t, res, 405, api.TypeInvalidRequest, "method_not_allowed")
	if allow := res.Header.Get("Allow"); allow != "POST" {
		t.Errorf("Allow %q", allow)
	}
	res = f.send(t, "POST", "/v1/models", "{}")
	wantError(t, res, 405, api.TypeInvalidRequest, "method_not_allowed")
	if allow := res.Header.Get("Allow"); allow != "GET, HEAD" {
		t.Errorf("Allow %q", allow)
	}

	for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1", "json"} {
		wantError(t, f.send(t, "POST", "/v1/chat/completions", hello, "Content-Type", kind), 415, api.TypeInvalidRequest, "unsupported_media_type")
	}
	wantError(t, f.send(t, "POST", "/v1/chat/completions", hello, "Content-Encoding", "gzip"), 415, api.TypeInvalidRequest, "unsupported_media_type")
	if res := f.send(t, "POST", "/v1/chat/completions", hello, "Content-Type", "Application/JSON; charset=UTF-8"); res.StatusCode != 200 {
		t.Errorf("%d", res.StatusCode)
	}

	big := `{"prompt":"` + strings.Repeat("x", 1000) + `"}`
	wantError(t, f.send(t, "POST", "/v1/completions", big), 413, api.TypeInvalidRequest, "request_too_large")
	req, _ := http.NewRequest("POST", f.url+"/v1/completions", io.MultiReader(strings.NewReader(big))) // no length: chunked
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	wantError(t, res, 413, api.TypeInvalidRequest, "request_too_large")

	body := wantError(t, f.send(t, "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":5}]}`), 400, api.TypeInvalidRequest, "invalid_type")
	if *body.Param != "messages[0].content" {
		t.Errorf("param %q", *body.Param)
	}
	wantError(t, f.send(t, "POST", "/apply-template", `{"messages":[]}`), 400, api.TypeInvalidRequest, "invalid_value")
	wantError(t, f.send(t, "POST", "/tokenize", `{}`), 400, api.TypeInvalidRequest, "missing_required_parameter")
	wantError(t, f.send(t, "POST", "/detokenize", `{"tokens":[258]}`), 400, api.TypeInvalidRequest, "invalid_value")
	if n := len(f.engine.Requests()); n != 1 {
		t.Errorf("%d requests reached the engine, 1 was good", n)
	}
}

func TestContextLengthBeforePrefill(t *testing.T) {
	f := start(t, Options{})
	long := strings.Repeat("x", 300)
	for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
		for _, stream := range []string{"", `,"stream":true`} {
			body := `{"prompt":"` + long + `"` + stream + `}`
			if strings.Contains(path, "chat") {
				body = `{"messages":[{"role":"user","content":"` + long + `"}]` + stream + `}`
			}
			e := wantError(t, f.send(t, "POST", path, body), 400, api.TypeInvalidRequest, "context_length_exceeded")
			if !strings.Contains(e.Message, "256") || !strings.Contains(e.Message, "3") {
				t.Errorf("%q lacks the two numbers", e.Message)
			}
			if want := map[bool]string{true: "messages", false: "prompt"}[strings.Contains(path, "chat")]; e.Param == nil || *e.Param != want {
				t.Errorf("%s: param %v, want %s", path, e.Param, want)
			}
		}
	}
}

func TestEngineErrorsHaveTheirStatus(t *testing.T) {
	f := start(t, Options{})
	f.engine.SetReady(&engine.Error{Kind: engine.Unavailable, Message: "loading"})
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/tokenize", "/apply-template"} {
		res := f.send(t, "POST", path, hello)
		wantError(t, res, 503, api.TypeServer, "unavailable")
		if res.Header.Get("Retry-After") == "" {
			t.Errorf("%s: 503 without Retry-After", path)
		}
	}
	wantError(t, f.send(t, "GET", "/ready", ""), 503, api.TypeServer, "unavailable")
	if res := f.send(t, "GET", "/health", ""); res.StatusCode != 200 {
		t.Errorf("/health %d while loading", res.StatusCode)
	}
	// A lasting fault is not healthy either: its operator has to act.
	f.engine.SetReady(&engine.Error{Kind: engine.Unavailable, Message: "weights are lost", Lasting: true})
	for _, path := range []string{"/health", "/ready"} {
		res := f.send(t, "GET", path, "")
		if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 503 || !strings.Contains(string(body), "weights are lost") {
			t.Errorf("%s: %d %s, %v", path, res.StatusCode, body, err)
		}
	}
	f.engine.SetReady(nil)

	f.engine.Choose(func(*engine.Request) (enginetest.Script, error) {
		return nil, &engine.Error{Kind: engine.Overloaded, Message: "full", RetryAfter: 3 * time.Second}
	})
	res := f.send(t, "POST", "/v1/chat/completions", helloStream)
	wantError(t, res, 429, api.TypeRateLimit, "overloaded")
	if got := res.Header.Get("Retry-After"); got != "3" {
		t.Errorf("Retry-After %q", got)
	}

	f.engine.Choose(func(*engine.Request) (enginetest.Script, error) { return nil, errors.New("secret") })
	if e := wantError(t, f.send(t, "POST", "/v1/chat/completions", hello), 500, api.TypeServer, ""); strings.Contains(e.Message, "secret") {
		t.Errorf("%q", e.Message)
	}

	// One refused choice gives up the others.
	n := 0
	f.engine.Choose(func(*engine.Request) (enginetest.Script, error) {
		if n++; n == 3 {
			return nil, &engine.Error{Kind: engine.Overloaded, Message: "full"}
		}
		return enginetest.Forever("x"), nil
	})
	wantError(t, f.send(t, "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"n":4}`), 429, api.TypeRateLimit, "overloaded")
	f.waitOpen(t, 0)

	f.engine.Play(enginetest.Fail(&engine.Error{Kind: engine.Internal, Message: "a stage failed"}, "some", "text"))
	wantError(t, f.send(t, "POST", "/v1/chat/completions", hello), 500, api.TypeServer, "")
	f.engine.Play(enginetest.Fail(&engine.Error{Kind: engine.Timeout, Message: "late"}))
	wantError(t, f.send(t, "POST", "/v1/completions", `{"prompt":"a","stream":true}`), 408, api.TypeServer, "timeout")
}

func TestBodyTimeout(t *testing.T) {
	f := start(t, Options{BodyTimeout: 20 * time.Millisecond})
	conn, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	wantError(t, res, 408, api.TypeInvalidRequest, "timeout")
}

// TestUnreadBody: a client that announces a body and sends none is answered in time, by routes that
// read no body too, and with no key.
func TestUnreadBody(t *testing.T) {
	f := start(t, Options{WriteTimeout: 6 * time.Second, Keys: []KeyHash{HashKey("k")}, Hosts: []string{"x"}})
	f.Route("POST /v1/things/{id}/cancel", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		api.WriteJSON(w, http.StatusOK, api.Status{Status: "ok"})
	}))
	var all sync.WaitGroup
	for _, c := range []struct {
		request string
		status  int
	}{
		{"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n", 401},
		{"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Api-Key: k\r\n", 415},
		{"POST /nothing HTTP/1.1\r\nHost: x\r\n", 404},
		{"POST /nothing HTTP/1.1\r\nHost: y\r\n", 421},
		{"GET /health HTTP/1.1\r\nHost: x\r\n", 200},
		{"POST /v1/things/1/cancel HTTP/1.1\r\nHost: x\r\nX-Api-Key: k\r\n", 200},
	} {
		for _, length := range []string{"Content-Length: 100\r\n", "Transfer-Encoding: chunked\r\n"} {
			all.Go(func() { // each takes half of the time of a write
				conn, err := net.Dial("tcp", f.addr)
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(patience))
				_, _ = io.WriteString(conn, c.request+length+"\r\n")
				res, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Errorf("%q %q: %v", c.request, length, err)
					return
				}
				if res.Body.Close(); res.StatusCode != c.status {
					t.Errorf("%q %q: %d, want %d", c.request, length, res.StatusCode, c.status)
				}
			})
		}
	}
	all.Wait()
}

// A body's deadline must not end the answer, nor a stream's the next request.
func TestDeadlinesDoNotOutliveTheirPurpose(t *testing.T) {
	f := start(t, Options{BodyTimeout: 30 * time.Millisecond, WriteTimeout: 30 * time.Millisecond})
	conn, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	in := bufio.NewReader(conn)
	for range 2 {
		gate := make(chan struct{})
		f.engine.Play(enginetest.Gated(enginetest.Text("late"), 2, gate))
		time.AfterFunc(80*time.Millisecond, func() { close(gate) }) // past both deadlines
		_, _ = io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"a\"}")
		res, err := http.ReadResponse(in, nil)
		if err == nil && res.StatusCode == http.StatusContinue {
			res, err = http.ReadResponse(in, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		if text := readAll(t, res.Body); res.StatusCode != 200 || !strings.Contains(text, "late") {
			t.Fatalf("%d %s", res.StatusCode, text)
		}
	}
}

func TestRunningRequestsAreBounded(t *testing.T) {
	f := start(t, Options{MaxConcurrent: 1, RetryAfter: 2 * time.Second})
	gate := make(chan struct{})
	f.engine.Play(enginetest.Gated(enginetest.Text("a"), 0, gate))
	first := make(chan error, 1)
	go func() {
		_, err := f.client.Chat(context.Background(), api.ChatRequest{Messages: client.Messages(client.Message{Role: "user", Content: "a"})})
		first <- err
	}()
	f.waitOpen(t, 1)
	res := f.send(t, "POST", "/v1/chat/completions", hello)
	wantError(t, res, 429, api.TypeRateLimit, "overloaded")
	if got := res.Header.Get("Retry-After"); got != "2" {
		t.Errorf("Retry-After %q", got)
	}
	for _, path := range []string{"/health", "/ready", "/metrics", "/v1/models"} {
		if res := f.send(t, "GET", path, ""); res.StatusCode != 200 {
			t.Errorf("%s: %d under load", path, res.StatusCode)
		}
	}
	close(gate)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if code, text := f.post(t, "/v1/chat/completions", hello); code != 200 {
		t.Errorf("the place was not given back: %d %s", code, text)
	}
}

func TestPanicIsAnError(t *testing.T) {
	e := enginetest.New()
	s := New(e, Options{})
	s.Route("POST /panic", s.Limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") })))
	s.Route("POST /late", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		panic("boom")
	}))
	f := startWith(t, e, s)
	for range 3 {
		wantError(t, f.send(t, "POST", "/panic", "{}"), 500, api.TypeServer, "")
	}
	res, err := http.Post(f.url+"/late", "application/json", strings.NewReader("{}"))
	if err == nil {
		defer res.Body.Close()
		if _, err = io.ReadAll(res.Body); err == nil {
			t.Error("a cut answer looks whole")
		}
	}
	if s.places.Held("") != 0 {
		t.Error("a panic keeps its place")
	}
	if code, _ := f.post(t, "/v1/chat/completions", hello); code != 200 {
		t.Error("the server did not survive")
	}
}

func TestHandlerWithoutSocket(t *testing.T) {
	s := New(enginetest.New(), Options{})
	w := httptest.NewRecorder()
	r := httptest.NewRequest("POST", "/v1/chat/completions", bytes.NewReader([]byte(helloStream)))
	r.Header.Set("Content-Type", "application/json")
	s.Handler().ServeHTTP(w, r)
	if w.Code != 200 || !strings.HasSuffix(w.Body.String(), "data: [DONE]\n\n") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
