package forecast

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"krater/scheduler/planner"
	"krater/scheduler/planner/rates"
)

// randomCase is any model on any machine.
func randomCase(r *rand.Rand) Case {
	between := func(lo, hi float64) float64 { return lo * math.Pow(hi/lo, r.Float64()) }
	layers := 1 + r.IntN(40)
	experts := 1 + r.IntN(100)
	s := Shape{
		Layers: layers, MoE: 1 + r.IntN(layers), Experts: experts, TopK: 1 + r.IntN(experts),
		ExpertCard: int64(between(1e3, 3e7)), ExpertHost: int64(between(1e3, 3e7)), ExpertFLOP: between(1e4, 1e8),
		FixedBytes: int64(between(1, 1e9)), FixedFLOP: between(1, 1e10), SharedBytes: int64(between(1, 1e8)), SharedFLOP: between(1, 1e9),
		HeadBytes: int64(between(1, 1e9)), HeadFLOP: between(1, 1e9), KVToken: int64(between(100, 1e6)),
		PairFLOP: between(1, 1e6), DecodePair: between(1, 1e6), ExpandFLOP: between(1, 1e9), RowBytes: between(1, 1e7),
		HandIn: int64(between(1, 2e4)), HandOut: int64(between(1, 2e4)),
	}
	c := Case{Shape: s, Skew: Uniform(experts), Work: Usual()}
	if r.IntN(2) == 0 {
		c.Skew = Zipf(experts)
	}
	c.Rates.Card = rates.Card{Name: "any", MemoryGiB: 16, MemoryGBps: between(100, 5000), TFLOPS: between(5, 1000), LinkGBps: between(0.5, 100)}
	c.Rates.CPU = rates.AssumedCPU("any", 1+r.IntN(64), 1+r.IntN(2), rates.Level(r.IntN(4)))
	c.Work.Chunk, c.Work.Context = 1+r.IntN(8192), r.IntN(8192)
	if r.IntN(2) == 0 {
		c.Work.Streams = 1 + r.IntN(64)
	}
	rest := s.FixedBytes + s.SharedBytes + s.HeadBytes
	all := float64(s.expertBytes(s.all()))
	c.Budget = Budget{Fixed: rest, KV: int64(between(1e3, 5)) * s.KVToken * 8192, RAM: int64(between(1, 10) * all)}
	c.Budget.VRAM = int64((float64(rest+c.Budget.KV) + 1.3*all*r.Float64()) / planner.RefuseShare)
	if r.IntN(2) == 0 {
		c.Budget.Window = int64(0.2 * all * r.Float64())
		c.Work.Window = c.Work.Chunk * (1 + r.IntN(4))
	}
	if r.IntN(3) == 0 {
		c.Budget.Experts = int64(all * r.Float64())
	}
	if r.IntN(3) == 0 {
		c.Budget.RAM = 0
	}
	return c
}

// seeds is how many cases a property is tried with.
func seeds() uint64 {
	if testing.Short() {
		return 15
	}
	return 60
}

