//go:build cuda

package gemv

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/plain"
	"krater/kernels/cuda/route"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var layouts = []cudatest.Layout{
	{DType: tensor.BF16},
	{Bits: 4, Group: 32}, {Bits: 4, Group: 64}, {Bits: 4, Group: 128}, {Bits: 4},
	{Bits: 8, Group: 32}, {Bits: 8, Group: 64}, {Bits: 8, Group: 128}, {Bits: 8},
}

func joined(k cudatest.Layout) cudatest.Layout {
	k.Joined = k.Bits != 0
	return k
}

// dot returns the product, and the sum of the sizes of its terms.
func dot(x, w []float32) (v, size float64) {
	for i := range x {
		p := float64(x[i]) * float64(w[i])
		v, size = v+p, size+math.Abs(p)
	}
	return v, size
}

// An INT4 product sums numbers of up to 143 (the average value is 4) and then subtracts 136 times
// the activations. This costs 5 or 6 of float32's 24 bits.
const summing = 0x1p-16

func rounding(dt tensor.DType) float64 {
	if dt == tensor.F32 {
		return 0x1p-23
	}
	return 0x1p-8
}

// within fails the test where got is off by more than bound.
func within(t *testing.T, what string, got []float32, want, bound []float64) {
	t.Helper()
	for i := range want {
		if d := math.Abs(float64(got[i]) - want[i]); !(d <= bound[i]) {
			t.Fatalf("%s: [%d] = %v, want %v within %v", what, i, got[i], want[i], bound[i])
		}
	}
}

func TestMatMulKernels(t *testing.T) {
	c := cudatest.Open(t)
	t.Run("split rows", func(t *testing.T) { testMatMul(t, c, h100, false) })
	// Blocks of 32 rows would need a second round, so they have 48.
	t.Run("three row blocks", func(t *testing.T) { testMatMul(t, c, launch.GPU{SMs: 12, SharedMax: 232448}, testing.Short()) })
	// Rows are not split, and blocks have several warps of rows.
	t.Run("whole rows", func(t *testing.T) { testMatMul(t, c, launch.GPU{SMs: 1, SharedMax: 64 << 10}, testing.Short()) })
}

// testMatMul multiplies shapes in every layout, or with half every second one of each layout.
func testMatMul(t *testing.T, c *cudatest.GPU, gpu launch.GPU, half bool) {
	rng := rand.New(rand.NewPCG(1, 2))
	const most = 33
	for i, k := range layouts {
		for j, shape := range [][2]int{{17, 64}, {80, 192}, {274, 704}, {48, 1280}} {
			if half && (i/2+j)%2 > 0 {
				continue
			}
			n, cols := shape[0], shape[1]
			dt := []tensor.DType{tensor.F32, tensor.BF16}[(i+j)%2]
			w := c.RandomWeights(rng, k, 1, n, cols)
			x := cudatest.Normal(rng, most*cols)
			in := c.BF16(x, most, cols)
			bias := make([]float32, n)
			if (i+j)%3 > 0 {
				bias = cudatest.Normal(rng, n)
				w.Bias = c.F32(bias, 1, n).At
			}
			want, bound := make([]float64, most*n), make([]float64, most*n)
			for r := range want {
				v, size := dot(x[r/n*cols:(r/n+1)*cols], w.Dense[0][r%n*cols:(r%n+1)*cols])
				v += float64(bias[r%n])
				want[r], bound[r] = v, rounding(dt)*math.Abs(v)+summing*(size+1)
			}
			run := func(m int, o Options, out launch.Mat) []float32 {
				c.Run(func(l *launch.List) { MatMul(l, gpu, out, in.RowRange(0, m), w.Weight, o) })
				return c.Floats(out)
			}
			all := run(most, Options{}, c.Mat(dt, most, n))
			name := fmt.Sprintf("%+v %v %s", k, shape, dt)
			within(t, name, all, want, bound)
			for _, m := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9} {
				if j != 1 && m > 1 && m < 8 {
					continue
				}
				if got := run(m, Options{}, c.Strided(dt, m, n, n+5)); !slices.Equal(got, all[:m*n]) {
					t.Fatalf("%s: %d rows differ from the first of %d", name, m, most)
				}
			}
			if dt == tensor.F32 {
				twice := c.F32(all, most, n)
				for r, v := range run(most, Options{Add: true}, twice) {
					if v != 2*all[r] {
						t.Fatalf("%s: added to itself: %v after %v", name, v, all[r])
					}
				}
			}
		}
	}
}

