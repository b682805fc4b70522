package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"krater/actors/engine"
	"krater/transport/enginetest"
)

// countdown plays n tokens and the end.
func countdown(n int) enginetest.Script {
	return func(i int) (enginetest.Step, bool) {
		if i < n {
			return enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Text: " token"}}, true
		}
		return enginetest.Step{Event: engine.Event{Kind: engine.Done, Finish: engine.FinishStop}}, true
	}
}

// BenchmarkChatStream is the door's whole cost of one streamed token over a loopback socket, client
// included: one op is one token.
func BenchmarkChatStream(b *testing.B) {
	e := enginetest.New()
	server := httptest.NewServer(New(e, Options{}).Handler())
	defer server.Close()
	e.Play(countdown(b.N))
	b.ReportAllocs()
	b.ResetTimer()
	res, err := http.Post(server.URL+"/v1/chat/completions", "application/json", strings.NewReader(helloStream))
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkChunk is the encoding alone.
func BenchmarkChunk(b *testing.B) {
	e := enginetest.New()
	w := httptest.NewRecorder()
	w.Body = nil
	e.Play(countdown(b.N))
	r := httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(helloStream))
	r.Header.Set("Content-Type", "application/json")
	b.ReportAllocs()
	b.ResetTimer()
	New(e, Options{}).Handler().ServeHTTP(w, r)
}
