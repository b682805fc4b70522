package dispatch

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// counts are the costs of a step: experts copied, and work whose expert was on the device, was loaded
// for this step, or was left to the host.
type counts struct{ copies, hits, misses, host int }

// model says the same as a strategy in the simplest words.
type model interface {
	step(phase Phase, index int, experts []int32) counts
}

// recent is a list of experts with a maximum length, the least recently used first.
type recent struct {
	room int
	list []Key
}

func (r *recent) has(k Key) bool { return slices.Contains(r.list, k) }

func (r *recent) use(k Key) {
	if i := slices.Index(r.list, k); i >= 0 {
		r.list = slices.Delete(r.list, i, i+1)
	} else if len(r.list) == r.room {
		r.list = slices.Delete(r.list, 0, 1)
	}
	r.list = append(r.list, k)
}

// caching is pins, and a list for every layer that several may share.
type caching struct {
	pins  map[Key]bool
	lists []*recent // by layer
}

func (c *caching) step(_ Phase, index int, experts []int32) (n counts) {
	there := map[int32]bool{}
	for _, e := range experts {
		k := Key{int32(index), e}
		there[e] = c.pins[k] || c.lists[index] != nil && c.lists[index].has(k)
		if there[e] && !c.pins[k] {
			c.lists[index].use(k)
		}
	}
	for _, e := range experts {
		if there[e] {
			n.hits++
			continue
		}
		n.misses++
		n.copies++
		c.lists[index].use(Key{int32(index), e})
	}
	return n
}

// divided is a caching whose slots are divided among the layers.
func divided(pins map[Key]bool, slots, layers int) *caching {
	c := &caching{pins: pins, lists: make([]*recent, layers)}
	for i := range layers {
		if slots == 0 {
			break
		}
		if slots >= layers { // one each: layer i has the slots s with s*layers/slots... = i
			room := 0
			for s := range slots {
				if (s+1)*layers > i*slots && s >= i*slots/layers && s < (i+1)*slots/layers {
					room++
				}
			}
			c.lists[i] = &recent{room: room}
			continue
		}
		if i > 0 && i*slots/layers == (i-1)*slots/layers {
			c.lists[i] = c.lists[i-1]
			continue
		}
		c.lists[i] = &recent{room: 1}
	}
	return c
}

// leaving has some experts there and leaves the others to the host.
type leaving map[Key]bool

func (l leaving) step(_ Phase, index int, experts []int32) (n counts) {
	for _, e := range experts {
		if l[Key{int32(index), e}] {
			n.hits++
		} else {
			n.host++
		}
	}
	return n
}

// buffer is chunked's: what lies in each slot.
type buffer struct {
	slots   []Key
	experts int
}

func (b *buffer) step(_ Phase, index int, experts []int32) (n counts) {
	for _, e := range experts {
		if slices.Contains(b.slots, Key{int32(index), e}) {
			n.hits++
		} else {
			n.misses++
		}
	}
	for e := range b.experts {
		if at, k := e%len(b.slots), (Key{int32(index), int32(e)}); b.slots[at] != k {
			b.slots[at] = k
			n.copies++
		}
	}
	return n
}

// staging is layer_grouped's: for every layer that does not stay its group and where
// in a buffer it lies; for every place there whose expert is in it.
type staging struct {
	group, at []int // -1: the layer stays
	buffers   int
	in        map[[3]int]int // buffer, place, expert: the layer, from 1
	experts   int
}

func (s *staging) bring(index, expert int) bool {
	place := [3]int{s.group[index] % s.buffers, s.at[index], expert}
	if s.in[place] == index+1 {
		return false
	}
	s.in[place] = index + 1
	return true
}

func (s *staging) step(phase Phase, index int, experts []int32) (n counts) {
	for _, e := range experts {
		if s.group[index] < 0 || s.in[[3]int{s.group[index] % s.buffers, s.at[index], int(e)}] == index+1 {
			n.hits++
			continue
		}
		n.misses++
		if phase == Decode {
			s.bring(index, int(e))
			n.copies++
		}
	}
	if phase == Decode {
		return n
	}
	group := -1
	for i := index; i >= 0 && group < 0; i-- {
		group = s.group[i]
	}
	for i := index; i < len(s.group); i++ {
		if g := s.group[i]; g < 0 || g > max(0, group)+s.buffers-1 {
			continue
		}
		for e := range s.experts {
			if s.bring(i, e) {
				n.copies++
			}
		}
	}
	return n
}

