//go:build cuda

package main

import (
	"testing"
	"time"

	"krater/actors/engine"
	"krater/actors/trace"
)

// TestCardLanes: the card's own clock says how long its steps took, a prompt's part by part,
// in a lane of its own that fits between what the actors did.
func TestCardLanes(t *testing.T) {
	b := actorsBesideCard(t, "layer_grouped", "hot_cached_static", 1)
	lanes := 0
	for _, n := range b.gw.Topology().Nodes {
		if n.Kind == engine.NodeDevice {
			lanes++
			if n.Name != "cuda:0" || n.Device != "cuda:0" {
				t.Errorf("node %+v", n)
			}
		}
	}
	if lanes != 1 {
		t.Errorf("%d lanes of the card", lanes)
	}
	stop := b.Trace().Watch()
	defer stop()
	from := trace.Now()
	b.right(t, 1, 8)
	b.Close()
	sampled := map[uint64]trace.Event{}
	parts := map[uint64][]trace.Event{}
	for _, x := range b.Trace().Snapshot(from) {
		for _, e := range x.Events {
			switch {
			case x.Name == "sample" && e.Batch != 0:
				sampled[e.Batch] = e
			case x.Name == "cuda:0":
				parts[e.Batch] = append(parts[e.Batch], e)
			}
		}
	}
	whole, prompts := 0, 0
	for batch, list := range parts {
		s := sampled[batch]
		if s.Ended == 0 {
			t.Errorf("step %d was on the card and never sampled", batch)
		}
		took := time.Duration(0)
		for i, e := range list {
			if e.Started > e.Ended || e.Started < from || e.Ended > s.Ended || i > 0 && e.Started != list[i-1].Ended {
				t.Errorf("step %d: %+v", batch, e)
			}
			took += time.Duration(e.Ended - e.Started)
		}
		if took <= 0 {
			t.Errorf("step %d took the card %v", batch, took)
		}
		switch first := list[0].Kind; {
		case len(list) == 1 && first == trace.Device:
			whole++
		case len(list) == 3 && first == trace.DeviceEmbed && list[1].Kind == trace.DeviceGroup && list[2].Kind == trace.DeviceHead:
			prompts++
		default:
			t.Errorf("step %d: %+v", batch, list)
		}
	}
	if len(parts) != len(sampled) || prompts == 0 {
		t.Errorf("%d of %d steps are on the card's lane, %d in one piece, %d in parts", len(parts), len(sampled), whole, prompts)
	}
}