// The result equals that of the plain kernels, and is the same in every run.
func TestAgainstPlain(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(5, 6))
	const m, n, cols = 3, 96, 320
	for _, k := range layouts {
		w := c.RandomWeights(rng, k, 1, n, cols)
		in := c.BF16(cudatest.Normal(rng, m*cols), m, cols)
		out, ref := c.Mat(tensor.F32, m, n), c.Mat(tensor.F32, m, n)
		c.Run(func(l *launch.List) { plain.MatMul(l, ref, in, w.Weight) })
		want := c.Floats(ref)
		var first []float32
		for range 3 {
			c.Run(func(l *launch.List) {
				l.Fill(out.At, 4*m*n, cudatest.Poison)
				MatMul(l, h100, out, in, w.Weight, Options{})
			})
			got := c.Floats(out)
			for i, v := range got {
				if d := math.Abs(float64(v - want[i])); !(d <= 0x1p-13) {
					t.Fatalf("%+v: [%d] = %v, plain %v", k, i, v, want[i])
				}
			}
			if first == nil {
				first = got
			}
			if !slices.Equal(first, got) {
				t.Fatalf("%+v: two runs differ", k)
			}
		}
	}
}

// extra is a network's biases, or nil, and its activation.
type extra struct {
	b13, b2 []float32
	act     device.Activation
}

// swiglu returns a network's output in float64 with hidden values rounded to bfloat16, and a
// bound of its error: a hidden value may round the other way.
func swiglu(x, w13, w2 []float32, e extra) (y, bound []float64) {
	width, hidden := len(w2)/len(x), len(x)
	h := make([]float32, width)
	for f := range h {
		u, _ := dot(x, w13[f*hidden:(f+1)*hidden])
		v, _ := dot(x, w13[(width+f)*hidden:(width+f+1)*hidden])
		if e.b13 != nil {
			u, v = u+float64(e.b13[f]), v+float64(e.b13[width+f])
		}
		h[f] = tensor.BF16ToF32(tensor.F32ToBF16(float32(e.act.Of(u, v))))
	}
	y, bound = make([]float64, hidden), make([]float64, hidden)
	for i := range y {
		v, size := dot(h, w2[i*width:(i+1)*width])
		y[i], bound[i] = v, 0x1p-9*size
		if e.b2 != nil {
			y[i] += float64(e.b2[i])
		}
	}
	return y, bound
}

func TestFFNKernels(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(3, 4))
	const most, hidden, width = 9, 192, 128
	for i, k := range layouts {
		k2 := layouts[(i+i%3)%len(layouts)]
		w13, w2 := c.RandomWeights(rng, joined(k), 1, 2*width, hidden), c.RandomWeights(rng, k2, 1, hidden, width)
		x := cudatest.Normal(rng, most*hidden)
		in := c.BF16(x, most, hidden)
		run := func(m int) []float32 {
			out, h := c.Mat(tensor.F32, m, hidden), c.Alloc(FFNScratch(m, width))
			c.Run(func(l *launch.List) {
				FFN(l, h100, out, h, in.RowRange(0, m), w13.Weight, w2.Weight, Options{})
			})
			return c.Floats(out)
		}
		all := run(most)
		name := fmt.Sprintf("%+v %+v", k, k2)
		for r := range most {
			y, bound := swiglu(x[r*hidden:(r+1)*hidden], w13.Dense[0], w2.Dense[0], extra{})
			within(t, fmt.Sprintf("%s row %d", name, r), all[r*hidden:], y, bound)
		}
		for _, m := range []int{1, 8} {
			if !slices.Equal(run(m), all[:m*hidden]) {
				t.Fatalf("%s: %d rows differ from the first of %d", name, m, most)
			}
		}
	}
}

