package actors

import (
	"maps"
	"sync"
	"sync/atomic"

	"krater/actors/engine"
	"krater/scheduler"
)

// meters are the pipeline's counters. Actors write them, Stats reads them; the
// histograms are touched a few times a step, under one lock.
type meters struct {
	prompt, generated, steps, experts atomic.Uint64
	lost, replays                     atomic.Uint64 // ranks; requests

	mu                    sync.Mutex
	stepTokens            histogram
	queue, ttft, itl, e2e histogram
	finished              map[string]uint64
	core                  scheduler.Stats
	kvBlocksFull          int
}

// Bucket bounds in seconds follow vLLM's histograms, so that dashboards carry
// over; time to first token goes up to 2560 s because a long prompt on a CPU
// takes that long.
var (
	boundsTTFT = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	boundsITL  = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	boundsE2E  = []float64{0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	boundsStep = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
)

func newMeters(blocks int) *meters {
	return &meters{
		stepTokens: histogram{bounds: boundsStep}, queue: histogram{bounds: boundsE2E},
		ttft: histogram{bounds: boundsTTFT}, itl: histogram{bounds: boundsITL}, e2e: histogram{bounds: boundsE2E},
		finished: map[string]uint64{"stop": 0, "length": 0, "abort": 0, "error": 0}, kvBlocksFull: blocks,
	}
}

// histogram counts values; not safe for concurrent use.
type histogram struct {
	bounds []float64
	counts []uint64 // per bucket, not cumulative
	n      uint64
	sum    float64
}

func (h *histogram) observe(v float64) {
	if h.counts == nil {
		h.counts = make([]uint64, len(h.bounds))
	}
	for i, b := range h.bounds {
		if v <= b {
			h.counts[i]++
			break
		}
	}
	h.n++
	h.sum += v
}

// snapshot returns the cumulative form.
func (h *histogram) snapshot() engine.Histogram {
	s := engine.Histogram{Bounds: h.bounds, Counts: make([]uint64, len(h.bounds)), Count: h.n, Sum: h.sum}
	var below uint64
	for i := range h.counts {
		below += h.counts[i]
		s.Counts[i] = below
	}
	return s
}

// step counts a batch with that many rows, and how many of them are of prompts.
func (m *meters) step(rows, prompt int) {
	m.steps.Add(1)
	m.prompt.Add(uint64(prompt))
	m.mu.Lock()
	m.stepTokens.observe(float64(rows))
	m.mu.Unlock()
}

// started counts a request that left the queue.
func (m *meters) started(waited float64) {
	m.mu.Lock()
	m.queue.observe(waited)
	m.mu.Unlock()
}

// token counts a generated token: the first by the time since the request came,
// the others by the time since the one before.
func (m *meters) token(first bool, after float64) {
	m.generated.Add(1)
	m.mu.Lock()
	if first {
		m.ttft.observe(after)
	} else {
		m.itl.observe(after)
	}
	m.mu.Unlock()
}

// ended counts a finished request by its reason, in vLLM's words.
func (m *meters) ended(e engine.Event, took float64) {
	reason := "error"
	if e.Kind == engine.Done {
		switch e.Finish {
		case engine.FinishStop:
			reason = "stop"
		case engine.FinishLength:
			reason = "length"
		case engine.FinishCancelled:
			reason = "abort"
		}
	}
	m.mu.Lock()
	m.finished[reason]++
	m.e2e.observe(took)
	m.mu.Unlock()
}

// room notes the number of KV blocks.
func (m *meters) room(blocks int) {
	m.mu.Lock()
	m.kvBlocksFull = blocks
	m.mu.Unlock()
}

// gauges publishes the scheduler's view of the moment.
func (m *meters) gauges(s scheduler.Stats) {
	m.mu.Lock()
	m.core = s
	m.mu.Unlock()
}

// snapshot copies everything.
func (m *meters) snapshot() engine.Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return engine.Stats{
		Running: m.core.Running(), Waiting: m.core.Waiting, KVBlocksUsed: m.core.BlocksUsed, KVBlocksTotal: m.kvBlocksFull,
		KVBlocksCached: m.core.BlocksCached, KVHostUsed: m.core.RAMUsed, KVHostTotal: m.core.RAMTotal,
		RanksLost: m.lost.Load(), Replays: m.replays.Load(), Preemptions: m.core.Preemptions, PrefixQueries: m.core.PrefixQueries, PrefixHits: m.core.PrefixHits,
		PromptTokens: m.prompt.Load(), GeneratedTokens: m.generated.Load(), Steps: m.steps.Load(), StepsAhead: m.core.Ahead,
		Finished: maps.Clone(m.finished), StepTokens: m.stepTokens.snapshot(),
		QueueTime: m.queue.snapshot(), TTFT: m.ttft.snapshot(), ITL: m.itl.snapshot(), E2E: m.e2e.snapshot(),
		ExpertsComputed: map[string]uint64{"cpu": m.experts.Load()},
	}
}
