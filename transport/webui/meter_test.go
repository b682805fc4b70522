package webui

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"krater/actors/engine"
)

// TestMeter: rates come to what steps of a known make-up give, whenever they end.
func TestMeter(t *testing.T) {
	f := newFake()
	m := newMeter(f, newHistory(time.Second), 0)
	var s *state
	at := int64(0)
	for now := int64(100e6); now <= 10e9; now += 100e6 {
		for at < now {
			at = f.step(at, 20e6, 4)
		}
		s = m.measure(now)
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 0.1*want {
			t.Errorf("%s: %v, want about %v", what, got, want)
		}
	}
	perStep := float64(at) / float64(f.batch)
	steps := 1e9 / perStep
	near("steps a second", s.Flow.Steps, steps)
	near("tokens a second", s.Flow.Tokens, 4*steps)
	near("rows of a step", s.Flow.Rows, 4)
	pool := s.Nodes["pool1"]
	near("pool1's messages a second", pool[loadRate], 8*steps)
	near("pool1's busy share", pool[loadBusy], 8*(7-1.0/8)*20e6/100/perStep)
	near("pool1's bytes a second", pool[loadBytes], 8*7*4e6*steps)
	near("pool1's wait", pool[loadWait], 20e6/100/8/1e9)
	near("hit rate", s.Experts.Caches[0].Rate, 0.75)
	learned := s.Experts.Caches[1]
	near("hit rate with a host", learned.Rate, 0.75)
	near("share over the link", learned.Link, 0.25)
	near("moves a second", learned.Moves, 2*steps)
	near("experts of the host a second", learned.Host, 15*steps)
	near("hits a second", s.Experts.Caches[0].Hits, 30*steps)
	near("copies' bytes a second", s.Nodes["copies"][loadBytes], float64(17<<20)*steps)
	if most := s.Where.Parts[0]; s.Verdict.Node != "pool1" || most.Lane != "pool1" || s.Verdict.Text != fmt.Sprintf("Expert pool 1 takes the largest part of a step, %.0f %%.", 100*most.Share) {
		t.Errorf("verdict %+v, parts %+v", s.Verdict, s.Where.Parts)
	}
	near("median between tokens", s.Latency["itl"].P50, 0.055) // all within 10 to 100 ms
	if s.Latency["ttft"].P50 != 0 {
		t.Errorf("a median of nothing: %v", s.Latency["ttft"].P50)
	}
	// And back to nothing.
	f.open = []engine.Running{{ID: 9, Phase: engine.Ended, Generated: 3}} // no step of it is kept
	for now := int64(10e9); now < 60e9; now += 1e9 {
		s = m.measure(now)
	}
	if s.Flow.Tokens != 0 || s.Nodes["pool1"][loadBusy] != 0 || s.Latency["itl"].P50 != 0 || s.Verdict.Text != "Idle: no request is running." {
		t.Errorf("at rest: %+v, %+v", s.Flow, s.Verdict)
	}
}

func TestQuantiles(t *testing.T) {
	h := func(counts ...uint64) engine.Histogram {
		return engine.Histogram{Bounds: []float64{1, 2, 4}, Counts: counts[:3], Count: counts[3]}
	}
	for _, c := range []struct {
		before, after engine.Histogram
		p50, p95      float64
	}{
		{h(0, 0, 0, 0), h(0, 0, 0, 0), 0, 0},
		{h(0, 0, 0, 0), h(10, 10, 10, 10), 0.5, 0.95},
		{h(10, 10, 10, 10), h(10, 20, 20, 20), 1.5, 1.95},
		{h(1, 2, 3, 4), h(1, 2, 3, 14), 4, 4}, // all above the last bound
		{h(0, 0, 0, 0), h(5, 5, 10, 10), 1, 3.8},
	} {
		l := between(c.before, c.after)
		if l.P50 != c.p50 || l.P95 != c.p95 {
			t.Errorf("from %+v to %+v: %v and %v, want %v and %v", c.before, c.after, l.P50, l.P95, c.p50, c.p95)
		}
	}
}

// TestHeatFades: what was hot before gives way to what is hot now, and nothing changes while
// nothing is chosen.
func TestHeatFades(t *testing.T) {
	f := newFake()
	m := newMeter(f, newHistory(time.Second), 0)
	choose := func(e, times int) {
		f.counts[3][e] += uint64(times)
		f.rows[3] += uint64(times)
	}
	choose(5, 100)
	now := int64(0)
	look := func() *heat {
		now += int64(heatEvery)
		m.measureHeat(now)
		return m.heat
	}
	h := look()
	if h.Hot[0].Layer != 4 || h.Hot[0].Expert != 5 || h.Hot[0].Share != 1 || h.Levels[3*fakeExperts+5] != 255 || h.Levels[0] != 0 || h.Rows != 100 {
		t.Fatalf("hot %+v", h.Hot)
	}
	if look() != h {
		t.Error("heat is made anew though nothing was chosen")
	}
	for range 40 {
		choose(9, 20)
		h = look()
	}
	if h.Hot[0].Expert != 9 || h.Hot[0].Share < 0.9 || h.Hot[0].Share > 1 {
		t.Errorf("hot %+v", h.Hot[:2])
	}
}

