package webui

import (
	"strings"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/actors/trace"
)

// TestSharesOfPools: while a pool computes, the time is the pool's, though the group works on
// meanwhile; so the shares add up, and the sentence names what the figures name.
func TestSharesOfPools(t *testing.T) {
	r := trace.NewRegistry(64)
	note := func(lane string, e trace.Event) {
		e.Batch = 1
		r.Ring(lane).Record(&e)
	}
	note("schedule", trace.Event{Kind: trace.Schedule, Started: 0, Ended: 10, Layer: -1})
	note("group0", trace.Event{Kind: trace.Group, Enqueued: 10, Started: 10, Ended: 100, Layer: -1}) // asks at 30, the shared expert until 100
	note("split0", trace.Event{Kind: trace.Split, Enqueued: 30, Started: 30, Ended: 40, Layer: 0})
	note("pool0", trace.Event{Kind: trace.Experts, Enqueued: 40, Started: 40, Ended: 100, Layer: 0})
	note("merge0", trace.Event{Kind: trace.Merge, Enqueued: 100, Started: 100, Ended: 110, Layer: 0})
	note("group0", trace.Event{Kind: trace.Group, Enqueued: 110, Started: 110, Ended: 120, Layer: 0})
	note("head", trace.Event{Kind: trace.Head, Enqueued: 120, Started: 130, Ended: 200, Layer: -1})
	s := divide(r.Snapshot(0), []uint64{1}, 9, 0)
	got := map[string]float64{}
	sum := 0.0
	for _, p := range s.Parts {
		got[p.Lane+p.Wait] = p.Share
		sum += p.Share
	}
	for name, want := range map[string]float64{"head": 0.35, "pool0": 0.3, "group0": 0.15, waitMessage: 0.05, "schedule": 0.05} {
		if got[name] != want {
			t.Errorf("%s has %v, want %v", name, got[name], want)
		}
	}
	if sum < 0.99 || sum > 1.01 || s.Each != 200 || s.Parts[0].Lane != "head" {
		t.Errorf("the shares add up to %v: %+v", sum, s)
	}
	top := engine.Topology{Nodes: []engine.Node{{Name: "head", Kind: engine.NodeHead}, {Name: "group0", Kind: engine.NodeGroup, Last: 1}}}
	v := judge(top, &state{Where: s, Flow: &flow{Running: 1}, Nodes: map[string]load{"group0": {loadBusy: 0.5}, "head": {loadBusy: 0.35}}})
	if v.Text != "The head takes the largest part of a step, 35 %." {
		t.Error(v.Text)
	}
}

// TestSharesOverlap: of steps that overlap, the actor that is always at work has all of the time,
// wherever the others are.
func TestSharesOverlap(t *testing.T) {
	r := trace.NewRegistry(64)
	note := func(lane string, batch uint64, from, to int64) {
		r.Ring(lane).Record(&trace.Event{Batch: batch, Kind: trace.Group, Enqueued: from, Started: from, Ended: to, Layer: -1})
	}
	for b := range int64(5) {
		note("group0", uint64(b+1), 11*b, 11*b+11)
		note("group1", uint64(b+1), 11*b+11, 11*b+20)
	}
	s := divide(r.Snapshot(0), []uint64{1, 2, 3, 4, 5}, 9, 0)
	if s.Parts[0].Lane != "group0" || s.Parts[0].Share < 0.8 || s.Parts[1].Share > s.Parts[0].Share {
		t.Errorf("%+v", s.Parts)
	}
}

// TestSharesOfRanks: hops have a share, and what is said names the ranks of a slow hop and of slow layers.
func TestSharesOfRanks(t *testing.T) {
	top := engine.Topology{
		Nodes: []engine.Node{
			{Name: "group0", Kind: engine.NodeGroup, Last: 4}, {Name: "out", Kind: engine.NodeLink}, {Name: "in", Kind: engine.NodeHop},
			{Name: "rank1/keeper", Kind: engine.NodeHop, Rank: 1, Machine: "a"}, {Name: "rank1/group0", Kind: engine.NodeGroup, First: 4, Last: 8, Rank: 1, Machine: "a"},
			{Name: "rank1/out", Kind: engine.NodeLink, Rank: 1, Machine: "a"},
			{Name: "rank2/keeper", Kind: engine.NodeHop, Rank: 2, Machine: "b"}, {Name: "rank2/group0", Kind: engine.NodeGroup, First: 8, Last: 10, Rank: 2, Machine: "b"},
		},
		Edges: []engine.Edge{{From: "out", To: "rank1/keeper"}, {From: "rank1/out", To: "rank2/keeper"}, {From: "rank2/out", To: "in"}},
	}
	said := func(hop, layer int64) (string, *shares) {
		r := trace.NewRegistry(64)
		at := int64(1)
		note := func(lane string, kind trace.Kind, waits, takes int64) {
			r.Ring(lane).Record(&trace.Event{Batch: 1, Kind: kind, Layer: -1, Enqueued: at, Started: at + waits, Ended: at + waits + takes})
			at += waits + takes
		}
		note("group0", trace.Group, 0, 4e6)
		note("out", trace.Link, 0, 1e5)
		note("rank1/keeper", trace.Hop, 1e5, 1e4)
		note("rank1/group0", trace.Group, 0, 4e6)
		note("rank1/out", trace.Link, 0, 1e5)
		note("rank2/keeper", trace.Hop, hop, 1e4)
		note("rank2/group0", trace.Group, 0, 2*layer)
		note("rank2/out", trace.Link, 0, 1e5)
		note("in", trace.Hop, 1e5, 1e4)
		s := divide(r.Snapshot(0), []uint64{1}, 9, 0)
		return judge(top, &state{Where: s, Flow: &flow{Running: 1}}).Text, s
	}
	text, s := said(2e7, 1e6)
	if want := "The hop from rank 1 (a) to rank 2 (b) takes 66 % of a step: it is the bottleneck."; text != want || s.Parts[0].Wait != waitHop {
		t.Errorf("a slow hop: %q, want %q; %+v", text, want, s.Parts[0])
	}
	text, _ = said(1e5, 16e5)
	if want := " Rank 2 (b): layers 8–9 take 1.6 times as long as those of rank 0 (leader) (1.60 and 1.00 ms each)."; !strings.HasSuffix(text, want) {
		t.Errorf("slow layers: %q, want %q", text, want)
	}
	if text, _ = said(1e5, 11e5); strings.Contains(text, "times as long") {
		t.Errorf("of layers that are as fast as others it says %q", text)
	}
}

