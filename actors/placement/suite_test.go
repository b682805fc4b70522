package placement_test

import (
	"fmt"
	"testing"
	"time"

	"krater/actors/placement"
	"krater/kernels/hostsim"
	"krater/scheduler/dispatch"
	"krater/stages"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/offload"
)

// strategies are all there are, and layer_grouped with its numbers.
func strategies(t testing.TB) []dispatch.Strategy {
	t.Helper()
	return append(dispatch.All(), strategy(t, "layer_grouped:2"), strategy(t, "layer_grouped:2:1"))
}

// TestEveryStrategyOnDevice sweeps budgets from nothing to everything, in batches that
// layers take in pieces: the results have the bits of the model on the CPU, the device never
// has more than its budget, and the bytes copied to it beyond those of every run are the
// number that the placement reports.
func TestEveryStrategyOnDevice(t *testing.T) {
	host := processor(t)
	s := open(t, golden)
	lo := load.Options{Limits: limits}
	want := ask(t, plain(t, host, s.on(t, host, lo)), s.cfg.Vocab, 20, 6)
	lo.Window = 8
	lim, err := lo.LimitsFor(s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	expert := s.slotBytes(t, host, lo)
	bare := simulated(t, hostsim.Options{CPU: host})
	s.on(t, bare, load.Options{Limits: lo.Limits, Routed: host})
	rest := bare.Memory().Used + stages.StateBytes(s.cfg, lim, nil) + offload.StageBytes(s.cfg, lim, nil)
	moved := int64(0) // up, in a run that copies no expert
	budgets := []int64{32, 0, 1, 3, 15, 16, 17, 24, 31}
	if testing.Short() {
		budgets = []int64{32, 0, 1, 16, 31}
	}
	for _, slots := range budgets {
		for i, x := range strategies(t) {
			d := simulated(t, hostsim.Options{CPU: host, Budget: rest + slots*expert, Async: (i+int(slots))%3 == 0})
			po := placement.Options{Prefill: x, Decode: x, Threshold: 9, Budget: max(1, slots*expert), Heat: s.heat(int(slots))}
			o := lo
			parts, p, err := placement.Load(d, host, s.cfg, s.set, o, po)
			if err != nil {
				t.Fatal(err)
			}
			m, err := placement.NewModel(d, host, parts, p)
			if err != nil {
				t.Fatalf("%s, %d slots: %v", x.Name(), slots, err)
			}
			before := d.Counters()
			t.Run(fmt.Sprintf("%s, %d slots", x.Name(), slots), func(t *testing.T) { equal(t, want, ask(t, m, s.cfg.Vocab, 20, 6)) })
			up := d.Counters().Since(before).BytesUp
			prefill, decode := p.Stats(dispatch.Prefill), p.Stats(dispatch.Decode)
			name := p.Strategy(dispatch.Prefill).Name()
			if n, bytes := p.Slots(); int64(n) > slots || bytes != int64(n)*expert {
				t.Errorf("%s: %d slots of %d bytes, the budget has %d", name, n, bytes, slots)
			}
			if x.Name() == "persistent" && slots == 32 {
				moved = up
			}
			copied := prefill.CopiedBytes + decode.CopiedBytes
			switch {
			case name == "cpu_only" || name == "hot_cached_static":
				if copied != 0 || prefill.Misses+decode.Misses != 0 {
					t.Errorf("%s: copied %d bytes, %+v, %+v", name, copied, prefill, decode)
				}
			case name == "learned": // see TestLearned
				if prefill.Misses != 0 || slots < 16 && copied == 0 {
					t.Errorf("learned, %d slots: %+v, %+v", slots, prefill, decode)
				}
			case moved > 0 && up != moved+copied:
				t.Errorf("%s, %d slots: %d bytes went up, %d of them in every run, the account has %d", name, slots, up, moved, copied)
			case name != "persistent" && slots < 16 && (copied == 0 || prefill.Misses == 0 || decode.Misses == 0):
				t.Errorf("%s, %d slots: nothing was copied: %+v, %+v", name, slots, prefill, decode)
			}
			if (len(p.Falls()) > 0) != (name != x.Name()) {
				t.Errorf("%s became %s by %v", x.Name(), name, p.Falls())
			}
			m.Close()
			p.Close()
			parts.Close()
		}
		if moved == 0 {
			t.Fatal("persistent with room for everything was not run")
		}
	}
}

// slow is a device whose copies of experts take about as long as its work.
var slow = hostsim.Rates{
	Up: hostsim.Link{BytesPerSecond: 2e9}, Down: hostsim.Link{BytesPerSecond: 100e9},
	Memory: 8e9, Flops: 1e12,
}

// TestCopiesBesideWork: in virtual time a prefill that streams the model takes hardly
// longer than the longer of its copies and its work, with one staging buffer both after
// the other, and the number of pieces changes nothing about the copies.
func TestCopiesBesideWork(t *testing.T) {
	host := processor(t)
	s := open(t, "")
	type cost struct {
		took, up, compute time.Duration
		copies            int64
	}
	run := func(name string, slots int64, window, rows int) cost {
		t.Helper()
		lo := load.Options{Limits: stages.Limits{Tokens: 400, Window: window, Seqs: 1, Blocks: 30, BlockTokens: 16}}
		d := simulated(t, hostsim.Options{CPU: host, Rates: slow})
		parts, p, err := placement.Load(d, host, s.cfg, s.set, lo, placement.Options{
			Prefill: strategy(t, name), Decode: strategy(t, "cpu_only"), Threshold: 9, Budget: slots * 3 * int64(s.cfg.MoE.FF*s.cfg.Hidden*s.cfg.DType.Size()),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer parts.Close()
		defer p.Close()
		m, err := placement.NewModel(d, host, parts, p)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		b := &stages.Step{Tokens: make([]int32, rows), Spans: []stages.Span{{Want: true}}}
		for i := range b.Tokens {
			b.Tokens[i] = int32(3 + i*31%1000)
		}
		b.Spans[0].Len = rows
		for i := range int32(25) {
			b.Spans[0].Blocks = append(b.Spans[0].Blocks, i)
		}
		start, before := d.Clock().Now(), d.Counters()
		if err := m.Step(b, nil, nil); err != nil {
			t.Fatal(err)
		}
		c := d.Counters().Since(before)
		return cost{d.Clock().Now() - start, c.Up, c.Compute, p.Stats(dispatch.Prefill).Copies}
	}
	for _, c := range []struct {
		name   string
		slots  int64
		window int
		rows   int
		most   float64 // of the longer part
		least  float64 // of the sum
		copies int64
	}{
		{"layer_grouped", 64, 0, 200, 1.2, 0, 192},      // two of six layers at a time
		{"layer_grouped", 64, 50, 200, 1.12, 0, 192},    // in four pieces
		{"layer_grouped", 128, 50, 200, 1.1, 0, 128},    // two stay, four are copied
		{"layer_grouped:6:1", 32, 50, 200, 2, 0.9, 192}, // no overlap
		{"persistent", 192, 50, 200, 1.01, 0, 0},
	} {
		got := run(c.name, c.slots, c.window, c.rows)
		longer, sum := max(got.up, got.compute), got.up+got.compute
		t.Logf("%+v: %+v, %.2f of the longer part, %.2f of both", c, got, float64(got.took)/float64(longer), float64(got.took)/float64(sum))
		if got.copies != c.copies {
			t.Errorf("%+v: %d copies", c, got.copies)
		}
		if float64(got.took) > c.most*float64(longer)+1e3 || float64(got.took) < c.least*float64(sum) {
			t.Errorf("%+v: %v, copies %v and work %v", c, got.took, got.up, got.compute)
		}
	}
	// A strategy that goes through all layers with every piece copies them for each.
	if whole, four := run("chunked", 32, 0, 200), run("chunked", 32, 50, 200); four.copies != 4*whole.copies || whole.copies != 192 {
		t.Errorf("chunked copies %d experts, in four pieces %d", whole.copies, four.copies)
	}
}

// TestPromptsShareAPass: what is copied for a pass through the groups of layers serves all
// prompts of the batch, however many pieces layers take it in.
func TestPromptsShareAPass(t *testing.T) {
	host := processor(t)
	s := open(t, golden)
	lo := load.Options{Limits: limits}
	lo.Window = 10
	expert := s.slotBytes(t, host, lo)
	for _, prompts := range []int{1, 4} {
		d := simulated(t, hostsim.Options{CPU: host})
		parts, p, err := placement.Load(d, host, s.cfg, s.set, lo, placement.Options{
			Prefill: strategy(t, "layer_grouped:2:1"), Decode: strategy(t, "cpu_only"), Threshold: 9, Budget: 16 * expert,
		})
		if err != nil {
			t.Fatal(err)
		}
		m, err := placement.NewModel(d, host, parts, p)
		if err != nil {
			t.Fatal(err)
		}
		const passes = 3
		for range passes {
			var seqs []*drive.Sequence
			for i := range prompts {
				q := &drive.Sequence{New: 1}
				for j := range 23 {
					q.Prompt = append(q.Prompt, int32((5+i*41+j*13)%s.cfg.Vocab))
				}
				seqs = append(seqs, q)
			}
			if err := drive.Run(m, seqs, drive.Options{}); err != nil {
				t.Fatal(err)
			}
		}
		if got := p.Stats(dispatch.Prefill).Copies; got != passes*32 { // two layers of 16 in a buffer of one
			t.Errorf("%d prompts: %d copies in %d passes, want 32 each", prompts, got, passes)
		}
		m.Close()
		p.Close()
		parts.Close()
	}
}
