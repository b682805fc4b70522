package otlp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"krater/actors/engine"
	"krater/actors/trace"
)

// sink is a collector.
type sink struct {
	mu    sync.Mutex
	spans []*tracepb.Span
	paths []string
	bad   error
}

func (s *sink) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var req collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &req)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.bad = err
	}
	s.paths = append(s.paths, r.URL.Path)
	for _, rs := range req.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			s.spans = append(s.spans, ss.Spans...)
		}
	}
}

type source struct{ reg *trace.Registry }

func (source) Info() engine.Info        { return engine.Info{ID: "tiny"} }
func (s source) Trace() *trace.Registry { return s.reg }
func (source) Origin(id uint64) engine.Origin {
	switch id {
	case 7:
		return engine.Origin{Name: "resp_x"}
	case 9, 10: // sampled, and not
		return engine.Origin{Caller: Caller(http.Header{
			"Traceparent": {fmt.Sprintf("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0%d", id&1)}, "Tracestate": {"a=1", "b=2"},
		})}
	}
	return engine.Origin{}
}

// TestSpans: a request that was answered is four spans with its times; one that never left the
// queue is two.
func TestSpans(t *testing.T) {
	s := &sink{}
	server := httptest.NewServer(s)
	defer server.Close()
	src := source{trace.NewRegistry(100)}
	e, err := Open(server.URL, "v1", src, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	ring := src.reg.Ring(ringName)
	const ms = int64(time.Millisecond)
	ring.Record(&trace.Event{Kind: trace.Prefill, Request: 7, Enqueued: 10 * ms, Started: 20 * ms, Ended: 50 * ms, Rows: 30})
	ring.Record(&trace.Event{Kind: trace.Stream, Batch: 3, Started: 50 * ms, Ended: 51 * ms})
	ring.Record(&trace.Event{Kind: trace.Request, Request: 7, Enqueued: 10 * ms, Started: 20 * ms, Ended: 90 * ms, Rows: 5})
	ring.Record(&trace.Event{Kind: trace.Request, Request: 8, Enqueued: 11 * ms, Started: 95 * ms, Ended: 95 * ms})
	if err := e.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bad != nil || len(s.paths) == 0 || s.paths[0] != "/v1/traces" {
		t.Fatalf("%v, at %v", s.bad, s.paths)
	}
	at := func(ns int64) uint64 { return uint64(trace.Wall(ns).UnixNano()) }
	want := map[string][2]int64{"chat tiny": {10, 90}, "queue": {10, 20}, "prefill": {20, 50}, "decode": {50, 90}}
	var whole []byte
	for _, x := range s.spans {
		if x.Name == "chat tiny" && x.EndTimeUnixNano == at(90*ms) {
			whole = x.SpanId
			got := map[string]string{}
			for _, a := range x.Attributes {
				got[a.Key] = a.Value.String()
			}
			for key, value := range map[string]string{"gen_ai.response.id": `string_value:"resp_x"`, "gen_ai.usage.output_tokens": "int_value:5", "krater.time_to_first_token": "double_value:0.04"} {
				if got[key] != value {
					t.Errorf("%s is %s, want %s", key, got[key], value)
				}
			}
		}
	}
	if len(s.spans) != 6 || whole == nil {
		t.Fatalf("%d spans", len(s.spans))
	}
	for _, x := range s.spans {
		if string(x.SpanId) != string(whole) && string(x.ParentSpanId) != string(whole) {
			continue // of the other request
		}
		if w := want[x.Name]; x.StartTimeUnixNano != at(w[0]*ms) || x.EndTimeUnixNano != at(w[1]*ms) {
			t.Errorf("%s is from %d to %d", x.Name, x.StartTimeUnixNano, x.EndTimeUnixNano)
		}
		delete(want, x.Name)
	}
	if len(want) != 0 {
		t.Errorf("missing: %v", want)
	}
}

// TestCollectorAway: without a collector requests go on, and the end comes in time.
func TestCollectorAway(t *testing.T) {
	src := source{trace.NewRegistry(100)}
	var log bytes.Buffer
	e, err := Open("http://127.0.0.1:1", "v1", src, zerolog.New(&log))
	if err != nil {
		t.Fatal(err)
	}
	src.reg.Ring(ringName).Record(&trace.Event{Kind: trace.Request, Request: 8, Started: 1, Ended: 2})
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	err = e.Close(ctx)
	if time.Since(began) > 10*time.Second || err == nil && !strings.Contains(log.String(), "refused") {
		t.Errorf("closed after %v with %v; the log says %q", time.Since(began), err, &log)
	}
}

func TestBadEndpoints(t *testing.T) {
	for _, bad := range []string{"", "127.0.0.1:4318", "ftp://a", "http://", "::"} {
		if _, err := Open(bad, "", source{}, zerolog.Nop()); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