// TestFewRows: a layer's experts are not reported before enough rows were counted, and the shares
// of few rows are multiples of one row.
func TestFewRows(t *testing.T) {
	f := newFake()
	m := newMeter(f, newHistory(time.Second), 0)
	now, chosen := int64(0), 0
	for row := 1; row <= 120; row++ {
		f.rows[3]++
		f.counts[3][9]++
		if row%3 == 0 {
			f.counts[3][5]++
			chosen++
		}
		now += int64(heatEvery)
		m.measureHeat(now)
		if row < hotLeast {
			if len(m.heat.Hot) != 0 {
				t.Fatalf("after %d rows: %+v", row, m.heat.Hot)
			}
			continue
		}
		want := []hot{{4, 9, 1}, {4, 5, round3(float64(chosen) / float64(row))}}
		if !slices.Equal(m.heat.Hot, want) {
			t.Fatalf("after %d rows: %+v, want %+v", row, m.heat.Hot, want)
		}
	}
	if m.heat.Least != hotLeast || m.heat.Rows != 120 {
		t.Errorf("heat says %d of %d rows", m.heat.Rows, m.heat.Least)
	}
}

func TestVerdict(t *testing.T) {
	top := newFake().Topology()
	top.Nodes = slices.DeleteFunc(top.Nodes, func(n engine.Node) bool { return n.Kind == engine.NodeDevice })
	for _, c := range []struct {
		of   string
		part part
		flow flow
		want string
	}{
		{"", part{}, flow{}, "Idle: no request is running."},
		{"", part{}, flow{Waiting: 1}, "The first step is running. 1 request waits for a place among the running ones."},
		{"steps", part{"group0", "", 0.93}, flow{Running: 2}, "The group of layers 0–11 takes 93 % of a step: it is the bottleneck."},
		{"steps", part{"pool2", "", 0.4}, flow{Running: 1}, "Expert pool 2 takes the largest part of a step, 40 %."},
		{"steps", part{"head", "", 0.2}, flow{Running: 1}, "There is no single bottleneck: the head takes the largest part of a step, only 20 %."},
		{"steps", part{"", waitMessage, 0.5}, flow{Running: 1}, "Waiting between actors takes the largest part of a step, 50 %."},
		{"steps", part{"", waitCopy, 0.7}, flow{Running: 1}, "Waiting for copies takes 70 % of a step: it is the bottleneck."},
		{"steps", part{"group1", "", 0.7}, flow{Running: 8, Waiting: 1, KV: [3]int{99, 0, 100}}, "The group of layers 12–23 takes 70 % of a step: it is the bottleneck. 1 request waits for blocks of the KV cache."},
		{"steps", part{"schedule", "", 0.7}, flow{Running: 8, Waiting: 3, KV: [3]int{9, 0, 100}}, "The scheduler takes 70 % of a step: it is the bottleneck. 3 requests wait for a place among the running ones."},
		{"request", part{"head", "", 0.45}, flow{}, "Idle: no request is running. The head took the largest part of the last request, 45 %."},
		{"request", part{"head", "", 0.45}, flow{Running: 1, Waiting: 1}, "The head took the largest part of the last request, 45 %. 1 request waits for a place among the running ones."},
	} {
		s := &state{Flow: &c.flow}
		if c.of != "" {
			s.Where = &shares{Of: c.of, Parts: []part{c.part, {"embed", "", 0.01}}}
		}
		if v := judge(top, s); v.Text != c.want || v.Node != c.part.Lane {
			t.Errorf("%+v: %+v, want %q", c.part, v, c.want)
		}
	}
	card := engine.Topology{Nodes: []engine.Node{{Name: "cuda:0", Kind: engine.NodeDevice, Device: "cuda:0"}, {Name: "pool1", Kind: engine.NodePool, Index: 1}}}
	for lane, want := range map[string]string{
		"cuda:0": "The device cuda:0 takes 80 % of a step: it is the bottleneck.",
		"pool1":  "Expert pool 1 takes 80 % of a step, and the device cuda:0 waits for it: it is the bottleneck.",
	} {
		if v := judge(card, &state{Where: &shares{Of: "steps", Parts: []part{{lane, "", 0.8}}}, Flow: &flow{Running: 1}}); v.Text != want {
			t.Errorf("%s beside a GPU: %q", lane, v.Text)
		}
	}
}

func TestRound3(t *testing.T) {
	for v, want := range map[float64]float64{0: 0, 1234.5: 1230, 0.0012345: 0.00123, math.Inf(1): 0, 99.96: 100} {
		if got := round3(v); math.Abs(got-want) > 1e-9 {
			t.Errorf("round3(%v) = %v, want %v", v, got, want)
		}
	}
}

func BenchmarkMeasure(b *testing.B) {
	f := newFake()
	f.open = make([]engine.Running, 100)
	m := newMeter(f, newHistory(time.Second), 0)
	p := New(f, Options{})
	now := int64(0)
	var last *state
	for b.Loop() {
		now += int64(250 * time.Millisecond)
		f.step(now, 1e6, 100)
		s := m.measure(now)
		p.frame(s, s.since(last), frameKey{})
		last = s
	}
}