// sorted returns the result of route.Align for ids.
func sorted(c *cudatest.GPU, ids []int32, rows, topK, experts, tile int) route.Aligned {
	a := route.NewAligned(c.Alloc(route.AlignedBytes(rows, topK, experts, tile)), rows, topK, experts, tile)
	var tiles, slots []int32
	for e := range int32(experts) {
		var of []int32
		for s, id := range ids {
			if id == e {
				of = append(of, int32(s))
			}
		}
		for len(of) > 0 {
			n := min(tile, len(of))
			tiles = append(tiles, e, int32(len(slots)), int32(n), 0)
			slots = append(slots, of[:n]...)
			for range tile - n {
				slots = append(slots, -1)
			}
			of = of[n:]
		}
	}
	put := func(at launch.Ptr, v []int32) {
		if len(v) > 0 {
			from := cudatest.Upload(c, v)
			c.Run(func(l *launch.List) { l.Copy(at, from, int64(4*len(v))) })
		}
	}
	put(a.Count, []int32{int32(len(tiles) / 4)})
	put(a.Tiles, tiles)
	put(a.Slots, slots)
	return a
}

const moeShared, moeExperts, moeTopK = 320, 5, 3

// moeCase is a mixture on the GPU, with its expected results for rows rows.
type moeCase struct {
	hidden, width int
	bank          launch.Bank
	w13, w2       cudatest.Weights
	s13, s2       cudatest.Weights
	shared        bool
	gate          []float32 // of the shared network, or nil
	extra         [moeExperts]extra
	x             []float32
	ids           []int32
	weights       []float32
	want, bound   []float64
}

func newMoECase(c *cudatest.GPU, rng *rand.Rand, k, shared *cudatest.Layout, act device.Activation, biased, gated bool, hidden, width, rows int) *moeCase {
	v := &moeCase{hidden: hidden, width: width, shared: shared != nil}
	v.w13 = c.RandomWeights(rng, joined(*k), moeExperts, 2*v.width, v.hidden)
	v.w2 = c.RandomWeights(rng, *k, moeExperts, v.hidden, v.width)
	v.bank = launch.Bank{Experts: moeExperts, W13: v.w13.Weight, W2: v.w2.Weight,
		Step: v.w13.Step, ScaleStep: v.w13.ScaleStep, Step2: v.w2.Step, ScaleStep2: v.w2.ScaleStep}
	if v.shared {
		v.s13 = c.RandomWeights(rng, joined(*shared), 1, 2*moeShared, v.hidden)
		v.s2 = c.RandomWeights(rng, *shared, 1, v.hidden, moeShared)
	}
	for e := range v.extra {
		v.extra[e].act = act
	}
	v.bank.Extra = launch.Extra{Alpha: act.Alpha, Limit: act.Limit, Shift: act.Shift}
	if biased {
		v.bias(c, rng)
	}
	if gated {
		v.gate = cudatest.Normal(rng, v.hidden)
	}
	v.x = cudatest.Normal(rng, rows*v.hidden)
	for r := range rows {
		p := rng.Perm(moeExperts)
		for rank := range moeTopK {
			id := int32(p[rank])
			if rng.IntN(5) == 0 {
				id = -1 // an expert that is computed elsewhere
			}
			if r == 0 && rank == 1 {
				id = moeExperts
			}
			v.ids = append(v.ids, id)
			v.weights = append(v.weights, rng.Float32())
		}
	}
	for r := range rows {
		v.row(r)
	}
	return v
}

