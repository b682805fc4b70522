//go:build !race

package placement_test

import (
	"slices"
	"testing"
	"time"

	"krater/actors/placement"
	"krater/actors/trace"
	"krater/kernels/hostsim"
	"krater/kernels/tensor"
	"krater/stages/load"
)

// TestMicroBatchesOverlap measures in the simulated device's own time, which the race detector
// does not change but makes slow to compute. With two micro-batches a step of all streams takes about as
// long as the busier of device and host is busy, with one as long as both together, where
// neither computes at the same time as the other; and each time is the same in every run.
func TestMicroBatchesOverlap(t *testing.T) {
	processor := processor(t)
	tiny, deep := open(t, ""), deep(t)
	const few, many = 4, 10 // tokens: the difference is steps of all streams
	for i, x := range []struct {
		name     string
		s        *source
		strategy string
		host     int64   // GFLOP/s
		gain     float64 // of two micro-batches, at least
		inside   int     // stretches of attention beside experts, percent at least
	}{
		{"the device is busier", tiny, "cpu_only", 40, 1.3, 50},
		{"the device is busier, some experts on it", tiny, "hot_cached_static", 30, 1.2, 50},
		{"both are as busy", deep, "cpu_only", 40, 1.5, 90},
		{"both are as busy, some experts on the device", deep, "hot_cached_static", 28, 1.5, 90},
		{"the host is busier", deep, "cpu_only", 20, 1.3, 90},
	} {
		if testing.Short() && (i == 1 || i == 2) {
			continue // the others have each balance, each model and both strategies
		}
		t.Run(x.name, func(t *testing.T) {
			w := workload{
				Options: placement.Options{Prefill: strategy(t, x.strategy), Decode: strategy(t, x.strategy), Heat: x.s.heat(1), Budget: 6_000_000},
				streams: 8, prompt: 40, chunk: 8 * 40, host: hostsim.Rates{Flops: x.host * 1e9},
				device: hostsim.Rates{
					Flops: 100e9, Up: hostsim.Link{BytesPerSecond: 50e9, Latency: 200}, Down: hostsim.Link{BytesPerSecond: 50e9, Latency: 200},
				},
			}
			if x.s.made != nil {
				w.precision = load.Precision{Experts: tensor.INT4.By(32)}
			}
			var step [3]time.Duration // by number of micro-batches
			var last [3]served
			for lanes := 1; lanes <= 2; lanes++ {
				w.lanes, w.tokens = lanes, few
				short := x.s.serve(t, processor, w)
				w.tokens = many
				last[lanes] = x.s.serve(t, processor, w)
				took, device, host := last[lanes].since(short)
				step[lanes] = took / (many - few)
				busier := max(device, host) / (many - few)
				t.Logf("%d micro-batches: %v a step, device %v, host %v", lanes, step[lanes], device/(many-few), host/(many-few))
				if lanes == 2 && step[2] > busier*11/10 || min(device, host) <= 0 {
					t.Errorf("%d micro-batches: %v a step, the busier part %v", lanes, step[lanes], busier)
				}
			}
			if gain := float64(step[1]) / float64(step[2]); gain < x.gain {
				t.Errorf("two micro-batches gain %.2f, want %.2f", gain, x.gain)
			}
			if !slices.EqualFunc(last[1].tokens, last[2].tokens, slices.Equal) {
				t.Errorf("tokens %v, with one micro-batch %v", last[2].tokens, last[1].tokens)
			}
			if again := x.s.serve(t, processor, w); again.took != last[2].took || again.device != last[2].device || again.host != last[2].host {
				t.Errorf("took %v, then %v", last[2].took, again.took)
			}
			last[1].halves(t)
			if inside, all := last[1].within(8); inside > 0 {
				t.Errorf("with one micro-batch %d of %d stretches of attention are beside experts", inside, all)
			}
			if inside, all := last[2].within(4); 100*inside < x.inside*all {
				t.Errorf("%d of %d stretches of attention lie within the experts of the other micro-batch", inside, all)
			}
		})
	}
}

// halves holds the group's events of layers to lie within one of a message: attention until the
// choice was known, then the device's part of the experts.
func (r *served) halves(t *testing.T) {
	t.Helper()
	events, n := r.tracks["group0"], 0
	for i, a := range events {
		if a.Kind != trace.Attention {
			continue
		}
		n++
		b := events[i+1]
		if b.Kind != trace.Split || a.Ended != b.Started || a.Layer != b.Layer || a.Layer < 1 || a.Ended <= a.Started {
			t.Fatalf("%+v, then %+v", a, b)
		}
		if !slices.ContainsFunc(events[i+2:], func(g trace.Event) bool {
			return g.Kind == trace.Group && g.Batch == a.Batch && g.Started <= a.Started && b.Ended <= g.Ended
		}) {
			t.Fatalf("%+v lies in no message", a)
		}
	}
	if n == 0 {
		t.Error("no layer is told of")
	}
}

// within counts, for batches with the given number of rows, the stretches of work of the
// group (a layer's sum, the next one's attention and router) and how many of them lie
// within a pool's work for another batch.
func (r *served) within(rows uint32) (inside, all int) {
	for _, g := range r.tracks["group0"] {
		if g.Kind != trace.Group || g.Rows != rows || g.Ended == g.Started {
			continue
		}
		all++
		if slices.ContainsFunc(r.tracks["pool0"], func(p trace.Event) bool {
			return p.Batch != g.Batch && p.Started <= g.Started && g.Ended <= p.Ended
		}) {
			inside++
		}
	}
	return inside, all
}
