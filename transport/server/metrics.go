package server

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"krater/actors/engine"
)

func newRegistry(s *Server) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		&statsCollector{s}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return r
}

// Register adds metrics of another door to /metrics. Two of one name are an error.
func (s *Server) Register(c prometheus.Collector) error { return s.registry.Register(c) }

func (s *Server) metrics() http.Handler {
	return promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{Timeout: 10 * time.Second})
}

// statsCollector turns one snapshot of engine.Stats into metrics at each scrape; nothing is counted
// twice and nothing is held between scrapes.
type statsCollector struct{ server *Server }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("krater:"+name, help, labels, nil)
}

var (
	descReady      = desc("ready", "1 while requests are served, like /ready; 0 while the model is loading and while the server drains.")
	descDraining   = desc("draining", "1 after a stop signal, while running answers end; otherwise 0.")
	descRunning    = desc("num_requests_running", "Requests in the batch.")
	descWaiting    = desc("num_requests_waiting", "Requests waiting for a place in the batch.")
	descKV         = desc("kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.")
	descCached     = desc("kv_cache_kept_perc", "Share of the KV blocks that no request uses and that are kept for later prompts with the same prefix, 0 to 1.")
	descHost       = desc("kv_cache_host_usage_perc", "Share of the KV blocks in host memory in use, 0 to 1.")
	descGraphs     = desc("step_graphs", "Steps that GPUs keep as graphs. Each takes a few MB of host memory; their number is bounded.")
	descQueries    = desc("prefix_cache_queries", "Prompt tokens looked for in the KV cache.")
	descFound      = desc("prefix_cache_hits", "Prompt tokens found in the KV cache.")
	descPreempted  = desc("num_preemptions", "Requests that were preempted: they lost their KV blocks to other requests and were computed again.")
	descPrompt     = desc("prompt_tokens_total", "Prompt tokens processed.")
	descGenerated  = desc("generation_tokens_total", "Tokens generated.")
	descSuccess    = desc("request_success", "Finished requests.", "finished_reason")
	descTTFT       = desc("time_to_first_token_seconds", "Seconds from a request's arrival to its first token.")
	descITL        = desc("inter_token_latency_seconds", "Seconds between two tokens of a request.")
	descE2E        = desc("e2e_request_latency_seconds", "Seconds from a request's arrival to its end.")
	descQueue      = desc("request_queue_time_seconds", "Seconds a request waited for its first step.")
	descIteration  = desc("iteration_tokens_total", "Tokens of one step.")
	descAhead      = desc("steps_ahead_total", "Steps submitted before the tokens of the previous step were known.")
	descActorQueue = desc("actor_queue_depth", "Messages waiting in an actor's mailbox.", "actor")
	descActorWait  = desc("actor_wait_seconds", "Seconds messages have waited in an actor's mailbox, summed.", "actor")
	descLink       = desc("link_bytes", "Bytes of rows that went from one layer group to the next.", "kind")
	descHops       = desc("link_hops", "Times that rows were copied from one rank to the next.", "kind")
	descHopTime    = desc("link_seconds", "Time of these copies; between processes from sending until the rows were taken.", "kind")
	descHopClocks  = desc("link_clock_seconds", "Time of a copy between processes is known this exactly, as their clocks are, or better.", "kind")
	descLost       = desc("ranks_lost", "Devices and workers that were lost.")
	descReplays    = desc("request_replays", "Requests that went on elsewhere after a rank was lost.")
	descHopFaults  = desc("link_faults", "Copies after which the rows were others than those sent, or had not arrived in time.", "kind")
	descExperts    = desc("experts_computed", "Expert evaluations.", "device")
	descHits       = desc("expert_cache_hits", "Experts that were on the rank when their layer needed them.", "strategy", "rank")
	descMisses     = desc("expert_cache_misses", "Experts that were copied to the rank for the current layer.", "strategy", "rank")
	descLeft       = desc("expert_cache_host", "Experts that were missing on the rank and that the host computed.", "strategy", "rank")
	descCopies     = desc("expert_copies", "Experts copied to the rank: for a layer that needed them, or moved between steps.", "strategy", "rank")
	descDMA        = desc("expert_dma_bytes", "Bytes of experts copied to the rank.", "strategy", "rank")
)