// bias gives every expert biases.
func (v *moeCase) bias(c *cudatest.GPU, rng *rand.Rand) {
	n := 2*v.width + v.hidden
	all := cudatest.Normal(rng, moeExperts*n)
	for e := range v.extra {
		v.extra[e].b13, v.extra[e].b2 = all[e*n:][:2*v.width], all[e*n+2*v.width:][:v.hidden]
	}
	m := c.F32(all, moeExperts, n)
	v.bank.B13, v.bank.B2, v.bank.BiasStep = m.At, m.ColRange(2*v.width, n).At, int64(4*n)
}

// row appends the expected result of row r.
func (v *moeCase) row(r int) {
	x := v.x[r*v.hidden : (r+1)*v.hidden]
	sum, bound := make([]float64, v.hidden), make([]float64, v.hidden)
	add := func(weight float64, w13, w2 []float32, e extra) {
		y, b := swiglu(x, w13, w2, e)
		for i := range y {
			sum[i] += weight * y[i]
			bound[i] += weight*b[i] + 0x1p-21*math.Abs(sum[i])
		}
	}
	for rank := range moeTopK {
		if id := v.ids[r*moeTopK+rank]; id >= 0 && id < moeExperts {
			add(float64(v.weights[r*moeTopK+rank]), v.w13.Dense[id], v.w2.Dense[id], v.extra[id])
		}
	}
	if v.shared {
		share := 1.0
		if v.gate != nil {
			dot := 0.0
			for i, g := range v.gate {
				dot += float64(g) * float64(x[i])
			}
			share = 1 / (1 + math.Exp(-dot))
		}
		add(share, v.s13.Dense[0], v.s2.Dense[0], extra{})
	}
	v.want, v.bound = append(v.want, sum...), append(v.bound, bound...)
}

// mixture returns rows [from, to) and the scratch memory of MoE.
func (v *moeCase) mixture(c *cudatest.GPU, gpu launch.GPU, from, to int) (*Mixture, launch.Ptr) {
	rows := to - from
	ids := v.ids[from*moeTopK : to*moeTopK]
	m := &Mixture{X: c.BF16(v.x[from*v.hidden:], rows, v.hidden), Bank: v.bank, IDs: c.I32(ids, rows, moeTopK),
		Weights: c.F32(v.weights[from*moeTopK:], rows, moeTopK)}
	width := 0
	if v.shared {
		m.Shared, width = Network{v.s13.Weight, v.s2.Weight}, moeShared
	}
	if v.gate != nil {
		m.Gate = c.F32(v.gate, 1, v.hidden)
	}
	if Grouped(rows) {
		m.Aligned = sorted(c, ids, rows, moeTopK, moeExperts, Tile(gpu, m))
	}
	return m, c.Alloc(MoEScratch(rows, moeTopK, v.hidden, v.width, width))
}

// run computes rows [from, to).
func (v *moeCase) run(c *cudatest.GPU, gpu launch.GPU, from, to int, o Options, out launch.Mat) []float32 {
	m, memory := v.mixture(c, gpu, from, to)
	c.Run(func(l *launch.List) { MoE(l, gpu, out, memory, m, o) })
	return c.Floats(out)
}