// newStaging finds by trying how many layers can stay.
func newStaging(t *testing.T, s *Setup, start *Start, groups, buffers int) *staging {
	t.Helper()
	layers, room := len(s.Layers), int(min(s.Budget/s.Bytes, 1<<30))/s.Experts
	m := &staging{buffers: buffers, in: map[[3]int]int{}, experts: s.Experts}
	stay, sizes := layers, []int(nil)
	for ; ; stay-- {
		n := min(groups, layers-stay)
		sizes = make([]int, n)
		for l := range layers - stay {
			sizes[l*n/(layers-stay)]++
		}
		need := stay
		if n > 0 {
			need += min(n, buffers) * slices.Max(sizes)
		}
		if need <= room {
			break
		}
	}
	if len(start.Loads) != stay*s.Experts {
		t.Errorf("%d layers of experts stay, want %d of %d in room for %d", len(start.Loads)/s.Experts, stay, layers, room)
	}
	slices.SortFunc(sizes, func(a, b int) int { return cmp.Compare(b, a) })
	if got := len(start.Parts); got != max(1, len(sizes)) {
		t.Errorf("%d parts, want %d", got, len(sizes))
	}
	group, at := 0, 0
	for i := range layers {
		if group+1 < len(start.Parts) && i == start.Parts[group+1] {
			group, at = group+1, 0
		}
		if start.Places[i].Slots == 0 {
			m.group, m.at = append(m.group, -1), append(m.at, 0)
			continue
		}
		m.group, m.at = append(m.group, group), append(m.at, at)
		at++
		if at > sizes[0] {
			t.Errorf("group %d has over %d layers", group, sizes[0])
		}
	}
	return m
}

// hot are the n hottest of some experts, as the contract says.
func hot(s *Setup, index []int, n int) map[Key]bool {
	var list []Key
	for _, i := range index {
		for e := range int32(s.Experts) {
			list = append(list, Key{int32(i), e})
		}
	}
	slices.SortStableFunc(list, func(a, b Key) int {
		if s.Heat != nil && s.Heat[a.Layer][a.Expert] != s.Heat[b.Layer][b.Expert] {
			return cmp.Compare(s.Heat[b.Layer][b.Expert], s.Heat[a.Layer][a.Expert])
		}
		return cmp.Compare(a.Expert, b.Expert)
	})
	set := map[Key]bool{}
	for _, k := range list[:n] {
		set[k] = true
	}
	return set
}

// modelOf returns a model of the decisions that a settled strategy should make. Layers are named 0, 1, 2, ...
func modelOf(t *testing.T, s *Setup, x *Settled) model {
	t.Helper()
	layers, all := len(s.Layers), len(s.Layers)*s.Experts
	every := make([]int, layers)
	for i := range every {
		every[i] = i
	}
	slots := int(min(int64(all), s.Budget/s.Bytes))
	rest := 0
	if slots < all {
		rest = max(1, slots/4)
	}
	name, number, _ := strings.Cut(x.Name(), ":")
	switch name {
	case "cpu_only":
		return leaving{}
	case "persistent":
		return leaving(hot(s, every, all))
	case "hot_cached_static", "learned":
		return leaving(hot(s, every, slots))
	case "chunked":
		b := &buffer{slots: make([]Key, min(s.Experts, slots)), experts: s.Experts}
		for i := range b.slots {
			b.slots[i].Layer = -1
		}
		return b
	case "active_only":
		return divided(nil, slots, layers)
	case "lru":
		one := &recent{room: slots}
		return &caching{lists: slices.Repeat([]*recent{one}, layers)}
	case "static_pin":
		return divided(hot(s, every, slots-rest), rest, layers)
	case "weighted_pin":
		pins := map[Key]bool{}
		for i := range every {
			n := 0
			for _, l := range x.Start.Loads {
				if int(l.Layer) == i {
					n++
				}
			}
			for k := range hot(s, []int{i}, n) {
				pins[k] = true
			}
		}
		if len(pins) != slots-rest {
			t.Errorf("%d pins, want %d", len(pins), slots-rest)
		}
		return divided(pins, rest, layers)
	case "layer_grouped":
		groups, buffers := layers, 2
		if number != "" {
			if _, err := fmt.Sscanf(number+":2", "%d:%d", &groups, &buffers); err != nil {
				t.Fatal(err)
			}
		}
		return newStaging(t, s, &x.Start, groups, buffers)
	}
	t.Fatalf("no model of %s", x.Name())
	return nil
}

// routing draws experts as skewed as real routers choose them.
func routing(r *rand.Rand, experts, n int) []int32 {
	set := map[int32]bool{}
	for range n {
		set[int32(r.IntN(1+r.IntN(experts)))] = true
	}
	list := make([]int32, 0, len(set))
	for e := range set {
		list = append(list, e)
	}
	slices.Sort(list)
	return list
}