// TestEveryForecast: whatever the case, numbers are numbers, nothing exceeds the
// budget, and everybody has a reason.
func TestEveryForecast(t *testing.T) {
	names := []string{"cpu_only", "chunked", "active_only", "static_pin", "weighted_pin", "lru", "persistent", "layer_grouped", "hot_cached_static", "learned"}
	for seed := range seeds() {
		c := randomCase(rand.New(rand.NewPCG(seed, 1)))
		f, err := New(c)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		seen := map[string]int{}
		chosen := 0
		for i := range f.Candidates {
			a := &f.Candidates[i]
			seen[a.Strategy]++
			for phase, s := range map[string]*Side{"prefill": &a.Prefill, "decode": &a.Decode} {
				name := fmt.Sprintf("seed %d, %s, %s", seed, a.Name(), phase)
				if s.Reason == "" {
					t.Errorf("%s: no reason", name)
				}
				if s.Chosen {
					chosen++
				}
				if !s.Fits {
					continue
				}
				// A window is not out of the part for experts.
				room, window := max(0, c.Budget.Room(0)), int64(0)
				if f.Prefill.Groups > 0 || a.Groups > 0 {
					window = (c.Budget.Window + c.Shape.ExpertCard - 1) / c.Shape.ExpertCard * c.Shape.ExpertCard
				}
				if n := c.Shape.expertBytes(s.layout.experts(&c.Shape)); n > room || s.VRAM > room+window || s.VRAM < n {
					t.Errorf("%s: experts take %d bytes of the GPU, %d with others, there are %d", name, n, s.VRAM, room)
				}
				if used := s.VRAM + s.KV*c.Shape.KVToken + c.Budget.Fixed; float64(used) > planner.RefuseShare*float64(c.Budget.VRAM)+1 || s.KV*c.Shape.KVToken < c.Budget.KV-c.Shape.KVToken {
					t.Errorf("%s: %d bytes used of %d, %d tokens of KV cache", name, used, c.Budget.VRAM, s.KV)
				}
				if c.Budget.RAM > 0 && s.RAM > c.Budget.RAM {
					t.Errorf("%s: %d bytes of the host, there are %d", name, s.RAM, c.Budget.RAM)
				}
				for _, p := range append(s.Points, s.Decides) {
					x := p.Time
					for _, v := range []float64{x.Total, x.Card, x.Copies, x.Host, x.HandOver, x.Launches, x.Copied, p.HitRate} {
						if !(v >= 0) || math.IsInf(v, 0) {
							t.Fatalf("%s: %+v", name, p)
						}
					}
					if x.Total > (x.Card+x.Copies+x.Host+x.HandOver+x.Launches)*1.001 || p.HitRate > 1+1e-9 {
						t.Errorf("%s: more than the sum of its parts: %+v", name, p)
					}
					if x.Copies > 0 != (x.Copied > 0) {
						t.Errorf("%s: %g bytes are copied in %g s", name, x.Copied, x.Copies)
					}
				}
			}
		}
		for _, n := range names {
			if seen[n] == 0 || seen[n] > 1 && n != "layer_grouped" {
				t.Errorf("seed %d: %s is there %d times", seed, n, seen[n])
			}
		}
		if (f.Prefill == nil) != (f.Decode == nil) || f.Prefill != nil && chosen != 2 || f.Prefill == nil && chosen != 0 {
			t.Errorf("seed %d: %d chosen", seed, chosen)
		}
	}
}

// faster are changes of a machine that cannot make anything slower.
var faster = map[string]func(*rates.Rates){
	"copies": func(r *rates.Rates) { r.Card.LinkGBps *= 1.5 },
	"GPU's memory": func(r *rates.Rates) {
		r.Card.MemoryGBps *= 1.5
	},
	"GPU's products":  func(r *rates.Rates) { r.Card.TFLOPS *= 1.5 },
	"host's memory":   func(r *rates.Rates) { r.CPU.ReadGBps *= 1.5 },
	"host's products": func(r *rates.Rates) { r.CPU.Experts.Peak *= 1.5 },
}

// TestFasterMachines: no prediction of any layout becomes slower on a machine that is
// faster in one thing.
func TestFasterMachines(t *testing.T) {
	for seed := range seeds() {
		c := randomCase(rand.New(rand.NewPCG(seed, 2)))
		before, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		for what, change := range faster {
			d := c
			change(&d.Rates)
			after, err := New(d)
			if err != nil {
				t.Fatal(err)
			}
			for i := range before.Candidates {
				a, b := &before.Candidates[i], &after.Candidates[i]
				if x, y := a.Prefill.Score, b.Prefill.Score; y < x*(1-1e-9) {
					t.Errorf("seed %d, %s, %s: a prompt took %g s, with faster ones %g", seed, a.Name(), what, x, y)
				}
				for j := range a.Prefill.Points {
					if a.Prefill.layout != b.Prefill.layout {
						break
					}
					if x, y := a.Prefill.Points[j].Seconds, b.Prefill.Points[j].Seconds; y > x*(1+1e-9) {
						t.Errorf("seed %d, %s, %s: a prompt took %g s, with faster ones %g", seed, a.Name(), what, x, y)
					}
				}
				if a.Decode.Fits && b.Decode.Fits && a.Decode.layout == b.Decode.layout {
					if x, y := a.Decode.Decides.Seconds, b.Decode.Decides.Seconds; y > x*(1+1e-9) {
						t.Errorf("seed %d, %s, %s: a step took %g s, with faster ones %g", seed, a.Name(), what, x, y)
					}
				}
			}
		}
	}
}