// Describe implements prometheus.Collector.
func (c *statsCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descReady, descDraining, descRunning, descWaiting, descKV, descCached, descHost, descGraphs, descQueries, descFound, descPreempted, descPrompt, descGenerated, descSuccess, descTTFT, descITL, descE2E,
		descQueue, descIteration, descAhead, descActorQueue, descActorWait, descLink, descHops, descHopTime, descHopFaults, descHopClocks, descLost, descReplays, descExperts, descHits, descMisses, descLeft, descCopies, descDMA,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *statsCollector) Collect(out chan<- prometheus.Metric) {
	s := c.server.engine.Stats()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge(descReady, truth(c.server.Ready() == nil))
	gauge(descDraining, truth(c.server.drains()))
	gauge(descRunning, float64(s.Running))
	gauge(descWaiting, float64(s.Waiting))
	gauge(descKV, share(s.KVBlocksUsed, s.KVBlocksTotal))
	gauge(descCached, share(s.KVBlocksCached, s.KVBlocksTotal))
	gauge(descHost, share(s.KVHostUsed, s.KVHostTotal))
	gauge(descGraphs, float64(s.StepGraphs))
	counter(descQueries, float64(s.PrefixQueries))
	counter(descFound, float64(s.PrefixHits))
	counter(descPreempted, float64(s.Preemptions))
	counter(descLost, float64(s.RanksLost))
	counter(descReplays, float64(s.Replays))
	counter(descPrompt, float64(s.PromptTokens))
	counter(descGenerated, float64(s.GeneratedTokens))
	counter(descAhead, float64(s.StepsAhead))
	// All four reasons exist from the start, so that rates begin at zero.
	finished := map[string]uint64{"stop": 0, "length": 0, "abort": 0, "error": 0}
	for reason, n := range s.Finished {
		finished[reason] = n
	}
	for reason, n := range finished {
		counter(descSuccess, float64(n), reason)
	}
	for _, h := range []struct {
		desc *prometheus.Desc
		from engine.Histogram
	}{
		{descTTFT, s.TTFT}, {descITL, s.ITL}, {descE2E, s.E2E}, {descQueue, s.QueueTime}, {descIteration, s.StepTokens},
	} {
		out <- prometheus.MustNewConstHistogram(h.desc, h.from.Count, h.from.Sum, buckets(h.from))
	}
	for actor, n := range s.ActorQueue {
		gauge(descActorQueue, float64(n), actor)
	}
	for actor, d := range s.ActorWait {
		counter(descActorWait, d.Seconds(), actor)
	}
	for _, l := range s.Links {
		counter(descLink, float64(l.Bytes), l.Kind)
		counter(descHops, float64(l.Hops), l.Kind)
		counter(descHopTime, l.Time.Seconds(), l.Kind)
		counter(descHopFaults, float64(l.Faults), l.Kind)
		if l.Within > 0 {
			gauge(descHopClocks, l.Within.Seconds(), l.Kind)
		}
	}
	for device, n := range s.ExpertsComputed {
		counter(descExperts, float64(n), device)
	}
	for _, x := range s.ExpertCaches {
		counter(descHits, float64(x.Hits), x.Strategy, x.Rank)
		counter(descMisses, float64(x.Misses), x.Strategy, x.Rank)
		counter(descLeft, float64(x.Host), x.Strategy, x.Rank)
		counter(descCopies, float64(x.Copies), x.Strategy, x.Rank)
		counter(descDMA, float64(x.CopiedBytes), x.Strategy, x.Rank)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func share(used, total int) float64 {
	if total <= 0 {
		return 0
	}
	return float64(used) / float64(total)
}

func buckets(h engine.Histogram) map[float64]uint64 {
	out := make(map[float64]uint64, len(h.Bounds))
	for i, bound := range h.Bounds {
		if i < len(h.Counts) {
			out[bound] = h.Counts[i]
		}
	}
	return out
}
