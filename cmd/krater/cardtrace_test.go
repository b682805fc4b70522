//go:build cuda

package main

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/actors/trace"
	"krater/scheduler/dispatch"
)

// TestCardLanes: the GPU's own clock says how long its steps took, a prompt's part by part, in a
// lane of its own that fits between what the actors did.
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
		t.Errorf("%d lanes of the GPU", lanes)
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
			t.Errorf("step %d was on the GPU and never sampled", batch)
		}
		took := time.Duration(0)
		for i, e := range list {
			if e.Started > e.Ended || e.Started < from || e.Ended > s.Ended || i > 0 && e.Started != list[i-1].Ended {
				t.Errorf("step %d: %+v", batch, e)
			}
			took += time.Duration(e.Ended - e.Started)
		}
		if took <= 0 {
			t.Errorf("step %d took the GPU %v", batch, took)
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
		t.Errorf("%d of %d steps are on the GPU's lane, %d in one piece, %d in parts", len(parts), len(sampled), whole, prompts)
	}
}

// TestCardCopyLanes: copies of experts are on the lane of the GPU's copy engine, byte for byte what
// the strategies count; where the GPU waited for one its lane says so, between the parts of its
// step; and a file for Perfetto has all of it, both ways.
func TestCardCopyLanes(t *testing.T) {
	for _, x := range []struct{ prefill, decode string }{{"layer_grouped", "lru"}, {"active_only", "active_only"}} {
		b := actorsBesideCard(t, x.prefill, x.decode, 1)
		var before [dispatch.Phases]int64
		for phase := range dispatch.Phases {
			before[phase] = b.place.Stats(phase).CopiedBytes
		}
		stop := b.Trace().Watch()
		from := trace.Now()
		b.right(t, 1, 8)
		stop()
		var counted, bytes int64
		for phase := range dispatch.Phases {
			counted += b.place.Stats(phase).CopiedBytes - before[phase]
		}
		b.Close()
		tracks := b.Trace().Snapshot(from)
		var card []trace.Event
		for _, lane := range tracks {
			switch lane.Name {
			case "cuda:0":
				card = lane.Events
			case "cuda:0 copy":
				for _, e := range lane.Events {
					bytes += int64(e.Bytes)
					if e.Kind != trace.CopyExperts || e.Batch == 0 || e.Layer < 1 || e.Ended < e.Started || e.Started < from {
						t.Errorf("%s: %+v", x.prefill, e)
					}
				}
			}
		}
		// What was begun for a step that did not come is told with none.
		if bytes == 0 || bytes > counted || x.prefill == "active_only" && bytes != counted {
			t.Errorf("%s, then %s: %d bytes on the lane, %d counted", x.prefill, x.decode, bytes, counted)
		}
		slices.SortFunc(card, func(a, b trace.Event) int { return int(a.Started - b.Started) })
		waits := 0
		for i, e := range card {
			if e.Kind == trace.CopyWait {
				waits++
			}
			if i > 0 && e.Batch == card[i-1].Batch && e.Started < card[i-1].Ended {
				t.Errorf("%+v begins before %+v has ended", e, card[i-1])
			}
		}
		t.Logf("%s, then %s: %d of %d bytes copied are on the lane, %d waits", x.prefill, x.decode, bytes, counted, waits)
		if waits == 0 {
			t.Errorf("%s: the GPU never waits for a copy", x.prefill)
		}
		roundTrip(t, tracks, b.Trace().Devices())
	}
}

// roundTrip holds a file for Perfetto to have what was written, lane by lane.
func roundTrip(t *testing.T, tracks []trace.Track, devices []string) {
	t.Helper()
	var file bytes.Buffer
	if err := trace.WriteChrome(&file, tracks, devices); err != nil {
		t.Fatal(err)
	}
	back, _, err := trace.ReadChrome(&file)
	if err != nil || len(back) != len(tracks) {
		t.Fatal(len(back), err)
	}
	for i := range tracks {
		if back[i].Name != tracks[i].Name || len(back[i].Events) != len(tracks[i].Events) {
			t.Errorf("%s: %d of %d events come back", tracks[i].Name, len(back[i].Events), len(tracks[i].Events))
		}
	}
}
