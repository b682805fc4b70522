//go:build cuda

package ops

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/route"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

const (
	mapExperts, mapSlots, mapTopK = 6, 9, 3
	mapHidden, mapWidth, mapOther = 192, 128, 64 // of x, of an expert, of the shared network
	mapMost                       = 300
)

// nowhere marks an expert that is not in the bank.
const nowhere = -1

// maps are maps of experts to slots.
var maps = []struct {
	name  string
	where [mapExperts]int32
}{
	{"in order", [mapExperts]int32{0, 1, 2, 3, 4, 5}},
	{"elsewhere", [mapExperts]int32{8, 3, 0, 7, 1, 5}},
	{"some", [mapExperts]int32{nowhere, 2, nowhere, 8, 0, -7}},
	{"none", [mapExperts]int32{nowhere, nowhere, nowhere, nowhere, nowhere, nowhere}},
}

// mapRig is a bank, with each expert in the slot of its number, and the other operands of a
// mixture.
type mapRig struct {
	c          *cudatest.GPU
	bank       launch.Bank
	sizes      [4]int64 // Step, ScaleStep, Step2, ScaleStep2
	shared     Network
	x          launch.Mat
	ids        []int32
	weights    []float32
	turn, room launch.Ptr
	plain      bool
}

func joined(k cudatest.Layout) cudatest.Layout {
	k.Joined = k.Bits != 0
	return k
}

func newMapRig(t *testing.T, c *cudatest.GPU, routed, shared cudatest.Layout, rows tensor.DType) *mapRig {
	rng := rand.New(rand.NewPCG(21, 4))
	w13 := c.RandomWeights(rng, joined(routed), mapExperts, 2*mapWidth, mapHidden)
	w2 := c.RandomWeights(rng, routed, mapExperts, mapHidden, mapWidth)
	s13 := c.RandomWeights(rng, joined(shared), 1, 2*mapOther, mapHidden)
	s2 := c.RandomWeights(rng, shared, 1, mapHidden, mapOther)
	r := &mapRig{c: c, shared: Network{W13: s13.Weight, W2: s2.Weight}, plain: rows == tensor.F32,
		bank: launch.Bank{Experts: mapExperts, W13: w13.Weight, W2: w2.Weight, Step: w13.Step, ScaleStep: w13.ScaleStep, Step2: w2.Step, ScaleStep2: w2.ScaleStep},
		turn: c.I32(make([]int32, route.TurnBytes/4), 1, route.TurnBytes/4).At, room: c.Alloc(16 << 20)}
	x := cudatest.Normal(rng, mapMost*mapHidden)
	if r.x = c.BF16(x, mapMost, mapHidden); r.plain {
		r.x = c.F32(x, mapMost, mapHidden)
	}
	for range mapMost {
		p := rng.Perm(mapExperts)
		for k := range mapTopK {
			id, weight := int32(p[k]), 0.1+rng.Float32()
			if rng.IntN(12) == 0 {
				id, weight = -1, 0
			}
			r.ids, r.weights = append(r.ids, id), append(r.weights, weight)
		}
	}
	return r
}

// spread makes a bank whose experts are in the slots of the map; other slots are poisoned.
func (r *mapRig) spread(where []int32) launch.Bank {
	c, b := r.c, r.bank
	move := func(at launch.Ptr, step int64) launch.Ptr {
		if at == 0 {
			return 0
		}
		to := c.Alloc(mapSlots * int(step))
		c.Run(func(l *launch.List) {
			for e, slot := range where {
				if slot >= 0 {
					l.Copy(to+launch.Ptr(int64(slot)*step), at+launch.Ptr(int64(e)*step), step)
				}
			}
		})
		return to
	}
	b.W13.F.At, b.W2.F.At = move(b.W13.F.At, b.Step), move(b.W2.F.At, b.Step2)
	b.W13.A.Values, b.W13.A.Scales = move(b.W13.A.Values, b.Step), move(b.W13.A.Scales, b.ScaleStep)
	b.W2.A.Values, b.W2.A.Scales = move(b.W2.A.Values, b.Step2), move(b.W2.A.Scales, b.ScaleStep2)
	b.Map = c.I32(where, 1, mapExperts).At
	return b
}

