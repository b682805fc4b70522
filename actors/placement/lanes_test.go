package placement_test

import (
	"slices"
	"testing"
	"time"

	"krater/actors/placement"
	"krater/actors/trace"
	"krater/kernels/hostsim"
	"krater/scheduler/dispatch"
	"krater/stages/load"
)

// sorted are the tracks of a run as trace functions take them.
func (r *served) sorted() (tracks []trace.Track) {
	for name, events := range r.tracks {
		tracks = append(tracks, trace.Track{Name: name, Events: events})
	}
	slices.SortFunc(tracks, func(a, b trace.Track) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return tracks
}

// copying is a workload whose experts are copied in groups of layers through a small budget.
func copying(t *testing.T, s *source, prefill, decode string, slots int64, copyRate int64) workload {
	return workload{
		Options: placement.Options{
			Prefill: strategy(t, prefill), Decode: strategy(t, decode), Threshold: 20,
			Budget: slots * s.slotBytes(t, processor(t), load.Options{Limits: limits}),
		},
		lanes: 1, streams: 4, prompt: 40, tokens: 6, chunk: 160, host: hostsim.Rates{Flops: 20e9},
		device: hostsim.Rates{
			Flops: 100e9, Launch: 500, Up: hostsim.Link{BytesPerSecond: copyRate, Latency: 1000}, Down: hostsim.Link{BytesPerSecond: 50e9, Latency: 1000},
		},
	}
}

// TestCopyLanes: the copies of a strategy are on the lane of the device's copy engine, all of
// them, byte for byte; and what the experts of a layer waited for is there to the nanosecond:
// they begin when their wait ends, which is when their copy ends.
func TestCopyLanes(t *testing.T) {
	processor := processor(t)
	s := open(t, golden)
	for _, x := range []struct {
		prefill, decode string
		slots, rate     int64
	}{
		{"layer_grouped:2", "cpu_only", 2 * 8, 1e9}, {"layer_grouped:2", "active_only", 2 * 8, 1e9}, {"lru", "lru", 10, 1e9},
		{"active_only", "lru", 12, 1e9},
	} {
		t.Run(x.prefill+" "+x.decode, func(t *testing.T) {
			r := s.serve(t, processor, copying(t, s, x.prefill, x.decode, x.slots, x.rate))
			var bytes, counted int64
			for phase := range dispatch.Phases {
				counted += r.stats[phase].CopiedBytes
			}
			copies := r.tracks["hostsim copy"]
			for i, e := range copies {
				bytes += int64(e.Bytes)
				if e.Kind != trace.CopyExperts || e.Batch == 0 || e.Layer < 1 || e.Bytes == 0 || e.Ended <= e.Started || e.Rows == 0 || e.Others != 0 {
					t.Errorf("%+v", e)
				}
				if least := time.Duration(e.Bytes) * time.Second / time.Duration(x.rate); time.Duration(e.Ended-e.Started) < least {
					t.Errorf("%d bytes took %v", e.Bytes, time.Duration(e.Ended-e.Started))
				}
				if i > 0 && e.Started < copies[i-1].Ended && e.Batch == copies[i-1].Batch {
					t.Errorf("%+v begins before %+v has ended", e, copies[i-1])
				}
			}
			if bytes != counted || bytes == 0 {
				t.Errorf("%d bytes on the lane, the strategies counted %d", bytes, counted)
			}
			r.waitsForCopies(t)
		})
	}
}

// waitsForCopies holds waits of the device's lane to what was copied and computed, and to be
// named.
func (r *served) waitsForCopies(t *testing.T) {
	t.Helper()
	lane := r.tracks["hostsim"]
	waits := 0
	for i, w := range lane {
		if w.Kind != trace.CopyWait || w.Ended == w.Started {
			continue
		}
		waits++
		if !slices.ContainsFunc(r.tracks["hostsim copy"], func(c trace.Event) bool { return c.Layer == w.Layer && c.Ended == w.Ended }) {
			t.Errorf("no copy ends with %+v", w)
		}
		if i+1 == len(lane) || lane[i+1].Kind != trace.DeviceExperts || lane[i+1].Layer != w.Layer || lane[i+1].Started != w.Ended {
			t.Errorf("no experts begin with the end of %+v", w)
		}
	}
	if waits == 0 {
		t.Error("nobody waits for copies, which are the slower side")
	}
	tracks := r.sorted()
	named := 0
	for _, g := range trace.Gaps(tracks, 1) {
		if g.Cause == trace.ForCopy && tracks[g.Track].Name == "hostsim" {
			named++
		}
	}
	if named != waits {
		t.Errorf("%d of %d waits are named", named, waits)
	}
	onPath := false
	for _, b := range trace.Whole(tracks) {
		for _, p := range trace.Path(tracks, b) {
			onPath = onPath || p.Copy && p.Wait
		}
	}
	if !onPath {
		t.Error("no wait for a copy is on a critical path")
	}
}

// TestFastCopies: where copies are the faster side hardly anything waits for them, and all that
// was copied is on the lane nevertheless.
func TestFastCopies(t *testing.T) {
	s := open(t, golden)
	w := copying(t, s, "layer_grouped:2", "cpu_only", 2*8, 1e14)
	w.device.Up.Latency = 0
	r := s.serve(t, processor(t), w)
	waited, copied := int64(0), uint64(0)
	for _, e := range r.tracks["hostsim"] {
		if e.Kind == trace.CopyWait {
			waited += e.Ended - e.Started
		}
	}
	for _, e := range r.tracks["hostsim copy"] {
		copied += e.Bytes
	}
	if copied == 0 || waited*100 > int64(r.took) {
		t.Errorf("%d bytes were copied, %v of %v waited for them", copied, time.Duration(waited), r.took)
	}
}
