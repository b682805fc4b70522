package forecast

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"krater/scheduler/dispatch"
)

// TestDispatch holds what the forecast says of room, copies and the host's work to the
// strategies themselves, over random choices of a skewed router.
func TestDispatch(t *testing.T) {
	shape := Shape{Layers: 26, MoE: 26, Experts: 64, TopK: 6, ExpertCard: 1, ExpertHost: 1, ExpertFLOP: 1, KVToken: 1}
	skew := Zipf(shape.Experts)
	picks := skew.picks(shape.TopK)
	r := rand.New(rand.NewPCG(1, 2))
	router := newRouter(&shape, picks, r)
	for _, part := range []float64{0.02, 0.05, 0.1, 0.3, 0.6, 0.9, 1} {
		for _, name := range []string{"cpu_only", "chunked", "active_only", "static_pin", "weighted_pin", "lru", "persistent", "layer_grouped:26", "layer_grouped:8", "layer_grouped:4", "hot_cached_static", "learned"} {
			room := int(part * float64(shape.all()))
			l, fits := layoutFor(t, &shape, name, room)
			s, err := dispatch.Parse(name)
			if err != nil {
				t.Fatal(err)
			}
			settled, err := dispatch.Settle(s, &dispatch.Setup{Layers: router.layers, Experts: shape.Experts, Bytes: 1, Budget: int64(room), Heat: router.heat})
			if err != nil {
				t.Fatal(err)
			}
			// One buffer is a strategy of its own there, a layout of the same here.
			if same := settled.Name() == name || strings.HasPrefix(settled.Name(), name+":"); same != fits {
				t.Errorf("%s, room for %d: fits is %t, it falls to %s", name, room, fits, settled.Name())
			}
			if !fits || settled.Name() != name {
				continue
			}
			if n := l.experts(&shape); n > settled.Start.Slots || n <= settled.Start.Slots-shape.MoE {
				t.Errorf("%s, room for %d: %d places, it has %d", name, room, n, settled.Start.Slots)
			}
			for _, rows := range []int{1, 8, 2048} {
				loads, host := router.run(&settled, int64(room), rows)
				wantLoads, wantHost := counts(t, &shape, skew, name, l, rows)
				// What is left over when places are divided by layers is not in the forecast.
				slack := float64(shape.MoE) + 2
				if l.groups > 0 && (shape.MoE-l.layers)%l.groups != 0 { // a buffer's end that a small group leaves alone
					slack += float64(shape.Experts)
				}
				if math.Abs(loads-wantLoads) > 0.08*loads+slack || math.Abs(host-wantHost) > 0.08*host+slack {
					t.Errorf("%s, room for %d, %d rows: %.0f copies a step and %.0f for the host, predicted %.0f and %.0f", name, room, rows, loads, host, wantLoads, wantHost)
				}
			}
		}
	}
}

// layoutFor is the forecast's layout; false where it says that there is no room.
func layoutFor(t *testing.T, shape *Shape, name string, room int) (layout, bool) {
	base, groups := name, 0
	if w, err := wantedOf(&Case{Shape: *shape, Prefill: name}); err != nil {
		t.Fatal(err)
	} else {
		base, groups = w[0].name, w[0].groups
	}
	for i := range strategies {
		if strategies[i].name != base {
			continue
		}
		list, _ := strategies[i].layouts(shape, room, layout{}, groups)
		if len(list) == 0 {
			return layout{}, false
		}
		return list[0], true
	}
	t.Fatal(base)
	return layout{}, false
}

// counts are the copies and the host's experts that the forecast has for a step.
func counts(t *testing.T, shape *Shape, skew Skew, name string, l layout, rows int) (loads, host float64) {
	base, _, _ := strings.Cut(name, ":")
	c := v2Lite.with(flat())
	c.Shape, c.Skew = *shape, skew
	c.Work.Lengths, c.Work.Batches, c.Work.Chunk, c.Work.Context = []int{rows}, []int{rows}, 1<<20, 0
	p := c.sideOf(t, base, l, rows < 300).Points[0]
	picks := skew.picks(shape.TopK)
	switch base {
	case "cpu_only":
		host = active(picks, float64(rows)) * float64(shape.MoE)
	case "hot_cached_static", "learned":
		host = active(picks[l.kept:], float64(rows)) * float64(shape.MoE)
		if l.more > 0 {
			host -= chosen(picks[l.kept], float64(rows)) * float64(l.more)
		}
	}
	return p.Copied, host
}

// router chooses experts, the hottest of each layer in an order of its own.
type router struct {
	r      *rand.Rand
	picks  []float64
	layers []int32
	rank   [][]int // of each expert
	heat   [][]uint32
}

func newRouter(shape *Shape, picks []float64, r *rand.Rand) *router {
	x := &router{r: r, picks: picks}
	for l := range shape.MoE {
		rank, heat := r.Perm(shape.Experts), make([]uint32, shape.Experts)
		for e := range heat {
			heat[e] = uint32(1e6 * picks[rank[e]])
		}
		x.layers, x.rank, x.heat = append(x.layers, int32(l)), append(x.rank, rank), append(x.heat, heat)
	}
	return x
}

// run counts the copies and the host's experts of a step with the given number of rows, on average.
func (x *router) run(s *dispatch.Settled, budget int64, rows int) (loads, host float64) {
	setup := &dispatch.Setup{Layers: x.layers, Experts: len(x.picks), Bytes: 1, Budget: budget, Heat: x.heat}
	residency := dispatch.NewResidency()
	first := residency.Add(&s.Start)
	phase, steps, warm := dispatch.Decode, 60, 20
	if rows >= 300 {
		phase, steps, warm = dispatch.Prefill, 6, 2
	}
	var d dispatch.Decision
	for step := range steps {
		for i := range x.layers {
			in := &dispatch.Step{Setup: setup, Start: &s.Start, First: first, Index: i, Phase: phase, Residency: residency}
			for e, rank := range x.rank[i] {
				if x.r.Float64() < chosen(x.picks[rank], float64(rows)) {
					in.Work = append(in.Work, dispatch.Rows{Expert: int32(e), Rows: 1})
				}
			}
			s.Decide(&d, in)
			if step >= warm {
				host += float64(len(d.Host)) / float64(steps-warm)
				for _, w := range d.Waves {
					loads += float64(len(w.Loads)) / float64(steps-warm)
				}
			}
			residency.Apply(&d, in)
		}
	}
	return loads, host
}