func TestMoEKernels(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(7, 8))
	int4, int8 := &cudatest.Layout{Bits: 4, Group: 128}, &cudatest.Layout{Bits: 8, Group: 128}
	int3, int3s := &cudatest.Layout{Bits: 3, Group: 128}, &cudatest.Layout{Bits: 3, Group: 64}
	bf16, small, channel := &cudatest.Layout{DType: tensor.BF16}, &cudatest.Layout{Bits: 4, Group: 32}, &cudatest.Layout{Bits: 8}
	silu, clamp := device.Activation{}, device.Activation{Limit: 0.75} // many values reach it
	for i, v := range []struct {
		routed, shared *cudatest.Layout
		hidden, width  int
		biased         bool
		gated          bool
		act            device.Activation // without biases
	}{
		{int4, int4, 192, 128, false, false, silu}, {int4, int8, 192, 128, true, false, silu}, {int4, bf16, 192, 128, false, false, silu}, {bf16, nil, 192, 128, true, false, silu}, {bf16, bf16, 192, 128, false, false, silu},
		{small, channel, 192, 128, false, false, silu}, {channel, channel, 192, 128, true, false, silu}, {int8, nil, 192, 128, false, false, silu},
		{int4, nil, 1024, 768, false, false, silu}, {small, nil, 1024, 128, true, false, silu}, // parts are paired
		{int4, nil, 1024, 768, true, false, silu},
		{int4, nil, 2048, 256, false, false, silu},                                                                                                                                                                                 // four parts, and one
		{int3, int8, 192, 128, false, false, silu}, {int3s, int3s, 192, 192, false, false, silu}, {int3s, nil, 192, 192, true, false, silu}, {int3s, int8, 192, 128, false, false, silu}, {int3, nil, 192, 128, true, false, silu}, // the third is not folded
		{int3, nil, 1024, 768, false, false, silu}, {int3s, nil, 1024, 256, true, false, silu},
		{int4, int8, 192, 128, false, true, silu}, {bf16, bf16, 192, 128, false, true, silu}, {int4, int8, 1024, 768, false, true, silu}, // parts of the third are paired
		{int4, nil, 4096, 128, false, false, clamp}, // parts have two pieces
		{int4, int8, 192, 128, false, true, clamp}, {int4, nil, 128, 2048, false, false, silu}, {int3s, nil, 4096, 256, false, false, clamp}, {int4, nil, 1024, 768, false, false, clamp},
	} {
		if testing.Short() && (i == 10 || i == 17 || i > 22) { // they are long, and 9 and 18 have their like
			continue
		}
		rows := 9
		if i == 1 || v.routed == int4 && (v.shared == nil || v.gated) && (i == 8 || !testing.Short()) {
			rows = 33
		}
		if v.biased {
			v.act = device.Activation{Alpha: 1.702, Limit: 0.75, Shift: 1}
		}
		m := newMoECase(c, rng, v.routed, v.shared, v.act, v.biased, v.gated, v.hidden, v.width, rows)
		name := fmt.Sprintf("%+v and %+v, %d of %d", v.routed, v.shared, v.width, v.hidden)
		all := m.run(c, h100, 0, rows, Options{}, c.Mat(tensor.F32, rows, m.hidden))
		within(t, name, all, m.want, m.bound)
		parts := [][2]int{{0, 1}, {1, 2}, {2, 5}, {1, 5}, {0, 9}}
		if testing.Short() {
			parts = parts[1:3]
		}
		for _, part := range parts {
			got := m.run(c, h100, part[0], part[1], Options{}, c.Strided(tensor.F32, part[1]-part[0], m.hidden, m.hidden+4))
			if !slices.Equal(got, all[part[0]*m.hidden:part[1]*m.hidden]) {
				t.Fatalf("%s: rows %v alone differ from the same rows among %d", name, part, rows)
			}
		}
		// Less shared memory: smaller tiles and fewer warps.
		for _, part := range [][2]int{{0, 1}, {0, 9}} {
			if testing.Short() && part[1] == 1 && i%2 == 0 {
				continue
			}
			if got := m.run(c, launch.GPU{SMs: 28, SharedMax: 9<<10 + 2*max(m.hidden, m.width)}, part[0], part[1], Options{}, c.Mat(tensor.F32, part[1]-part[0], m.hidden)); !slices.Equal(got, all[:len(got)]) {
				t.Fatalf("%s: rows %v differ with less shared memory", name, part)
			}
		}
		for r, got := range m.run(c, h100, 0, 1, Options{Add: true}, c.F32(all, 1, m.hidden)) {
			if got != 2*all[r] {
				t.Fatalf("%s: added to itself: %v after %v", name, got, all[r])
			}
		}
		for r, got := range m.run(c, h100, 0, 4, Options{}, c.Mat(tensor.BF16, 4, m.hidden)) {
			if got != tensor.BF16ToF32(tensor.F32ToBF16(all[r])) {
				t.Fatalf("%s: as BF16 %v, as F32 %v", name, got, all[r])
			}
		}
	}
}