// play takes batches through the layers as the walk of a start orders them, and gives
// what they cost, held against the model.
func play(t *testing.T, s *Setup, x *Settled, m model, r *rand.Rand, batches int) (total counts) {
	t.Helper()
	residency := NewResidency()
	residency.Add(&x.Start)
	var d Decision
	step := func(phase Phase, index, rows int) {
		in := &Step{Setup: s, Start: &x.Start, Index: index, Phase: phase, Residency: residency}
		experts := routing(r, s.Experts, rows)
		var got counts
		for _, e := range experts {
			in.Work = append(in.Work, Rows{e, 1})
			if _, ok := residency.Slot(Key{int32(index), e}); ok {
				got.hits++
			}
		}
		x.Decide(&d, in)
		residency.Apply(&d, in)
		got.host = len(d.Host)
		got.misses = len(experts) - got.hits - got.host
		for _, w := range d.Waves {
			got.copies += len(w.Loads)
		}
		if want := m.step(phase, index, experts); got != want {
			t.Fatalf("%s, %s, layer %d, %d experts: %+v, want %+v", x.Name(), phase, index, len(experts), got, want)
		}
		total.copies += got.copies
		total.hits += got.hits
		total.misses += got.misses
		total.host += got.host
	}
	for range batches {
		if r.IntN(2) == 0 {
			for i := range s.Layers {
				step(Decode, i, 3)
			}
			continue
		}
		parts := append(slices.Clone(x.Start.Parts), len(s.Layers))
		if len(parts) == 1 {
			parts = []int{0, len(s.Layers)}
		}
		for p := range len(parts) - 1 {
			for range 3 { // pieces of a prompt
				for i := parts[p]; i < parts[p+1]; i++ {
					step(Prefill, i, 4*s.Experts)
				}
			}
		}
	}
	return total
}

// TestModel sweeps budgets from nothing to everything: copies, hits and misses of every
// strategy, or of its fallback, equal those of a simple model, whatever the heat.
func TestModel(t *testing.T) {
	for _, s := range everyone(t) {
		for _, layers := range []int{1, 2, 7} {
			for budget := int64(0); budget <= int64(layers*12*10+9); budget += 7 {
				r := rand.New(rand.NewPCG(uint64(budget), uint64(layers)))
				setup := &Setup{Experts: 12, Bytes: 10, Budget: budget}
				for i := range layers {
					setup.Layers = append(setup.Layers, int32(i))
				}
				if r.IntN(2) == 0 {
					setup.Heat = heatOf(r, setup)
				}
				x, err := Settle(s, setup)
				if err != nil {
					t.Fatal(err)
				}
				if int64(x.Start.Slots)*setup.Bytes > budget {
					t.Fatalf("%s: %d slots in %d bytes", x.Name(), x.Start.Slots, budget)
				}
				play(t, setup, &x, modelOf(t, setup, &x), r, 12)
				if budget/10 >= int64(layers*12) && len(x.Falls) > 0 {
					t.Errorf("%s falls to %s with room for everything", s.Name(), x.Name())
				}
			}
		}
	}
}

// TestPass: a prefill of any number of pieces copies the layers that do not stay once.
// Of three groups the middle one is still there when the next prefill comes.
func TestPass(t *testing.T) {
	for _, c := range []struct {
		text           string
		layers, budget int
		first, copied  int // layers that a pass copies, the first and others
	}{
		{"layer_grouped", 26, 2, 26, 26}, {"layer_grouped", 26, 3, 25, 25}, {"layer_grouped", 26, 20, 8, 8}, {"layer_grouped", 26, 25, 3, 2},
		{"layer_grouped", 26, 26, 0, 0}, {"layer_grouped:2", 7, 7, 0, 0}, {"layer_grouped:3", 26, 18, 24, 16}, {"layer_grouped:3", 26, 20, 18, 12},
		{"layer_grouped:4", 8, 4, 8, 8}, {"layer_grouped:4", 9, 6, 7, 6}, {"layer_grouped:7:1", 7, 1, 7, 7}, {"layer_grouped:7:1", 7, 3, 5, 5},
	} {
		s, err := Parse(c.text)
		if err != nil {
			t.Fatal(err)
		}
		const experts = 5
		setup := &Setup{Experts: experts, Bytes: 1, Budget: int64(c.budget * experts)}
		for i := range c.layers {
			setup.Layers = append(setup.Layers, int32(i))
		}
		start, err := s.Start(setup)
		if err != nil {
			t.Fatal(err)
		}
		residency := NewResidency()
		residency.Add(&start)
		var d Decision
		work := []Rows{{0, 9}, {2, 9}, {4, 9}}
		for pass := range 3 {
			copied := 0
			parts := append(slices.Clone(start.Parts), c.layers)
			for p := range len(parts) - 1 {
				for piece := range 4 {
					for i := parts[p]; i < parts[p+1]; i++ {
						in := &Step{Setup: setup, Start: &start, Index: i, Work: work, Residency: residency}
						s.Decide(&d, in)
						residency.Apply(&d, in)
						for _, w := range d.Waves {
							copied += len(w.Loads)
							if piece > 0 && len(w.Loads) > 0 {
								t.Errorf("%s: piece %d copies", c.text, piece)
							}
						}
					}
				}
			}
			want := c.copied
			if pass == 0 {
				want = c.first
			}
			if copied != want*experts {
				t.Errorf("%s, %d layers in room for %d: pass %d copies %d experts, want %d", c.text, c.layers, c.budget, pass, copied, want*experts)
			}
		}
	}
}
