package webui

import (
	"math"
	"slices"
	"time"

	"krater/actors/engine"
	"krater/actors/trace"
)

const (
	// smoothing is how long a rate takes to follow a change, so that a step of a second does
	// not look like idleness and a burst.
	smoothing = time.Second
	// window is that of latencies.
	window = 30 * time.Second
	// requestsMax bounds the table of open requests.
	requestsMax = 200
	// heatEvery is how often heat is looked at, and heatKeep what is left of it then.
	heatEvery = time.Second
	heatKeep  = 0.9
	hotMost   = 8
	// requestsEvery is how often the table of requests is made anew.
	requestsEvery = 500 * time.Millisecond
)

// meter makes states of what a source counts. It belongs to one goroutine.
type meter struct {
	src Source
	top engine.Topology

	at      int64 // of the counts below, on the trace's clock
	totals  map[string]trace.Totals
	stats   engine.Stats
	loads   map[string]load
	flow    flow
	caches  map[string]expertCache
	compute map[string]float64
	past    []sample // of the latencies' window, oldest first

	openAt int64
	open   *[]request

	heatAt int64
	counts [][]uint64
	recent [][]float64
	heat   *heat
}

// sample is the histograms of a moment.
type sample struct {
	at   int64
	hist map[string]engine.Histogram
}

func newMeter(src Source, now int64) *meter {
	m := &meter{src: src, top: src.Topology(), loads: map[string]load{}, caches: map[string]expertCache{}, compute: map[string]float64{}}
	m.at, m.stats, m.totals = now, src.Stats(), m.read()
	m.past = []sample{{now, histograms(&m.stats)}}
	return m
}

func (m *meter) read() map[string]trace.Totals {
	totals := map[string]trace.Totals{}
	if g := m.src.Trace(); g != nil {
		for _, r := range g.Rings() {
			totals[r.Name()] = r.Totals()
		}
	}
	return totals
}

func histograms(s *engine.Stats) map[string]engine.Histogram {
	return map[string]engine.Histogram{"ttft": s.TTFT, "itl": s.ITL, "queue": s.QueueTime, "e2e": s.E2E}
}

// measure takes the next state.
func (m *meter) measure(now int64) *state {
	seconds := float64(max(1, now-m.at)) / 1e9
	stats, totals := m.src.Stats(), m.read()
	weight := 1 - math.Exp(-seconds/smoothing.Seconds())
	rate := func(old float64, amount float64) float64 {
		v := old + weight*(amount/seconds-old)
		if v < 1e-3 {
			return 0
		}
		return round3(v)
	}
	s := &state{Now: now, Nodes: map[string]load{}}
	for _, n := range m.top.Nodes {
		before, after, l := m.totals[n.Name], totals[n.Name], m.loads[n.Name]
		count := float64(after.Count - before.Count)
		l[loadQueue] = float64(stats.ActorQueue[n.Name])
		l[loadRate] = rate(l[loadRate], count)
		l[loadBusy] = min(1, rate(l[loadBusy], (after.Run-before.Run).Seconds()))
		l[loadBytes] = math.Round(rate(l[loadBytes], float64(after.Bytes-before.Bytes)))
		if count > 0 {
			l[loadWait] = round3((after.Wait - before.Wait).Seconds() / count)
		}
		m.loads[n.Name] = l
	}
	s.Experts = m.experts(&stats, rate)
	m.measureFlow(&stats, rate)
	for name, l := range m.loads {
		s.Nodes[name] = l
	}
	flow := m.flow
	s.Flow, s.Latency = &flow, m.latencies(now, &stats)
	if m.open == nil || now-m.openAt >= int64(requestsEvery) {
		m.open, m.openAt = requests(m.src.Running()), now
	}
	s.Requests = m.open
	m.measureHeat(now)
	s.Heat = m.heat
	s.Verdict = judge(m.top, s)
	m.at, m.stats, m.totals = now, stats, totals
	return s
}

