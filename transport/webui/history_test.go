package webui

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/transport/server"
)

// TestHistory: two minutes of points are kept, the rates are those between two points, and what has
// begun anew has no negative ones.
func TestHistory(t *testing.T) {
	h := newHistory(time.Second)
	s := engine.Stats{Running: 3, Waiting: 1}
	for now := int64(0); now <= 600e9; now += 250e6 {
		h.note(now, &s)
		s.GeneratedTokens += 5
		s.PromptTokens += 10
	}
	all := h.all()
	if len(all) != historyKept || len(h.past) > 32 {
		t.Fatalf("%d points, %d samples of histograms", len(all), len(h.past))
	}
	for _, p := range all {
		if p[1] != 20 || p[2] != 40 || p[3] != 3 || p[4] != 1 {
			t.Fatalf("point %v", p)
		}
	}
	if all[0][0] != 481 || all[len(all)-1][0] != 600 {
		t.Errorf("from %v to %v s", all[0][0], all[len(all)-1][0])
	}
	s.GeneratedTokens = 0
	h.note(602e9, &s)
	if p := h.newest(); p[1] != 0 {
		t.Errorf("after a new beginning: %v", *p)
	}
	h.note(900e9, &s) // the server's machine slept
	if all := h.all(); len(all) != 1 {
		t.Errorf("%d points after a long silence", len(all))
	}
}

// TestHistoryBeforeViewers: who opens the page sees what was before.
func TestHistoryBeforeViewers(t *testing.T) {
	s := serve(t, Options{Sample: time.Millisecond}, server.Options{})
	for deadline := time.Now().Add(patience); len(s.page.past.all()) < 5; time.Sleep(time.Millisecond) {
		s.fake.step(1, 1e6, 3)
		if time.Now().After(deadline) {
			t.Fatal("nothing is noted while nobody looks")
		}
	}
	v := s.look()
	v.say(`{"type":"show","visible":true}`)
	m := v.of("snapshot")
	some := false
	for _, p := range m.History {
		some = some || p[1] > 0
	}
	if len(m.History) < 5 || !some {
		t.Errorf("a new viewer is sent %v", m.History)
	}
	v.next(func(m *message) bool { return m.Type == "delta" && m.State.Point != nil })
}

// TestHistoryEnds: a shutdown ends it.
func TestHistoryEnds(t *testing.T) {
	draining := make(chan struct{})
	p := New(newFake(), Options{Draining: draining})
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.remember()
	}()
	close(draining)
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
}

// BenchmarkHistory measures the cost of noting one second while no viewer is connected.
func BenchmarkHistory(b *testing.B) {
	f := newFake()
	h := newHistory(time.Second)
	now := int64(0)
	for b.Loop() {
		now += 1e9
		s := f.Stats()
		h.note(now, &s)
	}
}

// TestLoadingWords: what GET /ready tells of a model that loads is shown, as far as it tells.
func TestLoadingWords(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":{"message":"the model is loading"}}`:                                    "The model is loading.",
		`{"phase":"reading weights","share":0.456,"left_seconds":71.2,"rate":"1.2 GB/s"}`: "The model is loading: reading weights, 45 % at 1.2 GB/s, about 72 s left.",
		`{"phase":"reading weights","share":7}`:                                           "The model is loading: reading weights, 100 %.",
		`{"phase":"load weights","share":0,"rate":"","left_seconds":500.5}`:               "The model is loading: load weights, about 9 min left.",
		`{"phase":"compiling"}`:                                                           "The model is loading: compiling.",
		`not JSON`:                                                                        "The model is loading.",
		`{"share":"half"}`:                                                                "The model is loading.",
		`{"share":-1,"left_seconds":1e300}`:                                               "The model is loading, about 16667 min left.",
	} {
		p := New(newFake(), Options{Ready: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(body))
		})})
		s := p.loadingState()
		if s.Verdict.Text != want {
			t.Errorf("%s: %q, want %q", body, s.Verdict.Text, want)
		}
		if out := encode(s); !json.Valid(out) {
			t.Errorf("%s: %s", body, out)
		}
	}
}
