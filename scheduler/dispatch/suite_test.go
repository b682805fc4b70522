package dispatch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// steady are the strategies that copy nothing once they have started.
var steady = map[string]bool{"cpu_only": true, "persistent": true}

// fault is the first thing wrong with a decision, "" if nothing is. It carries
// the loads out on r.
func fault(in *Step, out *Decision, r *Residency, host bool) string {
	seen := make([]int, len(in.Work))
	use := func(list []int32) string {
		for _, i := range list {
			if i < 0 || int(i) >= len(seen) {
				return fmt.Sprintf("work %d of %d", i, len(seen))
			}
			seen[i]++
		}
		return ""
	}
	if f := use(out.Host); f != "" {
		return f
	}
	if len(out.Host) > 0 && !host {
		return "work for the host, which was promised none"
	}
	for n, w := range out.Waves {
		slots := map[int32]bool{}
		for _, l := range w.Loads {
			if _, there := r.Slot(l.Key); there {
				return fmt.Sprintf("wave %d loads %v, which is there", n, l.Key)
			}
			if l.Slot < 0 || int(l.Slot) >= r.Slots() || slots[l.Slot] {
				return fmt.Sprintf("wave %d loads to slot %d of %d, or twice", n, l.Slot, r.Slots())
			}
			if !slices.Contains(in.Setup.Layers, l.Layer) || l.Expert < 0 || int(l.Expert) >= in.Setup.Experts {
				return fmt.Sprintf("wave %d loads %v, which does not exist", n, l.Key)
			}
			slots[l.Slot] = true
			r.Load([]Load{l})
		}
		if f := use(w.Work); f != "" {
			return f
		}
		for _, i := range w.Work {
			if _, ok := r.Slot(Key{in.Layer, in.Work[i].Expert}); !ok {
				return fmt.Sprintf("wave %d computes expert %d, which is not there", n, in.Work[i].Expert)
			}
		}
	}
	for i, n := range seen {
		if n != 1 {
			return fmt.Sprintf("work %d is assigned %d times", i, n)
		}
	}
	return ""
}

// setups are those every strategy is run with, and a random one a seed.
func setups(r *rand.Rand) map[string]*Setup {
	random := &Setup{Experts: 1 + r.IntN(20), Bytes: 1 + r.Int64N(1000), Budget: 1 + r.Int64N(50_000)}
	for l := int32(0); l < 12; l++ {
		if r.IntN(3) > 0 {
			random.Layers = append(random.Layers, l)
		}
	}
	if r.IntN(2) == 0 {
		random.Resident = [][]int32{}
		for range random.Layers {
			var set []int32
			for e := range random.Experts {
				if r.IntN(2) == 0 {
					set = append(set, int32(e))
				}
			}
			random.Resident = append(random.Resident, set)
		}
	}
	first := &Setup{Layers: []int32{1, 2, 3}, Experts: 8, Bytes: 10, Budget: 100}
	first.Resident = first.First()
	return map[string]*Setup{
		"random":        random,
		"everything":    {Layers: []int32{1, 2, 3}, Experts: 8, Bytes: 10, Budget: Unlimited},
		"just enough":   {Layers: []int32{0, 4}, Experts: 3, Bytes: 7, Budget: 42},
		"not enough":    {Layers: []int32{0, 4}, Experts: 3, Bytes: 7, Budget: 41},
		"the first":     first,
		"no layers":     {Experts: 1, Bytes: 1},
		"none resident": {Layers: []int32{5}, Experts: 4, Bytes: 1, Budget: 1, Resident: [][]int32{{}}},
	}
}

// TestEveryStrategy holds all strategies to the contract, over random work.
func TestEveryStrategy(t *testing.T) {
	for _, s := range All() {
		for seed := range uint64(30) {
			r := rand.New(rand.NewPCG(seed, 7))
			for name, setup := range setups(r) {
				runSteps(t, fmt.Sprintf("%s, %s, seed %d", s.Name(), name, seed), s, setup, r)
			}
		}
	}
}

