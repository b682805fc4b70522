package server

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/transport/enginetest"
)

func TestMetrics(t *testing.T) {
	f := start(t, Options{})
	f.engine.SetStats(engine.Stats{
		Running: 2, Waiting: 3, KVBlocksUsed: 1, KVBlocksTotal: 4, PromptTokens: 100, GeneratedTokens: 50,
		Finished:   map[string]uint64{"stop": 7, "abort": 1},
		TTFT:       engine.Histogram{Bounds: []float64{0.1, 2560}, Counts: []uint64{1, 3}, Count: 4, Sum: 3000},
		ITL:        engine.Histogram{Bounds: []float64{0.01}, Counts: []uint64{9}, Count: 9, Sum: 0.05},
		StepTokens: engine.Histogram{Bounds: []float64{1, 8}, Counts: []uint64{2, 5}, Count: 5, Sum: 20},
		ActorQueue: map[string]int{"group:0": 4}, ActorWait: map[string]time.Duration{"group:0": 1500 * time.Millisecond},
		Links: []engine.Link{{Kind: "local", Hops: 3, Bytes: 4096, Faults: 1, Time: time.Second / 2, Within: time.Second / 4}}, ExpertsComputed: map[string]uint64{"cpu": 12},
		ExpertCaches: []engine.ExpertCache{{Strategy: "lru", Rank: "hostsim", Hits: 5, Misses: 6, Host: 8, Copies: 9, CopiedBytes: 7}},
	})
	res := f.send(t, "GET", "/metrics", "")
	text := "\n" + readAll(t, res.Body)
	if ct := res.Header.Get("Content-Type"); !strings.HasPrefix(ct, "text/plain") {
		t.Errorf("%q", ct)
	}
	for _, line := range []string{
		"# TYPE krater:num_requests_running gauge", "krater:num_requests_running 2",
		"# TYPE krater:num_requests_waiting gauge", "krater:num_requests_waiting 3",
		"# TYPE krater:kv_cache_usage_perc gauge", "krater:kv_cache_usage_perc 0.25",
		"# TYPE krater:prompt_tokens_total counter", "krater:prompt_tokens_total 100",
		"# TYPE krater:generation_tokens_total counter", "krater:generation_tokens_total 50",
		"# TYPE krater:request_success counter",
		`krater:request_success{finished_reason="stop"} 7`, `krater:request_success{finished_reason="length"} 0`,
		`krater:request_success{finished_reason="abort"} 1`, `krater:request_success{finished_reason="error"} 0`,
		"# TYPE krater:time_to_first_token_seconds histogram",
		`krater:time_to_first_token_seconds_bucket{le="2560"} 3`, `krater:time_to_first_token_seconds_bucket{le="+Inf"} 4`,
		"krater:time_to_first_token_seconds_sum 3000", "krater:time_to_first_token_seconds_count 4",
		"# TYPE krater:inter_token_latency_seconds histogram", `krater:inter_token_latency_seconds_bucket{le="0.01"} 9`,
		"# TYPE krater:e2e_request_latency_seconds histogram", "krater:e2e_request_latency_seconds_count 0",
		"# TYPE krater:request_queue_time_seconds histogram",
		"# TYPE krater:iteration_tokens_total histogram", `krater:iteration_tokens_total_bucket{le="8"} 5`,
		"# TYPE krater:actor_queue_depth gauge", `krater:actor_queue_depth{actor="group:0"} 4`,
		"# TYPE krater:actor_wait_seconds counter", `krater:actor_wait_seconds{actor="group:0"} 1.5`,
		"# TYPE krater:link_bytes counter", `krater:link_bytes{kind="local"} 4096`, `krater:link_hops{kind="local"} 3`, `krater:link_faults{kind="local"} 1`, `krater:link_seconds{kind="local"} 0.5`, `krater:link_clock_seconds{kind="local"} 0.25`,
		"# TYPE krater:experts_computed counter", `krater:experts_computed{device="cpu"} 12`,
		`krater:expert_cache_hits{rank="hostsim",strategy="lru"} 5`, `krater:expert_cache_misses{rank="hostsim",strategy="lru"} 6`, `krater:expert_cache_host{rank="hostsim",strategy="lru"} 8`, `krater:expert_copies{rank="hostsim",strategy="lru"} 9`,
		"# TYPE krater:expert_dma_bytes counter", `krater:expert_dma_bytes{rank="hostsim",strategy="lru"} 7`,
		"# TYPE go_goroutines gauge", "# TYPE process_resident_memory_bytes gauge",
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
	f.engine.SetStats(engine.Stats{PromptTokens: 101})
	if text := readAll(t, f.send(t, "GET", "/metrics", "").Body); !strings.Contains(text, "krater:prompt_tokens_total 101") || !strings.Contains(text, "krater:kv_cache_usage_perc 0\n") {
		t.Error("a scrape is not a fresh snapshot")
	}
}

// TestReadyMetrics: the metric ready agrees with /ready, and the metric draining distinguishes a stop
// from a load.
func TestReadyMetrics(t *testing.T) {
	e := enginetest.New()
	s := New(e, Options{})
	says := func(path string) (int, string) {
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Code, w.Body.String()
	}
	check := func(when string, status int, lines ...string) {
		t.Helper()
		if code, _ := says("/ready"); code != status {
			t.Errorf("%s /ready says %d", when, code)
		}
		_, text := says("/metrics")
		for _, line := range lines {
			if !strings.Contains(text, "\n"+line+"\n") {
				t.Errorf("%s there is no line %q", when, line)
			}
		}
	}
	e.SetReady(&engine.Error{Kind: engine.Unavailable, Message: "the model is loading"})
	check("while loading", 503, "krater:ready 0", "krater:draining 0")
	e.SetReady(nil)
	check("then", 200, "krater:ready 1", "krater:draining 0")
	s.enter() // an answer that goes on
	ended := make(chan error, 1)
	go func() { ended <- s.Shutdown(t.Context()) }()
	<-s.Draining()
	check("while draining", 503, "krater:ready 0", "krater:draining 1")
	s.leave()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}