// TestMoreMemory: with more memory no strategy is slower in either phase by itself, and
// neither is the prefill that is chosen, but for what larger waves cost those that copy what
// was chosen: it is computed behind more copies, and copies wait for more of what is there.
func TestMoreMemory(t *testing.T) {
	for seed := range seeds() / 3 {
		r := rand.New(rand.NewPCG(seed, 3))
		c := randomCase(r)
		c.Budget.Experts, c.Budget.RAM = 0, 0
		card, err := c.Rates.Card.Complete()
		if err != nil {
			t.Fatal(err)
		}
		cpu, err := c.Rates.CPU.Complete()
		if err != nil {
			t.Fatal(err)
		}
		x := &chooser{calc: calc{s: &c.Shape, card: &card, cpu: &cpu, w: &c.Work, picks: c.Skew.picks(c.Shape.TopK)}, b: &Budget{VRAM: 1 << 49, KV: 1 << 48}}
		for i := range strategies {
			s := &strategies[i]
			for _, decode := range []bool{false, true} {
				last := 0.0
				for part := range 11 {
					groups := min(c.Shape.MoE, 4)
					list, _ := s.layouts(&c.Shape, part*c.Shape.all()/10, layout{}, groups)
					now, waves := math.Inf(1), 0.0
					for _, l := range list {
						p := x.side(s, l, 0, decode).Decides
						now = min(now, p.Seconds)
						if s.copies {
							waves = max(waves, 2*p.Time.Card+p.Time.HandOver)
						}
					}
					if last > 0 && now > last*(1+1e-9)+waves {
						t.Errorf("seed %d, %s, decode %t: with %d %% of the experts %g s, with less %g", seed, s.name, decode, 10*part, now, last)
					}
					if len(list) > 0 {
						last = now
					} else if last > 0 {
						t.Errorf("seed %d, %s: fits with less memory only", seed, s.name)
					}
				}
			}
		}
		last := 0.0
		for range 12 {
			f, err := New(c)
			if err != nil {
				t.Fatal(err)
			}
			now := 0.0
			if f.Prefill != nil {
				now = f.Prefill.Prefill.Score
			}
			least := 0.95 * last
			if f.PrefillExperts > 0 { // what it gives up is decode's gain
				least *= nearlyAsFast
			}
			if now < least {
				t.Errorf("seed %d: a GPU of %d bytes prefills %g tokens a second, a smaller one %g", seed, c.Budget.VRAM, now, last)
			}
			if f.PrefillExperts == 0 {
				last = max(last, now)
			}
			c.Budget.VRAM += c.Shape.expertBytes(c.Shape.all()) / 10
		}
	}
}

// TestGroupsAreBound: two buffers take at least the longer of copying and computing
// and at most both; one for a layer takes both, but for what is computed before the
// first copy is there.
func TestGroupsAreBound(t *testing.T) {
	for seed := range seeds() {
		r := rand.New(rand.NewPCG(seed, 4))
		c := randomCase(r)
		stay := r.IntN(c.Shape.MoE)
		two := c.sideOf(t, "layer_grouped", layout{groups: 1 + r.IntN(c.Shape.MoE), buffers: 2, layers: stay}, false).Decides.Time
		one := c.sideOf(t, "layer_grouped", layout{groups: c.Shape.MoE, buffers: 1, layers: stay}, false).Decides.Time
		compute := c.sideOf(t, "persistent", layout{kept: c.Shape.Experts}, false).Decides.Time.Total
		if low := max(compute, one.Copies); two.Total < low*(1-1e-9) || two.Total > (compute+two.Copies)*(1+1e-9) {
			t.Errorf("seed %d: %g s, computing %g, copying %g", seed, two.Total, compute, two.Copies)
		}
		if one.Total > (compute+one.Copies)*(1+1e-9) || stay == 0 && one.Total < (compute+one.Copies)*(1-1e-9) {
			t.Errorf("seed %d: one buffer %g s, two %g, computing %g, copying %g", seed, one.Total, two.Total, compute, one.Copies)
		}
		want := float64(c.Shape.expertBytes((c.Shape.MoE - stay) * c.Shape.Experts))
		if math.Abs(two.Copied-want) > 1e-6*want || one.Copied != two.Copied {
			t.Errorf("seed %d: %g and %g bytes copied, want %g", seed, one.Copied, two.Copied, want)
		}
	}
}

// TestGroupsByHand: 4 layers of which the first stays, three streamed ones in groups of
// one. A copy takes 3 s, a layer 1 s.
func TestGroupsByHand(t *testing.T) {
	shape := Shape{MoE: 4, Experts: 1, ExpertCard: 3e9}
	card := rates.Card{CopyGBps: 1, BusyGBps: 1}
	c := &calc{s: &shape, card: &card}
	for _, x := range []struct {
		l    layout
		want float64
	}{
		// Copies end at 3, 6 and 9; the last layer at 10.
		{layout{layers: 1, groups: 3, buffers: 2}, 10},
		// With one buffer a copy begins when the part before it ends: 3, 4; 7, 8; 11, 12.
		// The first begins at once.
		{layout{layers: 1, groups: 3, buffers: 1}, 12},
		// No layer stays: 3, 4; 6, 7; 9, 10; the fourth waits for its buffer, not for long.
		{layout{groups: 4, buffers: 2}, 13},
		{layout{groups: 4, buffers: 1}, 16},
		// Two groups of two, both in buffers: copying goes on.
		{layout{groups: 2, buffers: 2}, 13},
		// Two of two in one buffer: 6, 7 and then from 7 on 13, 14.
		{layout{groups: 2, buffers: 1}, 14},
		// Three of 2, 1, 1: the third begins when the second part does, at 7.
		{layout{groups: 3, buffers: 2}, 13},
	} {
		if got := c.pipeline(x.l, Time{Total: 4}, 1); math.Abs(got.Total-x.want) > 1e-9 {
			t.Errorf("%+v: %g s, want %g", x.l, got.Total, x.want)
		}
	}
	// In two pieces the second one's first layer waits for the group's last copy: two of two,
	// 6, 6.5, 7, 7.5, and 12, 12.5, 13, 13.5 behind the first's 3.5.
	if got := c.pipeline(layout{groups: 2, buffers: 2}, Time{Total: 4}, 2); math.Abs(got.Total-13.5) > 1e-9 {
		t.Errorf("two pieces: %g s", got.Total)
	}
}