func runSteps(t *testing.T, name string, s Strategy, setup *Setup, r *rand.Rand) {
	start, err := s.Start(setup)
	if errors.Is(err, ErrNoRoom) {
		if len(start.Loads) > 0 {
			t.Errorf("%s: refused, but loads", name)
		}
		return
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if int64(start.Slots)*setup.Bytes > setup.Budget {
		t.Errorf("%s: %d slots of %d bytes, the budget is %d", name, start.Slots, setup.Bytes, setup.Budget)
	}
	residency, decision := NewResidency(&start), &Decision{}
	for step := range 40 {
		if len(setup.Layers) == 0 {
			return
		}
		in := &Step{Setup: setup, Layer: setup.Layers[r.IntN(len(setup.Layers))], Phase: Phase(r.IntN(int(Phases))), Residency: residency}
		for e := range setup.Experts {
			if r.IntN(3) == 0 {
				in.Work = append(in.Work, Rows{int32(e), 1 + r.Int32N(9)})
			}
		}
		before := Step{Work: slices.Clone(in.Work)}
		slots := slices.Clone(residency.slots)
		s.Decide(decision, in)
		again := &Decision{Host: []int32{9}, Waves: []Wave{{Work: []int32{9}}, {Work: []int32{9}}}}
		s.Decide(again, in)
		if !same(decision, again) {
			t.Fatalf("%s, step %d: two decisions: %+v and %+v", name, step, decision, again)
		}
		if !slices.Equal(before.Work, in.Work) || !slices.Equal(slots, residency.slots) {
			t.Fatalf("%s, step %d: the step was changed", name, step)
		}
		if steady[s.Name()] {
			for _, w := range decision.Waves {
				if len(w.Loads) > 0 {
					t.Fatalf("%s, step %d: copies %v", name, step, w.Loads)
				}
			}
		}
		if f := fault(in, decision, residency, start.Host[in.Phase]); f != "" {
			t.Fatalf("%s, step %d: %s", name, step, f)
		}
	}
}

// same compares decisions; empty and nil lists are equal.
func same(a, b *Decision) bool {
	return slices.Equal(a.Host, b.Host) && slices.EqualFunc(a.Waves, b.Waves, func(x, y Wave) bool {
		return slices.Equal(x.Loads, y.Loads) && slices.Equal(x.Work, y.Work)
	})
}

// TestFaultBites: the suite sees every kind of bad decision.
func TestFaultBites(t *testing.T) {
	setup := &Setup{Layers: []int32{0}, Experts: 4, Bytes: 1}
	start := Start{Slots: 2, Loads: []Load{{0, Key{0, 0}}}}
	in := &Step{Setup: setup, Work: []Rows{{0, 1}, {1, 1}}}
	for want, out := range map[string]*Decision{
		"":                                  {Host: []int32{1}, Waves: []Wave{{Work: []int32{0}}}},
		"work 1 is assigned 0 times":        {Waves: []Wave{{Work: []int32{0}}}},
		"work 0 is assigned 2 times":        {Host: []int32{0, 1}, Waves: []Wave{{Work: []int32{0}}}},
		"work 2 of 2":                       {Host: []int32{2}},
		"computes expert 1, which is not":   {Waves: []Wave{{Work: []int32{0, 1}}}},
		"computes expert 0, which is not":   {Waves: []Wave{{Loads: []Load{{0, Key{0, 1}}}, Work: []int32{0, 1}}}},
		"loads {0 0}, which is there":       {Waves: []Wave{{Loads: []Load{{1, Key{0, 0}}}, Work: []int32{0, 1}}}},
		"loads to slot 2 of 2":              {Waves: []Wave{{Loads: []Load{{2, Key{0, 1}}}, Work: []int32{0, 1}}}},
		"loads to slot 1 of 2, or twice":    {Waves: []Wave{{Loads: []Load{{1, Key{0, 1}}, {1, Key{0, 2}}}}}},
		"loads {1 1}, which does not exist": {Waves: []Wave{{Loads: []Load{{1, Key{1, 1}}}}}},
		"loads {0 4}, which does not exist": {Waves: []Wave{{Loads: []Load{{1, Key{0, 4}}}}}},
	} {
		if got := fault(in, out, NewResidency(&start), true); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := fault(in, &Decision{Host: []int32{0, 1}}, NewResidency(&start), false); !strings.Contains(got, "promised none") {
		t.Errorf("got %q", got)
	}
}

// TestStarts are the numbers of each strategy's start.
func TestStarts(t *testing.T) {
	for _, c := range []struct {
		strategy string
		setup    Setup
		want     Start
		err      string
	}{
		{"cpu_only", Setup{Layers: []int32{1}, Experts: 1000, Bytes: 1000, Budget: 1}, Start{Host: [Phases]bool{true, true}}, ""},
		{"persistent", Setup{Layers: []int32{1, 3}, Experts: 2, Bytes: 5, Budget: 20},
			Start{Slots: 4, Loads: []Load{{0, Key{1, 0}}, {1, Key{1, 1}}, {2, Key{3, 0}}, {3, Key{3, 1}}}}, ""},
		{"persistent", Setup{Layers: []int32{1, 3}, Experts: 2, Bytes: 5, Budget: 19},
			Start{}, "persistent: experts do not fit on the device: 4 experts of 5 bytes need 20 bytes, the budget is 19"},
		{"persistent", Setup{Layers: []int32{1, 3}, Experts: 2, Bytes: 5, Budget: 10, Resident: [][]int32{{1}, {0}}},
			Start{Slots: 2, Loads: []Load{{0, Key{1, 1}}, {1, Key{3, 0}}}, Host: [Phases]bool{true, true}}, ""},
		{"persistent", Setup{Layers: []int32{1, 3}, Experts: 2, Bytes: 5, Budget: Unlimited, Resident: [][]int32{{1, 0}, {0, 1}}},
			Start{Slots: 4, Loads: []Load{{0, Key{1, 1}}, {1, Key{1, 0}}, {2, Key{3, 0}}, {3, Key{3, 1}}}}, ""},
		{"persistent", Setup{Layers: make([]int32, 1), Experts: 1 << 16, Bytes: 1 << 62, Budget: Unlimited},
			Start{}, "persistent: experts do not fit on the device: 65536 experts of 4611686018427387904 bytes"},
		{"persistent", Setup{Layers: []int32{1}}, Start{}, "impossible setup of experts: 1 layers of 0 experts"},
		{"cpu_only", Setup{Layers: []int32{1}, Experts: 1 << 17, Bytes: 1}, Start{}, "impossible setup of experts: 1 layers of 131072 experts"},
		{"cpu_only", Setup{Layers: []int32{1}, Experts: 1}, Start{}, "impossible setup of experts: experts of 0 bytes, a budget of 0"},
		{"persistent", Setup{Layers: []int32{1}, Experts: 1, Bytes: 1, Budget: -1}, Start{}, "impossible setup of experts: experts of 1 bytes, a budget of -1"},
		{"persistent", Setup{Layers: []int32{2, 1}, Experts: 1, Bytes: 1}, Start{}, "impossible setup of experts: layers [2 1] do not rise"},
		{"persistent", Setup{Layers: []int32{1}, Experts: 2, Bytes: 1, Resident: [][]int32{{1, 1}}},
			Start{}, "impossible setup of experts: layer 1: resident expert 1 is twice there or not one of 2"},
		{"persistent", Setup{Layers: []int32{1}, Experts: 2, Bytes: 1, Resident: [][]int32{{2}}},
			Start{}, "impossible setup of experts: layer 1: resident expert 2 is twice there or not one of 2"},
		{"persistent", Setup{Layers: []int32{1}, Experts: 2, Bytes: 1, Resident: [][]int32{}},
			Start{}, "impossible setup of experts: resident experts of 0 layers, the model has 1"},
	} {
		s, err := Parse(c.strategy)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Start(&c.setup)
		if c.err != "" {
			if err == nil || err.Error() != c.err || !errors.Is(err, ErrNoRoom) && !errors.Is(err, ErrSetup) {
				t.Errorf("%s, %+v: %v, want %s", c.strategy, c.setup, err, c.err)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s, %+v: %+v, %v; want %+v", c.strategy, c.setup, got, err, c.want)
		}
	}
}

// TestFirst is a resident set without a heat map.
func TestFirst(t *testing.T) {
	for _, c := range []struct {
		budget int64
		each   int
	}{{Unlimited, 4}, {1000, 4}, {80, 4}, {79, 3}, {20, 1}, {19, 0}, {0, 0}} {
		s := &Setup{Layers: []int32{0, 1}, Experts: 4, Bytes: 10, Budget: c.budget}
		s.Resident = s.First()
		start, err := persistent{}.Start(s)
		if err != nil || start.Slots != 2*c.each || start.Host[Decode] != (c.each < 4) {
			t.Errorf("a budget of %d: %d slots, %v; want %d a layer", c.budget, start.Slots, err, c.each)
		}
	}
}

// TestResidency: what is put into a slot takes the place of what was there.
func TestResidency(t *testing.T) {
	r := NewResidency(&Start{Slots: 2, Loads: []Load{{1, Key{3, 4}}}})
	r.Load([]Load{{0, Key{3, 5}}, {1, Key{3, 6}}})
	for k, want := range map[Key]int32{{3, 4}: -1, {3, 5}: 0, {3, 6}: 1, {4, 5}: -1} {
		if got, ok := r.Slot(k); ok != (want >= 0) || ok && got != want {
			t.Errorf("%v lies in %d, %v; want %d", k, got, ok, want)
		}
	}
	for _, bad := range []Load{{2, Key{0, 0}}, {-1, Key{0, 0}}, {0, Key{3, 6}}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%v was loaded", bad)
				}
			}()
			r.Load([]Load{bad})
		}()
	}
}

