package webui

import (
	"cmp"
	"math"
	"reflect"
	"slices"
	"time"

	"krater/actors/engine"
	"krater/actors/trace"
)

const (
	// smoothing is how long a rate takes to follow a change, so that a step of a second does not
	// look like idle time followed by a burst.
	smoothing = time.Second
	// window is the period of the latencies.
	window = 30 * time.Second
	// requestsMax bounds the table of open requests.
	requestsMax = 200
	// heatEvery is the interval at which heat is read.
	heatEvery = time.Second
	// heatKeep is the weight that older rows keep when newer ones arrive, while heatRows are left.
	// Fewer rows than that all have the same weight.
	heatKeep = 0.9
	heatRows = 200
	// hotLeast is the number of a layer's rows from which its experts are described.
	hotLeast = 50
	hotMost  = 8
	// eventsMost bounds the events that shares are found from.
	eventsMost = 40_000
	// requestsEvery is the interval at which the table of requests is made.
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
	past    *history

	where   *shares // of the newest steps, or of the last request while nothing runs
	whereAt int64   // when it was found, if it describes steps
	quiet   bool    // it describes the last request, or nil if that is no longer kept
	last    uint64

	openAt int64
	open   *[]request

	heatAt int64
	counts [][]uint64
	recent [][]float64 // [layers][experts] choices, older ones weighing less
	tokens []uint64
	weight []float64 // [layers] rows, likewise
	heat   *heat
}

func newMeter(src Source, past *history, now int64) *meter {
	m := &meter{src: src, top: src.Topology(), past: past, loads: map[string]load{}, caches: map[string]expertCache{}, compute: map[string]float64{}}
	m.at, m.stats, m.totals = now, src.Stats(), m.read()
	past.note(now, &m.stats)
	return m
}

func (m *meter) read() map[string]trace.Totals {
	totals := map[string]trace.Totals{}
	if g := m.src.Trace(); g != nil {
		g.Refresh()
		for _, r := range g.Rings() {
			totals[r.Name()] = r.Totals()
		}
	}
	return totals
}

// look reads the topology, and reports whether it is another one than before.
func (m *meter) look() bool {
	before := m.top
	m.top = m.src.Topology()
	return !reflect.DeepEqual(m.top, before)
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
	m.past.note(now, &stats)
	flow := m.flow
	s.Flow, s.Latency, s.Point = &flow, m.past.latencies(&stats), m.past.newest()
	quiet := stats.Running+stats.Waiting == 0 && stats.Steps == m.stats.Steps
	if m.open == nil || quiet || now-m.openAt >= int64(requestsEvery) {
		m.open, m.openAt = requests(m.src.Running()), now
	}
	s.Requests = m.open
	m.measureShares(now, quiet, stats.Steps > m.stats.Steps)
	s.Where = m.where
	m.measureHeat(now)
	s.Heat = m.heat
	s.Verdict = judge(m.top, s)
	m.at, m.stats, m.totals = now, stats, totals
	return s
}

// round3 keeps three digits, so that small changes cause no delta.
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
		e.Host = rate(e.Host, float64(c.Host-before.Host))
		e.Moves = rate(e.Moves, float64(moves(&c)-moves(&before)))
		e.Bytes = math.Round(rate(e.Bytes, float64(c.CopiedBytes-before.CopiedBytes)))
		e.Rate, e.Link = -1, -1
		missing := c.Misses + c.Host
		if c.Hits+missing > 0 {
			e.Rate = round3(float64(c.Hits) / float64(c.Hits+missing))
		}
		if missing > 0 {
			e.Link = round3(float64(c.Misses) / float64(missing))
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

// moves returns the number of experts that were copied for no layer in particular.
func moves(c *engine.ExpertCache) uint64 { return c.Copies - min(c.Copies, c.Misses) }

// measureShares finds where the time goes: of the newest steps while there are any, of the request
// that ended last while nothing runs. What was found stays until there is more to say.
func (m *meter) measureShares(now int64, quiet, stepped bool) {
	g := m.src.Trace()
	if g == nil {
		return
	}
	if !quiet {
		m.quiet = false
		if stepped && (m.whereAt == 0 || now-m.whereAt >= liveEvery) {
			if s := liveShares(g, now, eventsMost); s != nil {
				m.where, m.whereAt = s, now
			}
		}
		return
	}
	var last uint64
	for i := range *m.open {
		if r := &(*m.open)[i]; r.Phase == engine.Ended && r.Generated > 0 {
			last = r.ID
		}
	}
	if m.quiet && last == m.last {
		return
	}
	m.quiet, m.last, m.whereAt = true, last, 0
	if m.where = nil; last != 0 {
		m.where = requestShares(g, last, eventsMost)
	}
}

// between returns what a histogram got from one moment to another.
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

// measureHeat lowers the weight of earlier choices as new ones arrive.
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
		m.tokens, m.weight = make([]uint64, len(h.Layers)), make([]float64, len(h.Layers))
		for i := range h.Layers {
			m.counts[i], m.recent[i] = make([]uint64, h.Experts), make([]float64, h.Experts)
		}
	}
	changed := fresh
	for i := range h.Layers {
		if slices.Equal(m.counts[i], h.Counts[i]) {
			continue
		}
		changed = true
		came, keep := float64(h.Tokens[i]-m.tokens[i]), 1.0
		if heatKeep*m.weight[i]+came >= heatRows {
			keep = heatKeep
		}
		m.weight[i] = keep*m.weight[i] + came
		for e, n := range h.Counts[i] {
			m.recent[i][e] = keep*m.recent[i][e] + float64(n-m.counts[i][e])
		}
		copy(m.counts[i], h.Counts[i])
	}
	copy(m.tokens, h.Tokens)
	next := &heat{Layers: h.Layers, Experts: h.Experts, TopK: h.TopK, Resident: bits(h.Resident), Least: hotLeast, Hot: []hot{}}
	if !changed && slices.Equal(next.Resident, m.heat.Resident) {
		return
	}
	if len(h.Tokens) > 0 {
		next.Rows = slices.Max(h.Tokens)
	}
	m.shade(next)
	m.heat = next
}

// shade sets the levels and the hottest experts, for layers with enough counted rows.
func (m *meter) shade(h *heat) {
	for i, layer := range h.Layers {
		for e, n := range m.recent[i] {
			level := 0.0
			if rows := m.weight[i]; rows > 0 {
				level = 32 * n / (rows * float64(h.TopK)) * float64(h.Experts)
				if n > 0 && m.tokens[i] >= hotLeast {
					h.Hot = append(h.Hot, hot{layer, e, round3(min(1, n/rows))})
				}
			}
			h.Levels = append(h.Levels, byte(min(255, math.Round(level))))
		}
	}
	slices.SortStableFunc(h.Hot, func(a, b hot) int { return cmp.Compare(b.Share, a.Share) })
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
