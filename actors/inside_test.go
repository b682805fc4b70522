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
)

// TestTopology: nodes are the actors that run, and every edge joins two of them.
func TestTopology(t *testing.T) {
	r := newRig(t, setup{dir: golden("deepseek_v2_lite"), groups: 2, pools: 3, limits: small(1)})
	gw := r.gateway(t)
	top := gw.Topology()
	names := map[string]engine.Node{}
	for _, n := range top.Nodes {
		names[n.Name] = n
	}
	live := map[string]int{}
	r.host.waiting(live)
	live["gateway"] = 0
	if len(names) != len(live) || len(names) != len(top.Nodes) {
		t.Errorf("%d nodes, %d actors", len(names), len(live))
	}
	for name := range live {
		if names[name].Name == "" {
			t.Errorf("%s is in no picture", name)
		}
	}
	var edges []string
	for _, e := range top.Edges {
		if names[e.From].Name == "" || names[e.To].Name == "" {
			t.Errorf("an edge from %q to %q", e.From, e.To)
		}
		edges = append(edges, e.From+" "+e.To)
	}
	for _, want := range []string{"gateway schedule", "schedule embed", "embed group0", "group0 link1", "link1 group1", "group1 head", "head sample", "sample schedule", "schedule stream", "group1 split1", "split1 pool2", "pool2 merge1", "merge1 group1"} {
		if !slices.Contains(edges, want) {
			t.Errorf("no edge %q", want)
		}
	}
	if g := names["group1"]; g.First != 2 || g.Last != 3 || g.Device != "cpu" || g.Kind != engine.NodeGroup || g.Index != 1 {
		t.Errorf("group1 is %+v", g)
	}
	if s := names["stream"]; s.Device != "" {
		t.Errorf("stream computes on %q", s.Device)
	}
}

