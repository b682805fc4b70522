package server

import (
	"strings"
	"testing"

	"krater/actors/engine"
	"krater/transport/enginetest"
)

func TestOllama(t *testing.T) {
	f := start(t, Options{})
	for _, c := range []struct{ path, body, want string }{
		{"/api/chat", `{"model":"test-model:latest","messages":[{"role":"user","content":"hi"}],"stream":false}`, `"message":{"role":"assistant","content":"Hello world!"},"done":true,"done_reason":"stop"`},
		{"/api/generate", `{"model":"test-model","prompt":"hi","stream":false}`, `"response":"Hello world!","done":true`},
		{"/api/generate", `{"model":"test-model","prompt":"hi","raw":true,"stream":false}`, `"prompt_eval_count":3,`},
		{"/api/chat", `{"model":"test-model"}`, `"done":true,"done_reason":"load"`},
		{"/api/generate", `{"model":"test-model","keep_alive":0}`, `"response":"","done":true,"done_reason":"load"`},
		{"/api/show", `{"model":"test-model"}`, `"krater.context_length":256`},
	} {
		if code, text := f.post(t, c.path, c.body); code != 200 || !strings.Contains(text, c.want) {
			t.Errorf("%s %s: %d %s", c.path, c.body, code, text)
		}
	}
	res := f.send(t, "POST", "/api/chat", `{"messages":[{"role":"user","content":"hi"}]}`)
	text := readAll(t, res.Body)
	if lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n"); len(lines) != 4 || res.Header.Get("Content-Type") != "application/x-ndjson" || !strings.Contains(lines[3], `"eval_count":3`) {
		t.Error(text)
	}
	for path, want := range map[string]string{"/api/tags": `"name":"test-model"`, "/api/ps": `"context_length":256`, "/api/version": `"version":"`} {
		if res := f.send(t, "GET", path, ""); !strings.Contains(readAll(t, res.Body), want) {
			t.Errorf("%s: no %s", path, want)
		}
	}
}

func TestOllamaErrors(t *testing.T) {
	f := start(t, Options{})
	const hello = `"messages":[{"role":"user","content":"hi"}]`
	for _, c := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"/api/chat", `{"model":"other",` + hello + `}`, 404, `{"error":"the model 'other' does not exist; this server serves 'test-model'"}`},
		{"/api/show", `{"name":"other"}`, 404, `{"error":"the model 'other'`},
		{"/api/chat", `{` + hello + `,"x":1}`, 400, `{"error":"unknown field 'x'"}`},
		{"/api/embed", `{}`, 400, `{"error":"Krater does not serve embeddings`},
	} {
		if code, text := f.post(t, c.path, c.body); code != c.status || !strings.HasPrefix(text, c.want) {
			t.Errorf("%s %s: %d %s", c.path, c.body, code, text)
		}
	}
	if res := f.send(t, "GET", "/api/chat", ""); res.StatusCode != 405 {
		t.Errorf("GET: %d", res.StatusCode)
	}
	f.engine.Play(enginetest.Fail(&engine.Error{Kind: engine.Internal, Message: "a stage failed"}, "Hel"))
	if code, text := f.post(t, "/api/chat", `{`+hello+`}`); code != 200 || !strings.HasSuffix(text, "{\"error\":\"a stage failed\"}\n") {
		t.Errorf("%d %s", code, text)
	}
}
