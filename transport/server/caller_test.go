package server

import (
	"net/http"
	"testing"

	"krater/actors/engine"
)

// TestCaller: every choice of a request has the caller of its header.
func TestCaller(t *testing.T) {
	f := start(t, Options{Caller: func(h http.Header) engine.Caller { return engine.Caller{State: h.Get("Traceparent")} }})
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"n":2,"messages":[{"role":"user","content":"hi"}]}`,
		"/v1/completions":      `{"n":2,"prompt":"hi"}`,
	} {
		if res := f.send(t, "POST", path, body, "traceparent", path); res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d", path, res.StatusCode)
		}
	}
	got := map[string]int{}
	for _, r := range f.engine.Requests() {
		got[r.Caller.State]++
	}
	if got["/v1/chat/completions"] != 2 || got["/v1/completions"] != 2 || len(got) != 2 {
		t.Errorf("callers: %v", got)
	}
}
