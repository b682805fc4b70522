package actors

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/actors/msg"
	"krater/actors/trace"
)

// TestGroupGoesOnWhilePoolsWork (P2): with two batches in flight and a pool that
// takes its time, the group computes the second batch while the first one waits
// for its experts.
func TestGroupGoesOnWhilePoolsWork(t *testing.T) {
	second := make(chan struct{}) // the group has sent the second batch's experts
	works := 0
	r := newRig(t, setup{dir: golden("deepseek_v2_lite"), depth: 2, chunk: 8, share: 8, limits: small(2), wrap: func(actor string, n node) node {
		return hook{n, func(_ *turn, m any) {
			switch actor {
			case "split0":
				if works++; works == 2 {
					close(second)
				}
			case "pool0":
				select {
				case <-second:
				case <-time.After(20 * time.Second): // the assertions below then fail
				}
			}
		}}
	}})
	defer r.Trace().Watch()()
	gw := r.gateway(t)
	var open []engine.Stream
	for range 2 {
		st, err := gw.Submit(context.Background(), greedy([]int32{5, 6, 7}, 1))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, st)
	}
	for _, st := range open {
		if _, err := everything(st); err != nil {
			t.Fatal(err)
		}
	}
	rest(t, r, gw)
	var order []string
	var overtook trace.Event
	for _, e := range tracks(t, r)["group0"] {
		if e.Batch == 1 || e.Batch == 2 {
			order = append(order, fmt.Sprintf("batch %d layer %d", e.Batch, e.Layer))
		}
		if e.Batch == 2 && e.Layer == -1 {
			overtook = e
		}
	}
	if len(order) < 3 || !slices.Equal(order[:3], []string{"batch 1 layer -1", "batch 2 layer -1", "batch 1 layer 1"}) {
		t.Errorf("the group handled %v", order)
	}
	if e := tracks(t, r)["pool0"][0]; e.Batch != 1 || e.Ended < overtook.Started {
		t.Errorf("first batch at its experts: %+v; second batch in the group: %+v", e, overtook)
	}
}

// tracks are the events of every actor. It closes the pipeline first: an actor
// notes a message after it has sent the next one on.
func tracks(t *testing.T, r *rig) map[string][]trace.Event {
	t.Helper()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	all := map[string][]trace.Event{}
	for _, track := range r.Trace().Snapshot(0) {
		all[track.Name] = track.Events
	}
	return all
}

// TestTraceOfAStep: every message of a step is in the rings, with its batch, its layer, the time in the
// queue and at work.
func TestTraceOfAStep(t *testing.T) {
	const groups, pools = 2, 3
	r := newRig(t, setup{dir: golden("deepseek_v2_lite"), groups: groups, pools: pools, depth: 1, limits: small(1)})
	defer r.Trace().Watch()()
	gw := r.gateway(t)
	st, err := gw.Submit(context.Background(), greedy([]int32{5, 6, 7}, 4))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := everything(st); err != nil {
		t.Fatal(err)
	}
	rest(t, r, gw)
	all := tracks(t, r)
	for pool := range pools {
		phases := map[trace.Kind]int{}
		for _, e := range all[trace.PhaseLane(fmt.Sprint("pool", pool))] {
			phases[e.Kind]++
		}
		if n := len(all[fmt.Sprint("pool", pool)]); n == 0 || phases[trace.PoolUp] != n || phases[trace.PoolDown] != n {
			t.Errorf("pool %d: %d parts, phases %v", pool, n, phases)
		}
	}
	for batch := uint64(1); batch <= 4; batch++ {
		got := eventsOf(t, all, batch)
		checkLayers(t, batch, got)
		for g := range groups {
			checkParts(t, got, g, pools)
		}
	}
	checkRequest(t, all)
	// From the request to its batches, and back.
	roster := r.Trace().Roster()
	if of := roster.Of(1); !slices.Equal(of, []uint64{1, 2, 3, 4}) {
		t.Errorf("the request was in batches %v", of)
	}
	for batch, want := range map[uint64]trace.Rider{1: {Request: 1, Rows: 3}, 4: {Request: 1, Rows: 1, Decode: true}} {
		if got := roster.Riders(batch); !slices.Equal(got, []trace.Rider{want}) {
			t.Errorf("batch %d had %+v", batch, got)
		}
	}
}

// eventsOf returns the events of a batch by actor. It checks each of them and each phase.
func eventsOf(t *testing.T, all map[string][]trace.Event, batch uint64) map[string][]trace.Event {
	t.Helper()
	got := map[string][]trace.Event{}
	for name, events := range all {
		for _, e := range events {
			if e.Batch != batch {
				continue
			}
			if pool, phases := strings.CutSuffix(name, " phases"); phases {
				checkPhase(t, all[pool], e)
				continue
			}
			got[name] = append(got[name], e)
			checkEvent(t, name, e)
		}
	}
	return got
}