func TestParse(t *testing.T) {
	for i, name := range []string{"cpu_only", "chunked", "active_only", "static_pin", "weighted_pin", "lru", "persistent", "layer_grouped", "hot_cached_static"} {
		for _, text := range []string{name, fmt.Sprint(i + 1)} {
			s, err := Parse(text)
			exists := name == "cpu_only" || name == "persistent"
			switch {
			case exists && (err != nil || s.Name() != name):
				t.Errorf("%s: %v", text, err)
			case !exists && (!errors.Is(err, ErrUnknown) || err.Error() != "no such strategy in this version: "+name+": there are 1 cpu_only, 7 persistent"):
				t.Errorf("%s: %v", text, err)
			}
		}
	}
	for text, want := range map[string]string{
		"":                `no such strategy: "": there are 1 cpu_only, 7 persistent`,
		"0":               `no such strategy: "0": there are 1 cpu_only, 7 persistent`,
		"10":              `no such strategy: "10": there are 1 cpu_only, 7 persistent`,
		"CPU_ONLY":        `no such strategy: "CPU_ONLY": there are 1 cpu_only, 7 persistent`,
		"auto":            `no such strategy: "auto": there are 1 cpu_only, 7 persistent`,
		"persistent:2":    `no such strategy: persistent takes no number, got "2"`,
		"layer_grouped:4": `no such strategy in this version: layer_grouped: there are 1 cpu_only, 7 persistent`,
	} {
		if _, err := Parse(text); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if n := len(All()); n != len(Names()) || n != 2 {
		t.Errorf("%d strategies, %d names", n, len(Names()))
	}
	for _, s := range All() {
		if got, err := Parse(s.Name()); err != nil || got != s {
			t.Errorf("%s is registered under another name", s.Name())
		}
	}
}

// TestDecideAllocatesNothing once a decision has its room.
func TestDecideAllocatesNothing(t *testing.T) {
	setup := &Setup{Layers: []int32{0}, Experts: 64, Bytes: 1, Budget: 64}
	in := &Step{Setup: setup, Phase: Decode}
	for e := range int32(64) {
		in.Work = append(in.Work, Rows{e, 1})
	}
	for _, s := range All() {
		start, err := s.Start(setup)
		if err != nil {
			t.Fatal(err)
		}
		in.Residency = NewResidency(&start)
		var d Decision
		if n := testing.AllocsPerRun(10, func() { s.Decide(&d, in) }); n != 0 {
			t.Errorf("%s: %v allocations", s.Name(), n)
		}
	}
}
