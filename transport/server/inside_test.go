package server

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// TestInside: requests made in the process go the way of all others but for the key, keep their
// owner, and end with the drain.
func TestInside(t *testing.T) {
	var log bytes.Buffer
	logger := zerolog.New(&log)
	f := start(t, Options{Keys: []KeyHash{HashKey("secret-key")}, Hosts: []string{"localhost"}, MaxConcurrent: 1, Log: &logger})
	owner := ""
	f.Route("GET /v1/whose", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { owner = f.Owner(r) }))
	ask := func(method, path, body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		f.Inside("an-owner").ServeHTTP(w, r)
		return w
	}
	if w := ask("GET", "/v1/whose", ""); w.Code != 200 || owner != "an-owner" {
		t.Errorf("%d, %q", w.Code, owner)
	}
	const chat = `{"messages":[{"role":"user","content":"hi"}]}`
	if w := ask("POST", "/v1/chat/completions", chat); w.Code != 200 || !strings.Contains(w.Body.String(), "Hello world!") || w.Header().Get("X-Request-Id") == "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := ask("POST", "/v1/chat/completions", `{"messages":7}`); w.Code != 400 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if strings.Contains(log.String(), `"level":"info"`) || !strings.Contains(log.String(), `"level":"debug"`) {
		t.Errorf("the log says %s", &log)
	}
	release, err := f.Acquire("")
	if err != nil {
		t.Fatal(err)
	}
	if w := ask("POST", "/v1/chat/completions", chat); w.Code != 429 {
		t.Errorf("beside a full server: %d", w.Code)
	}
	release()
	if res := f.send(t, "GET", "/v1/whose", ""); res.StatusCode != 401 {
		t.Errorf("from outside: %d", res.StatusCode)
	}
	if !f.Routed("POST", "/v1/chat/completions") || f.Routed("GET", "/v1/chat/completions") || f.Routed("POST", "/v1/chat") {
		t.Error("Routed is wrong")
	}
	if err := f.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w := ask("POST", "/v1/chat/completions", chat); w.Code != 503 {
		t.Errorf("while draining: %d", w.Code)
	}
}

func TestRegister(t *testing.T) {
	f := start(t, Options{})
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "krater:more", Help: "More."})
	if err := f.Register(g); err != nil {
		t.Fatal(err)
	}
	if f.Register(g) == nil {
		t.Error("one name twice")
	}
	if text := readAll(t, f.send(t, "GET", "/metrics", "").Body); !strings.Contains(text, "krater:more 0") {
		t.Error("it is not there")
	}
}