// round3 leaves three digits, so that deltas of what hardly changes are empty.
func round3(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	scale := math.Pow(10, 2-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

func (m *meter) measureFlow(s *engine.Stats, rate func(old, amount float64) float64) {
	f := &m.flow
	steps := float64(s.Steps - m.stats.Steps)
	f.Tokens = rate(f.Tokens, float64(s.GeneratedTokens-m.stats.GeneratedTokens))
	f.Prompt = rate(f.Prompt, float64(s.PromptTokens-m.stats.PromptTokens))
	f.Steps = rate(f.Steps, steps)
	if steps > 0 {
		f.Rows = round3((s.StepTokens.Sum - m.stats.StepTokens.Sum) / steps)
	}
	f.Running, f.Waiting, f.Preempt = s.Running, s.Waiting, int(s.Preemptions)
	f.KV, f.HostKV = [3]int{s.KVBlocksUsed, s.KVBlocksCached, s.KVBlocksTotal}, [2]int{s.KVHostUsed, s.KVHostTotal}
	f.Prefix = [2]int{int(s.PrefixQueries), int(s.PrefixHits)}
	f.Totals = [3]int{int(s.PromptTokens), int(s.GeneratedTokens), int(s.Steps)}
}

// experts also gives the copies' node its load.
func (m *meter) experts(s *engine.Stats, rate func(old, amount float64) float64) *experts {
	x := &experts{Computed: map[string]float64{}, Caches: []expertCache{}}
	for device, n := range s.ExpertsComputed {
		m.compute[device] = rate(m.compute[device], float64(n-m.stats.ExpertsComputed[device]))
		x.Computed[device] = m.compute[device]
	}
	var bytes float64
	for _, c := range s.ExpertCaches {
		key := c.Strategy + " " + c.Rank
		var before engine.ExpertCache
		if i := slices.IndexFunc(m.stats.ExpertCaches, func(b engine.ExpertCache) bool { return b.Strategy == c.Strategy && b.Rank == c.Rank }); i >= 0 {
			before = m.stats.ExpertCaches[i]
		}
		e := m.caches[key]
		e.Strategy, e.Rank = c.Strategy, c.Rank
		e.Hits, e.Misses = rate(e.Hits, float64(c.Hits-before.Hits)), rate(e.Misses, float64(c.Misses-before.Misses))
		e.Bytes = math.Round(rate(e.Bytes, float64(c.CopiedBytes-before.CopiedBytes)))
		if e.Rate = -1; c.Hits+c.Misses > 0 {
			e.Rate = round3(float64(c.Hits) / float64(c.Hits+c.Misses))
		}
		m.caches[key] = e
		bytes += e.Bytes
		x.Caches = append(x.Caches, e)
	}
	for _, n := range m.top.Nodes {
		if n.Kind == engine.NodeCopies {
			m.loads[n.Name] = load{loadBytes: bytes}
		}
	}
	return x
}

// latencies are those of the window.
func (m *meter) latencies(now int64, s *engine.Stats) map[string]latency {
	if now-m.past[len(m.past)-1].at >= int64(time.Second) {
		m.past = append(m.past, sample{now, histograms(s)})
	}
	for len(m.past) > 1 && m.past[1].at <= now-int64(window) {
		m.past = m.past[1:]
	}
	out := map[string]latency{}
	for name, h := range histograms(s) {
		out[name] = between(m.past[0].hist[name], h)
	}
	return out
}

// between is what a histogram got from one moment to another.
func between(before, after engine.Histogram) latency {
	l := latency{Bounds: after.Bounds, Counts: make([]uint64, len(after.Bounds)+1)}
	var below uint64
	for i := range after.Counts {
		cumulative := after.Counts[i]
		if i < len(before.Counts) {
			cumulative -= before.Counts[i]
		}
		l.Counts[i] = cumulative - below
		below = cumulative
	}
	l.Counts[len(l.Counts)-1] = after.Count - before.Count - below
	l.P50, l.P95 = l.quantile(0.5), l.quantile(0.95)
	return l
}

// quantile is interpolated within a bucket; 0 where there is nothing.
func (l *latency) quantile(q float64) float64 {
	var n uint64
	for _, c := range l.Counts {
		n += c
	}
	if n == 0 {
		return 0
	}
	rank, below := q*float64(n), 0.0
	for i, c := range l.Counts {
		if below+float64(c) < rank || c == 0 {
			below += float64(c)
			continue
		}
		if i == len(l.Bounds) {
			break
		}
		low := 0.0
		if i > 0 {
			low = l.Bounds[i-1]
		}
		return round3(low + (l.Bounds[i]-low)*(rank-below)/float64(c))
	}
	return l.Bounds[len(l.Bounds)-1]
}

func requests(open []engine.Running) *[]request {
	list := make([]request, 0, min(len(open), requestsMax))
	for _, r := range open[:min(len(open), requestsMax)] {
		list = append(list, request{
			ID: r.ID, Name: r.Name, Phase: r.Phase, Prompt: r.Prompt, Cached: r.Cached, Generated: r.Generated, Most: r.Most, Priority: r.Priority,
			Age: round3(r.Since.Seconds()), Waited: round3(r.Waited.Seconds()), ToFirst: round3(r.ToFirst.Seconds()), PerToken: round3(r.PerToken.Seconds()),
			owner: r.Owner,
		})
	}
	return &list
}

// measureHeat lets what was chosen before fade as new choices come in.
func (m *meter) measureHeat(now int64) {
	if m.heat != nil && now-m.heatAt < int64(heatEvery) {
		return
	}
	m.heatAt = now
	h := m.src.Heat()
	if h.Experts == 0 {
		return
	}
	fresh := m.counts == nil
	if fresh {
		m.counts, m.recent = make([][]uint64, len(h.Layers)), make([][]float64, len(h.Layers))
	}
	changed := fresh
	for i := range h.Layers {
		if m.counts[i] == nil {
			m.counts[i], m.recent[i] = make([]uint64, h.Experts), make([]float64, h.Experts)
		}
		if slices.Equal(m.counts[i], h.Counts[i]) {
			continue
		}
		changed = true
		for e, n := range h.Counts[i] {
			m.recent[i][e] = heatKeep*m.recent[i][e] + float64(n-m.counts[i][e])
		}
		copy(m.counts[i], h.Counts[i])
	}
	next := &heat{Layers: h.Layers, Experts: h.Experts, TopK: h.TopK, Resident: bits(h.Resident), Hot: []hot{}}
	if !changed && slices.Equal(next.Resident, m.heat.Resident) {
		return
	}
	if len(h.Tokens) > 0 {
		next.Rows = slices.Max(h.Tokens)
	}
	m.shade(next)
	m.heat = next
}

// shade sets levels and the hottest experts.
func (m *meter) shade(h *heat) {
	for i, layer := range h.Layers {
		sum := 0.0
		for _, n := range m.recent[i] {
			sum += n
		}
		for e, n := range m.recent[i] {
			level := 0.0
			if sum > 0 {
				level = 32 * n / sum * float64(h.Experts)
				h.Hot = append(h.Hot, hot{layer, e, round3(n / sum * float64(h.TopK))})
			}
			h.Levels = append(h.Levels, byte(min(255, math.Round(level))))
		}
	}
	slices.SortStableFunc(h.Hot, func(a, b hot) int {
		switch {
		case a.Share > b.Share:
			return -1
		case a.Share < b.Share:
			return 1
		}
		return 0
	})
	h.Hot = slices.Clone(h.Hot[:min(len(h.Hot), hotMost)])
}

func bits(rows [][]bool) (list []byte) {
	for _, row := range rows {
		for _, yes := range row {
			b := byte(0)
			if yes {
				b = 1
			}
			list = append(list, b)
		}
	}
	return list
}
