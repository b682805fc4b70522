package webui

import (
	"sync"
	"time"

	"krater/actors/engine"
	"krater/actors/trace"
)

const (
	// historyKept is the number of points in the charts, which cover two minutes.
	historyKept = 120
	historySpan = historyKept * time.Second
)

// point is a moment of the charts: the second on the trace's clock, generated and prompt tokens a
// second, requests that run and wait, and the median and the 95th percentile of the first token and
// of the time from token to token, in seconds.
type point [9]float64

// history is the data of the charts and the basis of latencies. It is recorded from the server's
// start, with or without viewers, and takes about 100 KB.
type history struct {
	every time.Duration // between two points

	mu     sync.Mutex
	points []point
	past   []sample // of the latencies' window, oldest first
	at     int64    // of the newest point
	prompt uint64   // tokens until then
	tokens uint64
}

// sample is the histograms of a moment.
type sample struct {
	at   int64
	hist map[string]engine.Histogram
}

func newHistory(every time.Duration) *history { return &history{every: every} }

// note adds a point, unless it is too early for the next.
func (h *history) note(now int64, s *engine.Stats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := len(h.past) == 0
	if !first && now-h.at < int64(h.every) {
		return
	}
	h.past = append(h.past, sample{now, histograms(s)})
	for len(h.past) > 1 && h.past[1].at <= now-int64(window) {
		h.past = h.past[1:]
	}
	if !first {
		ttft, itl := h.latency("ttft", s.TTFT), h.latency("itl", s.ITL)
		seconds := float64(now-h.at) / 1e9
		p := point{
			float64(now/1e6) / 1e3, perSecond(s.GeneratedTokens, h.tokens, seconds), perSecond(s.PromptTokens, h.prompt, seconds),
			float64(s.Running), float64(s.Waiting), ttft.P50, ttft.P95, itl.P50, itl.P95,
		}
		h.points = append(h.points, p)
		for len(h.points) > historyKept || h.points[0][0] < p[0]-historySpan.Seconds() {
			h.points = h.points[1:]
		}
	}
	h.at, h.prompt, h.tokens = now, s.PromptTokens, s.GeneratedTokens
}

// perSecond returns the rate of a counter; a counter that was reset gives 0.
func perSecond(now, before uint64, seconds float64) float64 {
	if now < before || seconds <= 0 {
		return 0
	}
	return round3(float64(now-before) / seconds)
}

// latency returns the latencies of the window until now. h.mu is held.
func (h *history) latency(name string, now engine.Histogram) latency {
	return between(h.past[0].hist[name], now)
}

// latencies returns the latencies of the window until now.
func (h *history) latencies(s *engine.Stats) map[string]latency {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]latency{}
	for name, hist := range histograms(s) {
		out[name] = h.latency(name, hist)
	}
	return out
}

// all returns the points, oldest first.
func (h *history) all() []point {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]point{}, h.points...)
}

// newest is nil before there is a point.
func (h *history) newest() *point {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.points) == 0 {
		return nil
	}
	p := h.points[len(h.points)-1]
	return &p
}

// remember notes points until the server shuts down.
func (p *Page) remember() {
	tick := time.NewTicker(p.opt.Sample)
	defer tick.Stop()
	for {
		s := p.src.Stats()
		p.past.note(trace.Now(), &s)
		select {
		case <-tick.C:
		case <-p.opt.Draining:
			return
		}
	}
}
