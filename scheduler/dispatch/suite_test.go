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

// everyone are all strategies, and variants of the one that has numbers.
func everyone(t testing.TB) []Strategy {
	t.Helper()
	list := All()
	for _, text := range []string{"layer_grouped:2", "layer_grouped:3", "layer_grouped:5", "layer_grouped:3:1", "layer_grouped:40:1"} {
		s, err := Parse(text)
		if err != nil || s.Name() != text {
			t.Fatalf("%s: %v", text, err)
		}
		list = append(list, s)
	}
	return list
}

// steady are the strategies that copy nothing once they have started.
var steady = map[string]bool{"cpu_only": true, "persistent": true, "hot_cached_static": true, "learned": true}

// sharing are the strategies that may leave work to the host.
var sharing = map[string]bool{"cpu_only": true, "hot_cached_static": true, "learned": true}

// fault is the first thing wrong with a decision, "" if nothing is. It carries
// the loads out on in.Residency.
func fault(in *Step, out *Decision) string {
	r := in.Residency
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
	if len(out.Host) > 0 && !in.Start.Host[in.Phase] {
		return "work for the host, which was promised none"
	}
	stay := map[int32]bool{}
	for _, l := range in.Start.Loads {
		stay[in.First+l.Slot] = true
	}
	for n, w := range out.Waves {
		slots := map[int32]bool{}
		for _, l := range w.Loads {
			if _, there := r.Slot(l.Key); there {
				return fmt.Sprintf("wave %d loads %v, which is there", n, l.Key)
			}
			if l.Slot < in.First || int(l.Slot-in.First) >= in.Start.Slots || slots[l.Slot] {
				return fmt.Sprintf("wave %d loads to slot %d of %d from %d, or twice", n, l.Slot, in.Start.Slots, in.First)
			}
			if stay[l.Slot] {
				return fmt.Sprintf("wave %d loads to slot %d, whose expert stays", n, l.Slot)
			}
			index := slices.Index(in.Setup.Layers, l.Layer)
			if index < 0 || l.Expert < 0 || int(l.Expert) >= in.Setup.Experts {
				return fmt.Sprintf("wave %d loads %v, which does not exist", n, l.Key)
			}
			if p := in.place(index); l.Slot < p.First || l.Slot >= p.First+p.Slots {
				return fmt.Sprintf("wave %d loads %v to slot %d, its layer has %d from %d", n, l.Key, l.Slot, p.Slots, p.First)
			}
			slots[l.Slot] = true
			r.Load(l)
		}
		if f := use(w.Work); f != "" {
			return f
		}
		for _, i := range w.Work {
			k := Key{in.Layer(), in.Work[i].Expert}
			if _, ok := r.Slot(k); !ok {
				return fmt.Sprintf("wave %d computes expert %d, which is not there", n, k.Expert)
			}
			r.Use(k)
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
	random := &Setup{Experts: 1 + r.IntN(20), Bytes: 1 + r.Int64N(1000), Budget: 1 + r.Int64N(100_000)}
	for l := int32(0); l < 12; l++ {
		if r.IntN(3) > 0 {
			random.Layers = append(random.Layers, l)
		}
	}
	if r.IntN(2) == 0 {
		random.Heat = heatOf(r, random)
	}
	for _, l := range random.Layers {
		if r.IntN(4) == 0 {
			random.Kept = append(random.Kept, Key{l, r.Int32N(int32(random.Experts))})
		}
	}
	return map[string]*Setup{
		"random":      random,
		"everything":  {Layers: []int32{1, 2, 3}, Experts: 8, Bytes: 10, Budget: Unlimited},
		"just enough": {Layers: []int32{0, 4}, Experts: 3, Bytes: 7, Budget: 42},
		"not enough":  {Layers: []int32{0, 4}, Experts: 3, Bytes: 7, Budget: 41},
		"a layer":     {Layers: []int32{1, 2, 3, 4, 5, 6, 7}, Experts: 8, Bytes: 10, Budget: 80},
		"some layers": {Layers: []int32{1, 2, 3, 4, 5, 6, 7}, Experts: 8, Bytes: 10, Budget: 407},
		"no layers":   {Experts: 1, Bytes: 1},
		"one slot":    {Layers: []int32{3, 5}, Experts: 4, Bytes: 1, Budget: 1},
		"one layer":   {Layers: []int32{5}, Experts: 4, Bytes: 1, Budget: 3},
		"nothing":     {Layers: []int32{5}, Experts: 4, Bytes: 1},
	}
}

// heatOf is a heat of every kind of skew.
func heatOf(r *rand.Rand, s *Setup) [][]uint32 {
	heat := make([][]uint32, len(s.Layers))
	for i := range heat {
		heat[i] = make([]uint32, s.Experts)
		most := r.Uint32N(1000)
		for e := range heat[i] {
			heat[i][e] = r.Uint32N(1 + most>>r.IntN(10))
		}
	}
	return heat
}

// TestEveryStrategy holds all strategies to the contract, over random work.
func TestEveryStrategy(t *testing.T) {
	for _, s := range everyone(t) {
		for seed := range uint64(30) {
			r := rand.New(rand.NewPCG(seed, 7))
			for name, setup := range setups(r) {
				runSteps(t, fmt.Sprintf("%s, %s, seed %d", s.Name(), name, seed), s, setup, r)
			}
		}
	}
}

// begin makes a residency in which some other strategy has slots before and behind.
func begin(t *testing.T, name string, setup *Setup, start *Start) (*Residency, int32) {
	t.Helper()
	r := NewResidency()
	r.Add(&Start{Slots: 3})
	first := r.Add(start)
	kept := &Start{Slots: len(setup.Kept)}
	for i, k := range setup.Kept {
		kept.Loads = append(kept.Loads, Load{int32(i), k})
	}
	r.Add(kept) // panics where the start loads one of them
	for i, p := range start.Places {
		if p.Slots < 0 || p.First < 0 || int(p.First+p.Slots) > start.Slots {
			t.Fatalf("%s: layer %d: %+v of %d slots", name, i, p, start.Slots)
		}
		for _, q := range start.Places {
			if p != q && p.Slots > 0 && q.Slots > 0 && p.First < q.First+q.Slots && q.First < p.First+p.Slots {
				t.Fatalf("%s: places %+v and %+v overlap", name, p, q)
			}
		}
	}
	if p := start.Parts; len(p) > 0 && (p[0] != 0 || !slices.IsSorted(p) || p[len(p)-1] >= len(setup.Layers)) {
		t.Fatalf("%s: parts %v of %d layers", name, p, len(setup.Layers))
	}
	return r, first
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
	if again, _ := s.Start(setup); !reflect.DeepEqual(start, again) {
		t.Errorf("%s: two starts", name)
	}
	residency, first := begin(t, name, setup, &start)
	decision := &Decision{}
	for step := range 40 {
		if len(setup.Layers) == 0 {
			return
		}
		in := &Step{Setup: setup, Start: &start, First: first, Index: r.IntN(len(setup.Layers)), Phase: Phase(r.IntN(int(Phases))), Residency: residency}
		for e := range setup.Experts {
			if r.IntN(3) == 0 {
				in.Work = append(in.Work, Rows{int32(e), 1 + r.Int32N(9)})
			}
		}
		before := Step{Work: slices.Clone(in.Work)}
		slots, links := slices.Clone(residency.slots), slices.Clone(residency.links)
		s.Decide(decision, in)
		again := &Decision{Host: []int32{9}, Waves: []Wave{{Work: []int32{9}}, {Work: []int32{9}}}}
		s.Decide(again, in)
		if !same(decision, again) {
			t.Fatalf("%s, step %d: two decisions: %+v and %+v", name, step, decision, again)
		}
		if !slices.Equal(before.Work, in.Work) || !slices.Equal(slots, residency.slots) || !slices.Equal(links, residency.links) {
			t.Fatalf("%s, step %d: the step was changed", name, step)
		}
		for _, w := range decision.Waves {
			if steady[s.Name()] && len(w.Loads) > 0 {
				t.Fatalf("%s, step %d: copies %v", name, step, w.Loads)
			}
		}
		if len(decision.Host) > 0 && !sharing[s.Name()] {
			t.Fatalf("%s, step %d: work for the host", name, step)
		}
		if start.Fixed[in.Phase] {
			checkFixed(t, fmt.Sprintf("%s, step %d", name, step), s, in, decision)
		}
		if f := fault(in, decision); f != "" {
			t.Fatalf("%s, step %d: %s", name, step, f)
		}
	}
}

// checkFixed decides for a choice of all experts: each is where it was for the choice of
// some, and the same is copied.
func checkFixed(t *testing.T, name string, s Strategy, in *Step, d *Decision) {
	t.Helper()
	all, whole := *in, &Decision{}
	all.Work = nil
	for e := range in.Setup.Experts {
		all.Work = append(all.Work, Rows{int32(e), 1})
	}
	s.Decide(whole, &all)
	host := map[int32]bool{}
	for _, i := range whole.Host {
		host[all.Work[i].Expert] = true
	}
	for _, i := range d.Host {
		if !host[in.Work[i].Expert] {
			t.Fatalf("%s: expert %d is the host's for one choice only", name, in.Work[i].Expert)
		}
	}
	loads, some, work := make([]Load, 0), make([]Load, 0), 0
	for _, w := range whole.Waves {
		loads = append(loads, w.Loads...)
	}
	for _, w := range d.Waves {
		some = append(some, w.Loads...)
		work += len(w.Work)
	}
	if !slices.Equal(loads, some) || work+len(d.Host) != len(in.Work) {
		t.Fatalf("%s: copies %v for all, %v for some", name, loads, some)
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
	for want, out := range map[string]*Decision{
		"":                                  {Host: []int32{1}, Waves: []Wave{{Work: []int32{0}}}},
		"work 1 is assigned 0 times":        {Waves: []Wave{{Work: []int32{0}}}},
		"work 0 is assigned 2 times":        {Host: []int32{0, 1}, Waves: []Wave{{Work: []int32{0}}}},
		"work 2 of 2":                       {Host: []int32{2}},
		"computes expert 1, which is not":   {Waves: []Wave{{Work: []int32{0, 1}}}},
		"loads {0 0}, which is there":       {Waves: []Wave{{Loads: []Load{{1, Key{0, 0}}}, Work: []int32{0, 1}}}},
		"loads to slot 4 of 4 from 0":       {Waves: []Wave{{Loads: []Load{{4, Key{0, 1}}}, Work: []int32{0, 1}}}},
		"loads to slot 1 of 4 from 0, or":   {Waves: []Wave{{Loads: []Load{{1, Key{0, 1}}, {1, Key{0, 2}}}}}},
		"loads {1 1}, which does not exist": {Waves: []Wave{{Loads: []Load{{1, Key{1, 1}}}}}},
		"loads {0 4}, which does not exist": {Waves: []Wave{{Loads: []Load{{1, Key{0, 4}}}}}},
		"to slot 0, whose expert stays":     {Waves: []Wave{{Loads: []Load{{0, Key{0, 1}}}}}},
		"to slot 3, its layer has 2 from 1": {Waves: []Wave{{Loads: []Load{{3, Key{0, 1}}}}}},
	} {
		start := Start{Slots: 4, Loads: []Load{{0, Key{0, 0}}}, Places: []Place{{1, 2}}, Host: [Phases]bool{true, false}}
		in := &Step{Setup: setup, Start: &start, Work: []Rows{{0, 1}, {1, 1}}, Residency: NewResidency()}
		in.Residency.Add(&start)
		if got := fault(in, out); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("got %q, want %q", got, want)
		}
		in.Phase = Decode
		if got := fault(in, &Decision{Host: []int32{0, 1}}); !strings.Contains(got, "promised none") {
			t.Errorf("got %q", got)
		}
	}
}

// TestResidency: what is put into a slot takes the place of what was there, and places
// know what was used longest ago.
func TestResidency(t *testing.T) {
	r := NewResidency()
	r.Add(&Start{Slots: 1, Loads: []Load{{0, Key{9, 9}}}})
	first := r.Add(&Start{Slots: 4, Loads: []Load{{0, Key{3, 4}}}, Places: []Place{{1, 3}, {1, 3}}})
	order := func() (list []int32) {
		for s := r.oldest(Place{first + 1, 3}); s >= 0; s = r.newer(s) {
			list = append(list, s)
		}
		return list
	}
	for i, s := range []struct {
		do   func()
		want []int32
	}{
		{func() {}, []int32{2, 3, 4}},
		{func() { r.Load(Load{3, Key{3, 5}}) }, []int32{2, 4, 3}},
		{func() { r.Load(Load{2, Key{3, 6}}) }, []int32{4, 3, 2}},
		{func() { r.Use(Key{3, 5}) }, []int32{4, 2, 3}},
		{func() { r.Use(Key{3, 5}); r.Use(Key{3, 4}); r.Use(Key{9, 9}) }, []int32{4, 2, 3}},
		{func() { r.Load(Load{4, Key{3, 7}}) }, []int32{2, 3, 4}},
		{func() { r.Drop(3) }, []int32{2, 3, 4}},
	} {
		if s.do(); !slices.Equal(order(), s.want) {
			t.Errorf("%d: %v, want %v", i, order(), s.want)
		}
	}
	for k, want := range map[Key]int32{{9, 9}: 0, {3, 4}: 1, {3, 6}: 2, {3, 5}: -1, {3, 7}: 4} {
		got, ok := r.Slot(k)
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("%v lies in %d, %v; want %d", k, got, ok, want)
		}
		if want >= 0 {
			if back, ok := r.At(want); back != k || !ok {
				t.Errorf("in %d lies %v", want, back)
			}
		}
	}
	if _, ok := r.At(3); ok || r.Slots() != 5 {
		t.Errorf("slot 3 is taken, or there are not 5 but %d", r.Slots())
	}
	for _, bad := range []Load{{5, Key{0, 0}}, {-1, Key{0, 0}}, {0, Key{3, 6}}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%v was loaded", bad)
				}
			}()
			r.Load(bad)
		}()
	}
}

