package otlp

import (
	"context"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/actors/trace"
)

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	spanID  = "b7ad6b7169203331"
	parent  = "00-" + traceID + "-" + spanID + "-01"
)

// TestCaller: what is a span by W3C's rules is taken up, and nothing else.
func TestCaller(t *testing.T) {
	many := strings.TrimSuffix(strings.Repeat("k=v,", 33), ",")
	for _, c := range []struct {
		parents, states []string
		flags           byte
		state           string
		none            bool
	}{
		{parents: []string{parent}, flags: 1},
		{parents: []string{parent[:54] + "0"}, flags: 0},
		{parents: []string{"cc" + parent[2:] + "-of-the-future"}, flags: 1},
		{parents: []string{parent}, states: []string{"a=1,b=2"}, flags: 1, state: "a=1,b=2"},
		{parents: []string{parent}, states: []string{"a=1", "b=2"}, flags: 1, state: "a=1,b=2"},
		{parents: []string{parent}, states: []string{"a"}, flags: 1},
		{parents: []string{parent}, states: []string{many}, flags: 1},
		{parents: []string{parent}, states: []string{"a=" + strings.Repeat("x", 250), "b=" + strings.Repeat("y", 250)}, flags: 1, state: "a=" + strings.Repeat("x", 250) + ",b=" + strings.Repeat("y", 250)},
		{parents: []string{parent}, states: []string{"a=" + strings.Repeat("x", 250), "b=" + strings.Repeat("y", 250), "ccc=1234"}, flags: 1},
		{none: true},
		{states: []string{"a=1"}, none: true},
		{parents: []string{parent, parent}, none: true},
		{parents: []string{""}, none: true},
		{parents: []string{"ff" + parent[2:]}, none: true},
		{parents: []string{strings.ToUpper(parent)}, none: true},
		{parents: []string{parent + "-more"}, none: true},
		{parents: []string{parent[:53]}, none: true},
		{parents: []string{strings.Replace(parent, spanID, "0000000000000000", 1)}, none: true},
		{parents: []string{strings.Replace(parent, traceID, strings.Repeat("0", 32), 1)}, none: true},
		{parents: []string{"cc" + parent[2:] + "-" + strings.Repeat("x", 300)}, none: true},
	} {
		got := Caller(http.Header{"Traceparent": c.parents, "Tracestate": c.states})
		if c.none {
			if got != (engine.Caller{}) {
				t.Errorf("%q %q: taken up as %+v", c.parents, c.states, got)
			}
			continue
		}
		if hex.EncodeToString(got.Trace[:]) != traceID || hex.EncodeToString(got.Span[:]) != spanID || got.Flags != c.flags || got.State != c.state {
			t.Errorf("%q %q: %+v", c.parents, c.states, got)
		}
	}
}

// TestChild: the spans of a request are a part of its caller's trace, with its tracestate; those of
// a caller that is not sampled are not sent.
func TestChild(t *testing.T) {
	s := &sink{}
	server := httptest.NewServer(s)
	defer server.Close()
	src := source{trace.NewRegistry(100)}
	e, err := Open(server.URL, "v1", src, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	const ms = int64(time.Millisecond)
	for id := uint64(8); id <= 10; id++ { // of nobody, of a sampled one, of one that is not
		src.reg.Ring(ringName).Record(&trace.Event{Kind: trace.Request, Request: id, Started: ms, Ended: int64(id) * ms})
	}
	if err := e.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.spans) != 4 {
		t.Fatalf("%d spans, want 2 of nobody's and 2 of the sampled one", len(s.spans))
	}
	var wholes, parts int
	for _, x := range s.spans {
		child := hex.EncodeToString(x.TraceId) == traceID
		switch {
		case x.Name == "chat tiny" && child:
			wholes++
			if hex.EncodeToString(x.ParentSpanId) != spanID || x.TraceState != "a=1,b=2" || x.EndTimeUnixNano != uint64(trace.Wall(9*ms).UnixNano()) {
				t.Errorf("the request's span is %v", x)
			}
		case x.Name == "chat tiny":
			if len(x.ParentSpanId) != 0 || x.EndTimeUnixNano != uint64(trace.Wall(8*ms).UnixNano()) {
				t.Errorf("nobody's span is %v", x)
			}
		case child:
			parts++
		}
	}
	if wholes != 1 || parts != 1 {
		t.Errorf("%d requests and %d parts in the caller's trace", wholes, parts)
	}
}