// TestAsks: a strategy that copies what the router chose waits for the choice of every layer,
// of those too that lack nothing; groups do as long as any of them comes.
func TestAsks(t *testing.T) {
	c := toy()
	c.Rates.Card.SyncUS = 1e3
	c.Work.Context = 1
	at := func(name string, l layout) Time { return c.sideOf(t, name, l, true).Decides.Time }
	s, moe := &c.Shape, float64(c.Shape.MoE)
	for _, x := range []struct {
		name string
		l    layout
		want float64 // waits, of 1 ms
	}{
		{"active_only", layout{slots: s.all()}, moe},
		{"static_pin", layout{kept: s.Experts}, moe},
		{"layer_grouped", layout{layers: s.MoE}, 0},
		{"persistent", layout{kept: s.Experts}, 0},
	} {
		if got := at(x.name, x.l).HandOver; math.Abs(got-x.want*1e-3) > 1e-9 {
			t.Errorf("%s: waits of %g s, want %g ms", x.name, got, x.want)
		}
	}
	some := at("layer_grouped", layout{layers: s.MoE - 1, slots: s.Experts, groups: 1, buffers: 1}).HandOver
	if some < moe*1e-3 {
		t.Errorf("one layer comes, the others stay: waits of %g s", some)
	}
}

// TestWindows: a prompt longer than a window is streamed once for each.
func TestWindows(t *testing.T) {
	c := toy()
	c.Work.Lengths, c.Work.Chunk = []int{10_000}, 500
	one := c.sideOf(t, "layer_grouped", layout{groups: 10, buffers: 2}, false).Decides
	for window, want := range map[int]float64{10_000: 1, 20_000: 1, 5000: 2, 4000: 3, 500: 20} {
		c.Work.Window = window
		p := c.sideOf(t, "layer_grouped", layout{groups: 10, buffers: 2}, false).Decides
		near(t, "copied", p.Copied, want*one.Copied, 1e-9)
		all := c.sideOf(t, "persistent", layout{kept: 8}, false).Decides
		if p.Seconds < one.Seconds*(1-1e-9) || p.Seconds > want*8e-3+all.Seconds {
			t.Errorf("windows of %d: %g s, one of all %g", window, p.Seconds, one.Seconds)
		}
	}
}

// TestCopiedBytes counts what each strategy copies by another way.
func TestCopiedBytes(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 5))
		c := randomCase(r)
		s := &c.Shape
		picks := c.Skew.picks(s.TopK)
		kept := r.IntN(s.Experts)
		for name, x := range map[string]struct {
			l       layout
			prefill func(m float64) float64 // experts of a layer and a pass
		}{
			"cpu_only":          {layout{}, func(float64) float64 { return 0 }},
			"hot_cached_static": {layout{kept: kept}, func(float64) float64 { return 0 }},
			"persistent":        {layout{kept: s.Experts}, func(float64) float64 { return 0 }},
			"chunked":           {layout{slots: s.Experts}, func(float64) float64 { return float64(s.Experts) }},
			"active_only":       {layout{}, func(m float64) float64 { return active(picks, m) }},
			"static_pin":        {layout{kept: kept}, func(m float64) float64 { return active(picks[kept:], m) }},
			"lru":               {layout{}, func(m float64) float64 { return active(picks, m) }},
		} {
			got := c.sideOf(t, name, x.l, false).Decides.Copied
			want := 0.0
			for left := 2048; left > 0; left -= c.Work.Chunk {
				want += x.prefill(float64(min(left, c.Work.Chunk))) * float64(s.MoE) * float64(s.ExpertCard)
			}
			if math.Abs(got-want) > 1e-6*want+1e-3 {
				t.Errorf("seed %d, %s: %g bytes, want %g", seed, name, got, want)
			}
		}
	}
}
