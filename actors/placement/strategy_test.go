package placement_test

import (
	"errors"
	"strings"
	"testing"

	"krater/actors/placement"
	"krater/kernels/hostsim"
	"krater/scheduler/dispatch"
	"krater/stages/load"
)

// swap is a strategy for tests: every expert is copied to one of a few slots in
// turn, a wave each; the last item of a layer is the host's.
type swap struct {
	name  string
	slots int
}

func (s swap) Name() string { return s.name }

func (s swap) Start(setup *dispatch.Setup) (dispatch.Start, error) {
	if need := int64(s.slots) * setup.Bytes; need > setup.Budget {
		return dispatch.Start{}, dispatch.ErrNoRoom
	}
	return dispatch.Start{Slots: s.slots, Host: [dispatch.Phases]bool{true, true}}, nil
}

func (s swap) Decide(out *dispatch.Decision, in *dispatch.Step) {
	*out = dispatch.Decision{}
	last := len(in.Work) - 1
	out.Host = append(out.Host, int32(last))
	// The slots are taken in turn from a place that depends on the layer, so that
	// what is there is another one's now and then.
	at := in.Layer()
	gone := map[dispatch.Key]bool{}
	lies := map[int32]dispatch.Key{}
	for e := range in.Setup.Experts {
		for _, l := range in.Setup.Layers {
			k := dispatch.Key{Layer: l, Expert: int32(e)}
			if slot, ok := in.Residency.Slot(k); ok {
				lies[slot-in.First] = k
			}
		}
	}
	for i := range last {
		k := dispatch.Key{Layer: in.Layer(), Expert: in.Work[i].Expert}
		w := dispatch.Wave{Work: []int32{int32(i)}}
		if _, ok := in.Residency.Slot(k); !ok || gone[k] {
			at = (at + 1) % int32(s.slots)
			gone[lies[at]] = true
			lies[at] = k
			w.Loads = []dispatch.Load{{Slot: in.First + at, Key: k}}
		}
		out.Waves = append(out.Waves, w)
	}
}

func (s swap) Smaller(*dispatch.Setup) dispatch.Strategy { return nil }

// TestWavesWithLoads: experts that come and go while a batch runs change no bit,
// with slots of two strategies side by side.
func TestWavesWithLoads(t *testing.T) {
	host := processor(t)
	s := open(t, golden)
	o := load.Options{Limits: limits, Partition: []int{1, 2}}
	want := ask(t, plain(t, host, s.on(t, host, o)), s.cfg.Vocab, 5, 12)
	for _, async := range []bool{false, true} {
		d := simulated(t, hostsim.Options{CPU: host, Async: async})
		m := s.placed(t, d, host, o, placement.Options{Prefill: swap{"wide", 3}, Decode: swap{"narrow", 1}, Threshold: 5})
		before := d.Counters()
		equal(t, want, ask(t, m, s.cfg.Vocab, 5, 12))
		expert := 3 * int64(s.cfg.MoE.FF) * int64(s.cfg.Hidden) * int64(s.cfg.DType.Size())
		if c := d.Counters().Since(before); c.BytesUp < 20*expert || c.Launches["Experts"] < 20 {
			t.Errorf("%d bytes up, %d launches: nothing came and went", c.BytesUp, c.Launches["Experts"])
		}
	}
}

// TestBudgetIsShared: the second strategy gets what the first left.
func TestBudgetIsShared(t *testing.T) {
	host := processor(t)
	s := open(t, golden)
	d := simulated(t, hostsim.Options{CPU: host})
	parts := s.on(t, d, load.Options{Limits: limits, Routed: host})
	expert := 3 * int64(s.cfg.MoE.FF) * int64(s.cfg.Hidden) * int64(s.cfg.DType.Size())
	for _, c := range []struct {
		slots int64 // the budget
		want  string
		used  int64
	}{{1, "prefill: ", 0}, {3, "decode: ", 0}, {4, "", 4}} {
		before := d.Memory().Used
		p, err := placement.New(d, host, parts, placement.Options{Prefill: swap{"a", 2}, Decode: swap{"b", 2}, Budget: c.slots * expert})
		if c.want != "" {
			if !errors.Is(err, dispatch.ErrNoRoom) || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("%d slots: %v", c.slots, err)
			}
		} else if err != nil {
			t.Error(err)
		}
		if used := d.Memory().Used - before; used != c.used*expert {
			t.Errorf("%d slots: %d bytes in use, want %d", c.slots, used, c.used*expert)
		}
		if p != nil {
			p.Close()
		}
	}
	p, err := placement.New(d, host, parts, placement.Options{Prefill: swap{"a", 2}, Decode: swap{"a", 2}, Budget: 2 * expert})
	if err != nil {
		t.Fatalf("one strategy for both phases: %v", err)
	}
	p.Close()
}

// TestPhases: from the threshold on a batch is prefill.
func TestPhases(t *testing.T) {
	host := processor(t)
	s := open(t, golden)
	d := simulated(t, hostsim.Options{CPU: host})
	parts := s.on(t, d, load.Options{Limits: limits, Routed: host})
	for _, c := range []struct{ threshold, from int }{{0, 300}, {7, 7}} {
		p, err := placement.New(d, host, parts, placement.Options{Prefill: strategy(t, "persistent"), Decode: strategy(t, "cpu_only"), Threshold: c.threshold})
		if err != nil {
			t.Fatal(err)
		}
		for _, rows := range []int{1, c.from - 1, c.from, c.from + 1} {
			prefill := rows >= c.from
			if p.Shares(rows) == prefill || (p.Phase(rows) == dispatch.Prefill) != prefill {
				t.Errorf("threshold %d, %d rows: %s, host %v", c.threshold, rows, p.Phase(rows), p.Shares(rows))
			}
		}
		p.Close()
	}
}