// TestSharesOfNewest: the wait of a step for one that is not among them is no time of theirs.
func TestSharesOfNewest(t *testing.T) {
	r := trace.NewRegistry(64)
	for b := range int64(3) {
		r.Ring("schedule").Record(&trace.Event{Batch: uint64(b + 1), Kind: trace.Schedule, Started: b, Ended: b + 1, Layer: -1})
		r.Ring("head").Record(&trace.Event{Batch: uint64(b + 1), Kind: trace.Head, Enqueued: b + 1, Started: 100 * (b + 1), Ended: 100*(b+1) + 100, Layer: -1})
	}
	for most, want := range map[int]int64{1: 100, 2: 100, 3: 133} {
		if s := divide(r.Snapshot(0), []uint64{1, 2, 3}, most, 0); s.Steps != most || s.Each != want || s.Parts[0].Lane != "head" {
			t.Errorf("the newest %d: %+v", most, s)
		}
	}
	if s := divide(r.Snapshot(0), []uint64{1, 2, 3}, 3, 100); s.Each != 100 || s.Parts[0].Share != 1 {
		t.Errorf("since the one before was back: %+v", s)
	}
}

// TestSharesOfSample: steps that were not noted layer by layer say nothing, where others were.
func TestSharesOfSample(t *testing.T) {
	r := trace.NewRegistry(64)
	for b := range int64(8) {
		at := 100 * b
		others := uint8(0)
		if b == 3 {
			others = 7
			r.Ring("split0").Record(&trace.Event{Batch: uint64(b + 1), Kind: trace.Split, Enqueued: at + 10, Started: at + 10, Ended: at + 20, Layer: 0, Others: others})
			r.Ring("pool0").Record(&trace.Event{Batch: uint64(b + 1), Kind: trace.Experts, Enqueued: at + 20, Started: at + 20, Ended: at + 80, Layer: 0, Others: others})
		}
		r.Ring("group0").Record(&trace.Event{Batch: uint64(b + 1), Kind: trace.Group, Started: at, Ended: at + 10, Layer: -1})
		r.Ring("head").Record(&trace.Event{Batch: uint64(b + 1), Kind: trace.Head, Enqueued: at + 80, Started: at + 80, Ended: at + 100, Layer: -1})
	}
	s := divide(r.Snapshot(0), []uint64{1, 2, 3, 4, 5, 6, 7, 8}, 9, 0)
	if s.Steps != 1 || s.Parts[0].Lane != "pool0" || s.Parts[0].Share != 0.6 {
		t.Errorf("%+v", s)
	}
}

// TestLastRequest: under load the figures describe the present; when nothing runs they are the
// last request's, until the next one.
func TestLastRequest(t *testing.T) {
	f := newFake()
	m := newMeter(f, newHistory(time.Second), 0)
	at := f.step(1e6, 20e6, 2)
	f.stats.Running = 2
	s := m.measure(250e6)
	if s.Where == nil || s.Where.Of != "steps" || strings.Contains(s.Verdict.Text, "last request") {
		t.Fatalf("while it runs: %+v, %q", s.Where, s.Verdict.Text)
	}
	f.stats.Running = 0
	f.open = []engine.Running{{ID: 7, Phase: engine.Ended, Generated: 1}, {ID: 2, Phase: engine.Ended, Generated: 1}}
	for now := int64(500e6); now < 20e9; now += 250e6 {
		s = m.measure(now)
	}
	if s.Where.Of != "request" || s.Where.ID != 2 || s.Where.Steps != 1 || !strings.HasPrefix(s.Verdict.Text, "Idle: no request is running. Expert pool 1 took the largest part of the last request") {
		t.Errorf("afterwards: %+v, %q", s.Where, s.Verdict.Text)
	}
	kept := s.Where
	// The next one: what is shown stays until there is a step of it.
	f.stats.Running = 1
	if s = m.measure(20e9); s.Where != kept {
		t.Errorf("before its first step: %+v", s.Where)
	}
	f.step(max(at, 20e9), 20e6, 1)
	if s = m.measure(20.25e9); s.Where.Of != "steps" {
		t.Errorf("with its first step: %+v", s.Where)
	}
	// Who looks later sees the last request too.
	f.stats.Running = 0
	late := newMeter(f, newHistory(time.Second), 21e9)
	if s = late.measure(21e9); s.Where == nil || s.Where.ID != 2 {
		t.Errorf("the later viewer sees %+v", s.Where)
	}
}