// present returns ids and weights without the choices whose experts the map leaves out.
func present(where, ids []int32, weights []float32) ([]int32, []float32) {
	ids, weights = slices.Clone(ids), slices.Clone(weights)
	for i, e := range ids {
		if e >= 0 && where[e] < 0 {
			ids[i], weights[i] = -1, 0
		}
	}
	return ids, weights
}

func (r *mapRig) run(build func(b *Builder)) {
	r.c.Run(func(l *launch.List) {
		build(&Builder{GPU: r.c.Info(), List: l, Turn: r.turn, Plain: r.plain, Scratch: func(n int) launch.Ptr {
			if n > 16<<20 {
				panic("too little room")
			}
			return r.room
		}})
	})
}

// mix computes AddMix of the first rows, or Mix.
func (r *mapRig) mix(rows int, add bool, bank launch.Bank, ids []int32, weights []float32) []float32 {
	c, dt := r.c, r.x.DType
	hidden := c.F32(make([]float32, rows*mapHidden), rows, mapHidden)
	delta := c.Mat(dt, rows, mapHidden)
	y, z := c.Mat(dt, rows*mapTopK, mapHidden), c.Mat(dt, rows, mapHidden)
	im, wm := c.I32(ids, rows, mapTopK), c.F32(weights, rows, mapTopK)
	r.run(func(b *Builder) {
		if add {
			b.AddMix(hidden, delta, y, z, r.x.RowRange(0, rows), bank, r.shared, im, wm)
		} else {
			b.Mix(delta, y, z, r.x.RowRange(0, rows), bank, r.shared, im, wm)
		}
	})
	if add {
		return c.Floats(hidden)
	}
	return c.Floats(delta)
}

// experts returns the rows of Experts as they are in memory.
func (r *mapRig) experts(rows int, bank launch.Bank) []byte {
	y := r.c.Mat(r.x.DType, rows*mapTopK, mapHidden)
	im := r.c.I32(r.ids, rows, mapTopK)
	r.run(func(b *Builder) { b.Experts(y, r.x.RowRange(0, rows), bank, im) })
	return cudatest.Download[byte](r.c, y.At, rows*mapTopK*mapHidden*y.DType.Size())
}

// mapLayouts are the formats of routed and shared weights, with a name for rows of each.
var mapLayouts = []struct {
	routed, shared cudatest.Layout
	rows           tensor.DType
	counts         []int
}{
	{cudatest.Layout{Bits: 4, Group: 128}, cudatest.Layout{Bits: 8, Group: 128}, tensor.BF16, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 32, 65, 300}},
	{cudatest.Layout{Bits: 8, Group: 64}, cudatest.Layout{Bits: 8, Group: 64}, tensor.BF16, []int{1, 4, 32, 65}},
	{cudatest.Layout{Bits: 3, Group: 64}, cudatest.Layout{Bits: 3, Group: 64}, tensor.BF16, []int{1, 4, 32, 65}},
	{cudatest.Layout{Bits: 4}, cudatest.Layout{DType: tensor.BF16}, tensor.BF16, []int{2, 9}},
	{cudatest.Layout{DType: tensor.BF16}, cudatest.Layout{DType: tensor.BF16}, tensor.BF16, []int{1, 3, 5, 32, 65}},
	{cudatest.Layout{Bits: 4, Group: 32}, cudatest.Layout{Bits: 8, Group: 128}, tensor.F32, []int{1, 9}},
}

