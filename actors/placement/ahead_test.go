package placement_test

import (
	"testing"

	"krater/actors/placement"
	"krater/kernels/device"
	"krater/kernels/hostsim"
	"krater/stages/load"
)

// watching notes how much had been copied to it whenever experts were enqueued, layer by layer.
type watching struct {
	*hostsim.Device
	layers [][]int64
}

func (w *watching) Run(s device.Stream, l device.List) {
	for part := range l.Parts(w.Device) {
		switch part.Ops[0].Kind {
		case device.OpRouteTopK:
			w.layers = append(w.layers, []int64{w.Counters().BytesUp})
		case device.OpExperts:
			last := &w.layers[len(w.layers)-1]
			*last = append(*last, w.Counters().BytesUp)
		}
		w.Device.Run(s, part)
	}
}

// TestCopiesBeforeFoundExperts: copies of a layer's missing experts are enqueued before the work of
// the experts that are there. A copy into the slot of an expert in use is enqueued after its work.
func TestCopiesBeforeFoundExperts(t *testing.T) {
	host := processor(t)
	s := open(t, "")
	o := load.Options{Limits: limits, Partition: load.Even(len(s.cfg.Layers), 2)}
	expert := s.slotBytes(t, host, o)
	want := ask(t, s.placed(t, simulated(t, hostsim.Options{CPU: host}), host, o, placement.Options{Prefill: strategy(t, "cpu_only"), Decode: strategy(t, "cpu_only")}), s.cfg.Vocab, 5, 6)
	for _, x := range []struct {
		name  string
		slots int
		ahead bool
	}{
		{"layer_grouped", 2 * s.cfg.MoE.Experts, true},
		{"chunked", 1, false}, // all in one slot
	} {
		w := &watching{Device: simulated(t, hostsim.Options{CPU: host})}
		st := strategy(t, x.name)
		got := ask(t, s.placed(t, w, host, o, placement.Options{Prefill: st, Decode: st, Threshold: 1 << 20, Budget: int64(x.slots) * expert}), s.cfg.Vocab, 5, 6)
		equal(t, want, got)
		copied := 0
		for _, up := range w.layers {
			if len(up) < 3 || up[len(up)-1] == up[0] { // one wave, or nothing is copied
				continue
			}
			copied++
			if first := up[1] == up[len(up)-1]; first != x.ahead {
				t.Fatalf("%s: %v bytes had been copied as experts were enqueued", x.name, up)
			}
		}
		if copied == 0 {
			t.Errorf("%s: no layer had experts there and others to copy", x.name)
		}
	}
}