// checkEvent checks an event of an actor. The first batch has a prompt of 3 tokens, the others have a
// row each.
func checkEvent(t *testing.T, name string, e trace.Event) {
	t.Helper()
	kinds := map[string]trace.Kind{
		"embed": trace.Embed, "head": trace.Head, "sample": trace.Sample, "schedule": trace.Schedule, "stream": trace.Stream,
		"group": trace.Group, "split": trace.Split, "merge": trace.Merge, "link": trace.Link, "pool": trace.Experts,
	}
	role := strings.TrimRight(name, "0123456789")
	onHost := slices.Contains([]string{"schedule", "stream", "split", "merge", "link"}, role)
	if host := e.Device == 0; host != onHost || e.Others != 0 {
		t.Errorf("%s: on device %d, for %d others", name, e.Device, e.Others)
	}
	if moves := role == "link" || e.Kind == trace.Experts; moves != (e.Bytes > 0) {
		t.Errorf("%s: %d bytes", name, e.Bytes)
	}
	if e.Kind != kinds[role] || e.Enqueued == 0 || e.Enqueued > e.Started || e.Started > e.Ended {
		t.Errorf("%s: %+v", name, e)
	}
	if rows := []uint32{3, 1}[min(1, e.Batch-1)]; e.Rows != rows && name != "stream" {
		t.Errorf("%s: %d rows, want %d", name, e.Rows, rows)
	}
}

// checkLayers checks which layers each actor handled in a batch. Layer 0 is dense and belongs, with
// layer 1, to the first group.
func checkLayers(t *testing.T, batch uint64, got map[string][]trace.Event) {
	t.Helper()
	for name, layers := range map[string][]int16{
		"embed": {-1}, "head": {-1}, "sample": {-1}, "schedule": {-1}, "link1": {-1}, "stream": {-1},
		"group0": {-1, 1}, "group1": {-1, 2}, "split0": {1}, "split1": {2},
	} {
		var seen []int16
		for _, e := range got[name] {
			seen = append(seen, e.Layer)
		}
		if !slices.Equal(seen, layers) {
			t.Errorf("batch %d: %s handled layers %v, want %v", batch, name, seen, layers)
		}
	}
}

// checkRequest checks what the gateway and the stream actor note of the only request.
func checkRequest(t *testing.T, all map[string][]trace.Event) {
	t.Helper()
	if e := all["gateway"]; len(e) != 1 || e[0].Kind != trace.Gateway || e[0].Request != 1 || e[0].Rows != 3 || e[0].Started > e[0].Ended {
		t.Errorf("gateway %+v", e)
	}
	of := map[trace.Kind][]trace.Event{}
	for _, e := range all["stream"] {
		of[e.Kind] = append(of[e.Kind], e)
	}
	requests, prefills := of[trace.Request], of[trace.Prefill]
	if len(requests) != 1 || len(prefills) != 1 {
		t.Fatalf("requests %+v, prefills %+v", requests, prefills)
	}
	q, p := requests[0], prefills[0]
	if q.Request != 1 || q.Enqueued == 0 || q.Enqueued > q.Started || q.Started >= q.Ended {
		t.Errorf("request %+v", q)
	}
	if p.Request != 1 || p.Rows != 3 || p.Enqueued != q.Enqueued || p.Started != q.Started || p.Ended <= q.Started || p.Ended >= q.Ended {
		t.Errorf("prefill %+v of %+v", p, q)
	}
}

// checkPhase holds a phase to lie within what its pool did for the same layer.
func checkPhase(t *testing.T, pool []trace.Event, e trace.Event) {
	t.Helper()
	if e.Kind != trace.PoolUp && e.Kind != trace.PoolDown || e.Device == 0 || e.Started > e.Ended {
		t.Errorf("%+v", e)
	}
	if !slices.ContainsFunc(pool, func(p trace.Event) bool {
		return p.Batch == e.Batch && p.Layer == e.Layer && p.Rows == e.Rows && p.Started <= e.Started && e.Ended <= p.Ended
	}) {
		t.Errorf("%+v lies in no part of its pool", e)
	}
}

// checkParts holds what split and merge of a group say to what the pools did for
// its layer with experts.
func checkParts(t *testing.T, got map[string][]trace.Event, group, pools int) {
	t.Helper()
	parts := 0
	for i := range pools {
		for _, e := range got[fmt.Sprint("pool", i)] {
			if int(e.Layer) == group+1 {
				parts++
			}
		}
	}
	split, merged := got[fmt.Sprint("split", group)], got[fmt.Sprint("merge", group)]
	if len(split) != 1 || int(split[0].Parts) != parts || len(merged) != parts || int(merged[len(merged)-1].Parts) != parts {
		t.Errorf("group %d: %d parts at the pools, split %+v, merge %+v", group, parts, split, merged)
	}
}

// TestTraceOfAFailure: a lost message is in the ring as such.
func TestTraceOfAFailure(t *testing.T) {
	r := newRig(t, setup{dir: golden("deepseek_v2_lite"), limits: small(1), wrap: func(actor string, n node) node {
		return hook{n, func(_ *turn, m any) {
			if b, ok := m.(*msg.Batch); ok && actor == "head" && b.ID == 2 {
				panic("injected")
			}
		}}
	}})
	gw := r.gateway(t)
	st, err := gw.Submit(context.Background(), greedy([]int32{5}, 4))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := everything(st); err != nil {
		t.Fatal(err)
	}
	rest(t, r, gw)
	events := tracks(t, r)["head"]
	if n := len(events); n != 2 || events[1].Kind != trace.Failure || events[1].Batch != 2 || events[1].Ended < events[1].Started {
		t.Errorf("head: %+v", events)
	}
}