// TestMap: experts in other slots give the same bits. Experts that are not in the bank add
// nothing and leave their rows unchanged.
func TestMap(t *testing.T) {
	c := cudatest.Open(t)
	for l, k := range mapLayouts {
		r := newMapRig(t, c, k.routed, k.shared, k.rows)
		for _, m := range maps {
			if testing.Short() && l > 0 && m.name != "some" {
				continue // the first layout has all maps
			}
			where := m.where[:]
			bank := r.spread(where)
			ids, weights := present(where, r.ids, r.weights)
			for i, rows := range k.counts {
				if testing.Short() && i%2 > 0 {
					continue
				}
				name := fmt.Sprintf("%+v beside %+v, rows of %s, %s, %d rows", k.routed, k.shared, k.rows, m.name, rows)
				for _, add := range []bool{false, true} {
					want := r.mix(rows, add, r.bank, ids, weights)
					if got := r.mix(rows, add, bank, r.ids, r.weights); !slices.Equal(got, want) {
						t.Fatalf("%s: added %v: another sum", name, add)
					}
				}
				want, got := r.experts(rows, r.bank), r.experts(rows, bank)
				size := len(want) / (rows * mapTopK)
				for i, e := range r.ids[:rows*mapTopK] {
					w := want[i*size : (i+1)*size]
					if e >= 0 && where[e] < 0 {
						w = slices.Repeat([]byte{cudatest.Poison}, size)
					}
					if !slices.Equal(got[i*size:(i+1)*size], w) {
						t.Fatalf("%s: row %d of expert %d differs", name, i, e)
					}
				}
			}
		}
	}
}

// TestMapAfterRouter: the same if the mixture makes the router's choice itself, and if the
// router's launch sorts its choices.
func TestMapAfterRouter(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(22, 4))
	r := newMapRig(t, c, cudatest.Layout{Bits: 4, Group: 128}, cudatest.Layout{Bits: 8, Group: 128}, tensor.BF16)
	gate, bias := c.BF16(cudatest.Normal(rng, mapExperts*mapHidden), mapExperts, mapHidden), c.F32(cudatest.Normal(rng, mapExperts), 1, mapExperts)
	norm := c.BF16(cudatest.Normal(rng, mapHidden), 1, mapHidden)
	counts := []int{1, 2, 3, 4, 7, 33}
	if testing.Short() {
		counts = []int{1, 4, 33}
	}
	for _, p := range []device.Router{
		{Experts: mapExperts, TopK: mapTopK, Scale: 1},
		{Experts: mapExperts, TopK: mapTopK, Scoring: device.ScoreSigmoid, Normalize: true, Scale: 2.5},
	} {
		by := launch.Mat{}
		if p.Scoring == device.ScoreSigmoid {
			by = bias
		}
		for _, m := range maps {
			where := m.where[:]
			bank := r.spread(where)
			for _, rows := range counts {
				x, of := c.Mat(tensor.BF16, rows, mapHidden), c.F32(cudatest.Normal(rng, rows*mapHidden), rows, mapHidden)
				y, z := c.Mat(tensor.BF16, rows*mapTopK, mapHidden), c.Mat(tensor.BF16, rows, mapHidden)
				ids, weights, logits := c.Mat(tensor.I32, rows, mapTopK), c.Mat(tensor.F32, rows, mapTopK), c.Mat(tensor.F32, rows, mapExperts)
				sum := c.F32(make([]float32, rows*mapHidden), rows, mapHidden)
				r.run(func(b *Builder) {
					b.NormRoute(ids, weights, logits, x, of, norm, 1e-6, launch.Weight{F: gate}, by, p)
					b.AddMix(sum, launch.Mat{}, y, z, x, bank, r.shared, ids, weights)
					aligned := slices.ContainsFunc(b.List.Ops, func(o launch.Op) bool { return o.Kernel.String() == "kr_align" })
					if aligned {
						t.Errorf("%d rows are sorted alone", rows)
					}
				})
				in := r.x
				r.x = x
				i, w := present(where, cudatest.Download[int32](c, ids.At, rows*mapTopK), c.Floats(weights))
				want := r.mix(rows, true, r.bank, i, w)
				r.x = in
				if got := c.Floats(sum); !slices.Equal(got, want) {
					t.Fatalf("%+v, %s, %d rows: another sum", p, m.name, rows)
				}
			}
		}
	}
	if n := cudatest.Download[int32](c, r.turn, 1)[0]; n != 0 {
		t.Fatalf("the turn is %d", n)
	}
}