// submitNamed submits a request whose origin and priority are made of a name.
func submitNamed(t *testing.T, gw *Gateway, name string) engine.Stream {
	t.Helper()
	req := greedy([]int32{5, 6, 7}, 4)
	req.ID, req.Owner, req.Priority = name, "o-"+name, len(name)
	req.Caller.State = "c-" + name
	st, err := gw.Submit(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// checkOrigin checks that a request is from the caller of that name. "": its origin is forgotten.
func checkOrigin(t *testing.T, gw *Gateway, id uint64, name string) {
	t.Helper()
	if o := gw.Origin(id); o.Name != name || name != "" && o.Caller.State != "c-"+name {
		t.Errorf("request %d is from %+v, want %q", id, o, name)
	}
}

// awaitPhase returns the two requests once the first is in a phase and, if it decodes, has two tokens:
// the stream actor may still pass on what the step before returned.
func awaitPhase(t *testing.T, gw *Gateway, phase engine.Phase) []engine.Running {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		list := gw.Running()
		if len(list) == 2 && list[0].Phase == phase && (phase != engine.Decoding || list[0].Generated == 2) {
			return list
		}
		if time.Now().After(deadline) {
			t.Fatalf("running: %+v", list)
		}
	}
}

// TestRunning: Running describes a request in each phase, from the queue to the last token.
func TestRunning(t *testing.T) {
	reached := make(chan struct{}, 8)
	proceed := make(chan struct{})
	r := newRig(t, setup{dir: golden("deepseek_v2_lite"), limits: small(1), wrap: func(actor string, n node) node {
		return hook{n, func(_ *turn, m any) {
			if b, ok := m.(*msg.Batch); ok && actor == "head" && (b.ID == 1 || b.ID == 3) {
				reached <- struct{}{}
				<-proceed
			}
		}}
	}})
	gw := r.gateway(t)
	first, second := submitNamed(t, gw, "a"), submitNamed(t, gw, "bb")
	<-reached
	list := awaitPhase(t, gw, engine.Prefilling)
	a, b := list[0], list[1]
	if a.Name != "a" || a.Owner != "o-a" || a.Prompt != 3 || a.Most != 4 || a.Generated != 0 || a.ToFirst != 0 || a.Waited > a.Since ||
		b.Name != "bb" || b.Phase != engine.Waiting || b.Priority != 2 || b.Waited != b.Since || b.ID != a.ID+1 {
		t.Errorf("in its first step: %+v", list)
	}
	checkOrigin(t, gw, a.ID, "a")
	checkOrigin(t, gw, b.ID, "bb")
	proceed <- struct{}{}
	<-reached
	list = awaitPhase(t, gw, engine.Decoding)
	if a := list[0]; a.ToFirst < a.Waited || a.PerToken <= 0 || a.ToFirst+a.PerToken > a.Since {
		t.Errorf("in its third step: %+v", a)
	}
	gw.Cancel(list[1].ID)
	close(proceed)
	if _, err := everything(first); err != nil {
		t.Fatal(err)
	}
	events, err := everything(second)
	if err != nil || events[len(events)-1].Finish != engine.FinishCancelled {
		t.Errorf("the cancelled request: %v, %v", events, err)
	}
	rest(t, r, gw)
	list = gw.Running()
	if len(list) != 2 || list[0].Phase != engine.Ended || list[1].Phase != engine.Ended || list[0].Name != "bb" || list[1].Generated != 4 {
		t.Errorf("in the end: %+v", list)
	}
	checkOrigin(t, gw, a.ID, "a")
	checkOrigin(t, gw, b.ID, "bb")
}

// TestRemembered: only the last requests that have ended are kept, and the origins of more of them.
func TestRemembered(t *testing.T) {
	r := newRig(t, setup{dir: golden("deepseek_v2_lite"), limits: small(1)})
	gw := r.gateway(t)
	for i := range originsKept + 1 {
		name := fmt.Sprint(i)
		r.remember(engine.Running{ID: uint64(100 + i)}, engine.Origin{Name: name, Caller: engine.Caller{State: "c-" + name}})
	}
	if list := gw.Running(); len(list) != endedKept || list[0].ID != uint64(100+originsKept+1-endedKept) {
		t.Errorf("%d are remembered", len(list))
	}
	checkOrigin(t, gw, 100, "")
	checkOrigin(t, gw, 101, "1")
	checkOrigin(t, gw, 100+originsKept, fmt.Sprint(originsKept))
	if n := len(r.origins.of); n != originsKept {
		t.Errorf("%d origins are kept", n)
	}
}

// TestHeatInside: what routers chose is told layer by layer.
func TestHeatInside(t *testing.T) {
	r := newRig(t, setup{dir: golden("deepseek_v2_lite"), limits: small(1)})
	gw := r.gateway(t)
	st, err := gw.Submit(context.Background(), greedy([]int32{5, 6, 7}, 4))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := everything(st); err != nil {
		t.Fatal(err)
	}
	rest(t, r, gw)
	h := gw.Heat()
	if len(h.Layers) != 2 || h.Layers[0] != 1 || h.Resident != nil || h.Experts != r.cfg.MoE.Experts {
		t.Fatalf("heat %+v", h)
	}
	for i := range h.Layers {
		var sum uint64
		for _, n := range h.Counts[i] {
			sum += n
		}
		if h.Tokens[i] != 6 || sum != 6*uint64(h.TopK) {
			t.Errorf("layer %d: %d choices in %d rows", h.Layers[i], sum, h.Tokens[i])
		}
	}
}

// TestQuietBatches: of batches that are no part of the sample the rings have what passes
// with the batch, and nothing of single layers; totals count for all of them.
func TestQuietBatches(t *testing.T) {
	r := newRig(t, setup{dir: golden("deepseek_v2_lite"), limits: small(1)})
	gw := r.gateway(t)
	st, err := gw.Submit(context.Background(), greedy([]int32{5, 6, 7}, 40))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := everything(st); err != nil {
		t.Fatal(err)
	}
	rest(t, r, gw)
	sample := map[uint64]bool{}
	for id := uint64(1); id <= 40; id++ {
		sample[id], _ = r.Trace().Detail(id)
	}
	layers, noted := 0, 0
	for _, yes := range sample {
		if yes {
			noted++
		}
	}
	for name, events := range tracks(t, r) {
		batches := map[uint64]int{}
		for _, e := range events {
			if e.Started == 0 || e.Ended < e.Started {
				t.Errorf("%s: %+v", name, e)
			}
			if e.Layer < 0 {
				batches[e.Batch]++
				continue
			}
			layers++
			if !sample[e.Batch] || e.Others != 7 {
				t.Errorf("%s: %+v", name, e)
			}
		}
		if strings.HasPrefix(name, "group") || name == "head" {
			for id := uint64(1); id <= 40; id++ {
				if batches[id] != 1 {
					t.Errorf("%s: %d events of batch %d", name, batches[id], id)
				}
			}
		}
	}
	// Two layers with experts: split, pool with two phases, merge and group each.
	if noted == 0 || layers != 12*noted {
		t.Errorf("%d events of layers in %d batches", layers, noted)
	}
}