func TestParse(t *testing.T) {
	const are = "there are 1 cpu_only, 2 chunked, 3 active_only, 4 static_pin, 5 weighted_pin, 6 lru, 7 persistent, 8 layer_grouped, 9 hot_cached_static, 10 learned"
	for i, name := range []string{"cpu_only", "chunked", "active_only", "static_pin", "weighted_pin", "lru", "persistent", "layer_grouped", "hot_cached_static", "learned"} {
		for _, text := range []string{name, fmt.Sprint(i + 1)} {
			if s, err := Parse(text); err != nil || s.Name() != name || s != All()[i] {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
	for text, want := range map[string]string{
		"":                    `no such strategy: "": ` + are,
		"0":                   `no such strategy: "0": ` + are,
		"11":                  `no such strategy: "11": ` + are,
		"CPU_ONLY":            `no such strategy: "CPU_ONLY": ` + are,
		"auto":                `no such strategy: "auto": ` + are,
		"persistent:2":        `no such strategy: persistent takes no number, got "2"`,
		"layer_grouped:":      `no such strategy: layer_grouped: "" groups, want 2 to 32767`,
		"layer_grouped:1":     `no such strategy: layer_grouped: "1" groups, want 2 to 32767`,
		"8:99999":             `no such strategy: layer_grouped: "99999" groups, want 2 to 32767`,
		"layer_grouped:4:3":   `no such strategy: layer_grouped: "3" staging buffers, want 1 or 2`,
		"layer_grouped:4:2:1": `no such strategy: layer_grouped: "2:1" staging buffers, want 1 or 2`,
	} {
		if _, err := Parse(text); err == nil || err.Error() != want || !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	for n, want := range map[int]string{0: "chunked", 1: "persistent", 2: "layer_grouped:2", 7: "layer_grouped:7"} {
		if s, err := Divisor(n); err != nil || s.Name() != want {
			t.Errorf("divisor %d: %v, %v; want %s", n, s, err, want)
		}
	}
	if _, err := Divisor(-1); !errors.Is(err, ErrUnknown) {
		t.Errorf("divisor -1: %v", err)
	}
}

// TestDecideAllocatesNothing once a decision has its room.
func TestDecideAllocatesNothing(t *testing.T) {
	setup := &Setup{Layers: []int32{0, 1, 2, 3}, Experts: 64, Bytes: 1, Budget: 200}
	for _, s := range everyone(t) {
		settled, err := Settle(s, setup)
		if err != nil {
			t.Fatal(err)
		}
		r := NewResidency()
		r.Add(&settled.Start)
		var d Decision
		for _, phase := range []Phase{Prefill, Decode} {
			in := &Step{Setup: setup, Start: &settled.Start, Phase: phase, Residency: r}
			for e := range int32(64) {
				in.Work = append(in.Work, Rows{e, 1})
			}
			if n := testing.AllocsPerRun(10, func() { settled.Decide(&d, in) }); n != 0 {
				t.Errorf("%s, %s: %v allocations", s.Name(), phase, n)
			}
		}
	}
}
