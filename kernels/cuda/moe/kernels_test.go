//go:build cuda

package moe

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/route"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// The largest errors of a row, relative to its norm. Compared with packed weights, a product
// rounds weights and results to bfloat16: 2^-9 at most, half of that on average. Two products in
// a row, with hidden values in between, do so twice. Compared with weights that are rounded as in
// the kernels, only results are rounded.
const (
	boundOne  = 4e-3
	boundPair = 8e-3
	boundBF16 = 2.5e-3
	boundF32  = 3e-4

	boundApart = 1.2e-2 // of a pair with the activation between: gate and up are rounded too
)

var layouts = []cudatest.Layout{
	{Bits: 4, Group: 128}, {Bits: 4, Group: 64}, {Bits: 4, Group: 32}, {Bits: 4},
	{Bits: 8, Group: 128}, {Bits: 8, Group: 64}, {Bits: 8, Group: 32}, {Bits: 8},
	{Bits: 3, Group: 128}, {Bits: 3, Group: 64},
}

// runnable are the variants the GPU has.
func runnable(c *cudatest.GPU) (v []Variant) {
	for i := Auto + 1; i < variants; i++ {
		if i.runs(c.Info()) {
			v = append(v, i)
		}
	}
	return v
}

// dot computes x * transposed w for one row; rounded: with weights rounded as in the kernels.
func dot(w, x []float32, rounded bool) []float64 {
	out := make([]float64, len(w)/len(x))
	for i := range out {
		for k, v := range x {
			f := w[i*len(x)+k]
			if rounded {
				f = bf16(f)
			}
			out[i] += float64(v) * float64(f)
		}
	}
	return out
}

func bf16(v float32) float32 { return tensor.BF16ToF32(tensor.F32ToBF16(v)) }

// swiglu computes the activation of the halves of v plus a bias (nil: none), rounded or not.
func swiglu(v []float64, bias []float32, act device.Activation, rounded bool) []float32 {
	out := make([]float32, len(v)/2)
	for i, b := range bias {
		v[i] += float64(b)
	}
	for i := range out {
		out[i] = float32(act.Of(v[i], v[len(out)+i]))
		if rounded {
			out[i] = bf16(out[i])
		}
	}
	return out
}

// near compares a row with the expected one.
func near(t *testing.T, what string, got []float32, want []float64, bound float64) {
	t.Helper()
	nearly(t, what, got, want, bound, 0)
}

// nearly is near with slack, a norm, added to the bound.
func nearly(t *testing.T, what string, got []float32, want []float64, bound, slack float64) {
	t.Helper()
	var d, n float64
	for i := range want {
		e := float64(got[i]) - want[i]
		d, n = d+e*e, n+want[i]*want[i]
	}
	if e := math.Sqrt(d / n); !(e <= bound+slack/math.Sqrt(n)) {
		t.Fatalf("%s: off by %.2g of its norm %.3g: %v... for %v...", what, e, math.Sqrt(n), got[:4], want[:4])
	}
}

func poisoned(v float32) bool { return math.IsNaN(float64(v)) }

// mixture is a bank and the distribution of its assignments.
type mixture struct {
	tokens, topK, experts, hidden, width int
	pick                                 func(rng *rand.Rand, token, rank int) int32
}

func spread(experts int) func(*rand.Rand, int, int) int32 {
	return func(rng *rand.Rand, token, rank int) int32 { return int32(rng.IntN(experts)) }
}

// some leaves one expert out, and a third of the assignments have no expert.
func some(rng *rand.Rand, token, rank int) int32 { return int32(rng.IntN(3)) - 1 }

// one sends every token to expert 2.
func one(*rand.Rand, int, int) int32 { return 2 }

var mixtures = []mixture{
	{1, 2, 4, 128, 64, spread(4)},
	{2, 1, 4, 192, 128, spread(4)},
	{7, 3, 8, 128, 192, spread(8)},
	{9, 2, 4, 256, 64, some},
	{33, 1, 5, 128, 64, one},
	{65, 2, 4, 64, 128, one},
	{130, 2, 4, 256, 64, spread(4)},
	{3, 1, 4, 64, 64, func(*rand.Rand, int, int) int32 { return -1 }},
}

// rig is a mixture on the GPU.
type rig struct {
	mixture
	c       *cudatest.GPU
	w13, w2 cudatest.Weights
	bank    launch.Bank
	act     device.Activation
	biases  []float32 // of an expert 2*width+hidden values; nil: none
}

func newRig(c *cudatest.GPU, rng *rand.Rand, k cudatest.Layout, m mixture) *rig {
	r := &rig{mixture: m, c: c}
	joined := k
	joined.Joined = true
	r.w13 = c.RandomWeights(rng, joined, m.experts, 2*m.width, m.hidden)
	r.w2 = c.RandomWeights(rng, k, m.experts, m.hidden, m.width)
	r.bank = launch.Bank{Experts: m.experts, W13: r.w13.Weight, W2: r.w2.Weight,
		Step: r.w13.Step, ScaleStep: r.w13.ScaleStep, Step2: r.w2.Step, ScaleStep2: r.w2.ScaleStep}
	return r
}

// expert returns the expected result of row x.
func (r *rig) expert(e int32, x []float32, factor float32, rounded bool) []float64 {
	b13, b2 := r.bias(e)
	h := swiglu(dot(r.w13.Dense[e], x, rounded && grouped(&r.w13.A)), b13, r.act, rounded)
	out := r.second(e, h, factor, rounded)
	for i, b := range b2 {
		out[i] += float64(b)
	}
	return out
}

// doubt returns the possible error of a rounded expert, as a norm. A hidden value near the
// midpoint of two bfloat16 may round the other way on a GPU, because its exponential differs.
func (r *rig) doubt(e int32, x []float32, factor float32) float64 {
	b13, _ := r.bias(e)
	exact := swiglu(dot(r.w13.Dense[e], x, grouped(&r.w13.A)), b13, r.act, false)
	for i, v := range exact {
		exact[i] = turn(v)
	}
	sum := 0.0
	for _, v := range r.second(e, exact, factor, false) {
		sum += v * v
	}
	return math.Sqrt(sum)
}

// turn returns the distance of two neighbouring bfloat16 if v lies within 2^-17 of itself of
// their midpoint, else 0.
func turn(h float32) float32 {
	v := float64(h)
	if v == 0 {
		return 0
	}
	unit := math.Ldexp(1, math.Ilogb(v)-7)
	if off := math.Abs(math.Remainder(v-unit/2, unit)); off < math.Ldexp(math.Abs(v), -17) {
		return float32(unit)
	}
	return 0
}

// second computes the second half of an expert.
func (r *rig) second(e int32, h []float32, factor float32, rounded bool) []float64 {
	out := dot(r.w2.Dense[e], h, rounded && grouped(&r.w2.A))
	for i := range out {
		out[i] *= float64(factor)
	}
	return out
}

// run returns y for rows x with the given choices.
func (r *rig) run(y, x launch.Mat, ids []int32, o Options) {
	c, slots := r.c, x.Rows*r.topK
	idm := c.I32(ids, x.Rows, r.topK)
	tile := o.Variant.Tokens()
	a := route.NewAligned(c.Alloc(route.AlignedBytes(x.Rows, r.topK, r.experts, tile)), x.Rows, r.topK, r.experts, tile)
	width := r.width
	if r.bank.Apart() {
		width *= 3
	}
	h := c.Alloc(HiddenBytes(slots, width))
	c.Run(func(l *launch.List) {
		route.Align(l, &a, idm, 0)
		Experts(l, c.Info(), y, h, x, r.bank, a, o)
	})
}

func TestExperts(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(4, 2))
	n := 0
	for i, k := range layouts {
		for _, v := range runnable(c) {
			m := mixtures[n%len(mixtures)]
			n++
			t.Run(fmt.Sprintf("%+v/%v", k, v), func(t *testing.T) { testExperts(t, c, rng, k, v, m, n%2 == 0, n%3 == 0, device.Activation{}) })
			if i == 0 { // the most used format runs all shapes
				for i, m := range mixtures {
					if testing.Short() && (i+n)%2 == 0 { // the next kernels have it
						continue
					}
					t.Run(fmt.Sprintf("%v/%d tokens", v, m.tokens), func(t *testing.T) {
						testExperts(t, c, rng, k, v, m, m.tokens%2 == 0, m.tokens%3 == 0, device.Activation{})
					})
				}
			}
		}
	}
}

func testExperts(t *testing.T, c *cudatest.GPU, rng *rand.Rand, k cudatest.Layout, v Variant, m mixture, wide, weighted bool, act device.Activation) {
	r := newRig(c, rng, k, m)
	if act != (device.Activation{}) {
		r.adorn(rng, act)
	}
	slots := m.tokens * m.topK
	ids, factors := make([]int32, slots), make([]float32, slots)
	for i := range ids {
		ids[i], factors[i] = m.pick(rng, i/m.topK, i%m.topK), 0.1+rng.Float32()
	}
	x := cudatest.Normal(rng, m.tokens*m.hidden)
	in := c.Strided(tensor.BF16, m.tokens, m.hidden, m.hidden+8)
	plain := c.BF16(x, m.tokens, m.hidden)
	c.Run(func(l *launch.List) {
		for i := range m.tokens {
			l.Copy(in.RowRange(i, i+1).At, plain.RowRange(i, i+1).At, int64(2*m.hidden))
		}
	})
	y := c.Strided(tensor.BF16, slots, m.hidden, m.hidden+16)
	o := Options{Variant: v}
	if wide {
		y = c.Strided(tensor.F32, slots, m.hidden, m.hidden+1)
	}
	if weighted {
		o.Factors = cudatest.Upload(c, factors)
	}
	r.run(y, in, ids, o)
	got := c.Floats(y)
	all := y
	all.Cols = y.Stride
	if slots > 1 {
		for i, v := range c.Floats(all.RowRange(0, slots-1)) {
			if i%y.Stride >= y.Cols && !poisoned(v) {
				t.Fatalf("row %d: written behind its end", i/y.Stride)
			}
		}
	}
	for s, e := range ids {
		row := got[s*m.hidden : (s+1)*m.hidden]
		if e < 0 {
			if !poisoned(row[0]) || !poisoned(row[m.hidden-1]) {
				t.Fatalf("row %d has no expert and is written", s)
			}
			continue
		}
		factor, bound := float32(1), boundBF16
		if wide {
			bound = boundF32
		}
		if weighted {
			factor = factors[s]
		}
		what := fmt.Sprintf("assignment %d, expert %d", s, e)
		if r.bank.Apart() {
			near(t, what, row, r.expert(e, x[s/m.topK*m.hidden:][:m.hidden], factor, false), boundApart)
			continue
		}
		near(t, what, row, r.expert(e, x[s/m.topK*m.hidden:][:m.hidden], factor, false), boundPair)
		of := x[s/m.topK*m.hidden:][:m.hidden]
		nearly(t, what+", rounded", row, r.expert(e, of, factor, true), bound, r.doubt(e, of, factor))
	}
}

// A row's result does not change with the rest of the batch, nor from run to run.
func TestBatchInvariance(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(5, 2))
	const large, small, first = 140, 5, 40 // tiles filled by more and by less than half
	m := mixture{tokens: large, topK: 2, experts: 3, hidden: 128, width: 64, pick: spread(3)}
	again := 3
	if testing.Short() {
		again = 1
	}
	for i, v := range runnable(c) {
		k := layouts[i%len(layouts)]
		r := newRig(c, rng, k, m)
		ids := make([]int32, large*m.topK)
		for i := range ids {
			ids[i] = m.pick(rng, 0, 0)
		}
		x := c.BF16(cudatest.Normal(rng, large*m.hidden), large, m.hidden)
		run := func(x launch.Mat, ids []int32) []byte {
			y := c.Mat(tensor.BF16, x.Rows*m.topK, m.hidden)
			r.run(y, x, ids, Options{Variant: v})
			return cudatest.Download[byte](c, y.At, 2*y.Rows*y.Cols)
		}
		all := run(x, ids)
		for range again {
			if !bytes.Equal(run(x, ids), all) {
				t.Fatalf("%+v %v: two runs differ", k, v)
			}
		}
		part := run(x.RowRange(first, first+small), ids[first*m.topK:(first+small)*m.topK])
		row := 2 * m.topK * m.hidden
		if !bytes.Equal(part, all[first*row:(first+small)*row]) {
			t.Fatalf("%+v %v: rows of a smaller batch differ", k, v)
		}
	}
}

// The kernels of a build add in the same order, so the choice of For and Dense by the number of
// tokens changes no bit of a row.
func TestVariantsAgree(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(12, 2))
	m := mixture{tokens: 70, topK: 2, experts: 3, hidden: 256, width: 128, pick: spread(3)}
	if testing.Short() {
		m.hidden, m.width = 128, 64
	}
	for _, k := range layouts {
		r := newRig(c, rng, k, m)
		ids := make([]int32, m.tokens*m.topK)
		for i := range ids {
			ids[i] = m.pick(rng, 0, 0)
		}
		x := c.BF16(cudatest.Normal(rng, m.tokens*m.hidden), m.tokens, m.hidden)
		first := map[bool][]byte{}
		for _, v := range runnable(c) {
			y, h := c.Mat(tensor.F32, m.tokens*m.topK, m.hidden), c.Mat(tensor.BF16, m.tokens, m.width)
			r.run(y, x, ids, Options{Variant: v})
			c.Run(func(l *launch.List) { DenseBy(l, c.Info(), v, h, x, r.w13.A, SwiGLU) })
			got := append(cudatest.Download[byte](c, y.At, 4*y.Rows*y.Cols), cudatest.Download[byte](c, h.At, 2*h.Rows*h.Cols)...)
			if build := v > A64; first[build] == nil {
				first[build] = got
			} else if !bytes.Equal(got, first[build]) {
				t.Errorf("%+v: %v has other bits than the kernels before it", k, v)
			}
		}
	}
}

// Shapes [M, N, K] of Dense: N not a multiple of a tile of rows, and K of half a group.
var dense = [][3]int{{1, 64, 64}, {7, 72, 192}, {31, 200, 320}, {33, 264, 64}, {65, 128, 448}, {129, 64, 128}, {130, 320, 64}}

func TestDense(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(6, 2))
	n := 0
	for i, k := range layouts {
		for _, v := range runnable(c) {
			for s, shape := range dense {
				if i > 0 && s != n%len(dense) {
					continue
				}
				t.Run(fmt.Sprintf("%+v/%v/%v", k, v, shape), func(t *testing.T) { testDense(t, c, rng, k, v, shape, Epilogue(s%2)) })
			}
			n++
		}
	}
}

func testDense(t *testing.T, c *cudatest.GPU, rng *rand.Rand, k cudatest.Layout, v Variant, shape [3]int, e Epilogue) {
	m, n, cols := shape[0], shape[1], shape[2]
	w := c.RandomWeights(rng, k, 1, n, cols)
	x := cudatest.Normal(rng, m*cols)
	in := c.BF16(x, m, cols)
	base := make([]float32, m*n)
	out := c.Strided(tensor.BF16, m, n, n+8)
	if e == Add {
		base = cudatest.Normal(rng, m*n)
		out = c.F32(base, m, n)
	}
	c.Run(func(l *launch.List) { DenseBy(l, c.Info(), v, out, in, w.A, e) })
	got := c.Floats(out)
	for r := range m {
		bound := boundBF16
		if e == Add {
			bound = boundF32
		}
		for _, rounded := range []bool{false, true} {
			want := dot(w.Dense[0], x[r*cols:(r+1)*cols], rounded && grouped(&w.A))
			for i := range want {
				want[i] += float64(base[r*n+i])
			}
			near(t, fmt.Sprintf("row %d, rounded: %v", r, rounded), got[r*n:(r+1)*n], want, map[bool]float64{false: boundOne, true: bound}[rounded])
		}
	}
}

func TestFFN(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(7, 2))
	const rows, hidden, width = 40, 128, 192
	for _, k := range []cudatest.Layout{{Bits: 4, Group: 128}, {Bits: 8}} {
		r := newRig(c, rng, k, mixture{experts: 1, hidden: hidden, width: width})
		x, base := cudatest.Normal(rng, rows*hidden), cudatest.Normal(rng, rows*hidden)
		in, out, sum := c.BF16(x, rows, hidden), c.Mat(tensor.F32, rows, hidden), c.F32(base, rows, hidden)
		h := c.Alloc(HiddenBytes(rows, width))
		c.Run(func(l *launch.List) {
			FFN(l, c.Info(), out, h, in, r.w13.A, r.w2.A, false)
			FFN(l, c.Info(), sum, h, in, r.w13.A, r.w2.A, true)
		})
		got, added := c.Floats(out), c.Floats(sum)
		for i := range rows {
			want := r.expert(0, x[i*hidden:(i+1)*hidden], 1, true)
			near(t, fmt.Sprintf("%+v row %d", k, i), got[i*hidden:(i+1)*hidden], want, boundF32)
		}
		for i := range added {
			// The sum may include the product before it is rounded: a GPU fuses the two.
			if off := math.Abs(float64(added[i]) - (float64(base[i]) + float64(got[i]))); off > math.Ldexp(math.Abs(float64(added[i]))+math.Abs(float64(got[i])), -24) {
				t.Fatalf("%+v: %d: %v + %v gives %v", k, i, base[i], got[i], added[i])
			}
		}
	}
}

// Experts that are far apart: on a GPU 5 GiB, so that offsets exceed 32 bits, and not always in
// the order of their numbers.
func TestFarExperts(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(8, 2))
	gap := 5 << 30
	if c.Emulated() {
		gap = 1 << 20
	}
	m := mixture{tokens: 9, topK: 1, experts: 1, hidden: 128, width: 64}
	k := cudatest.Layout{Bits: 4, Group: 64}
	near0 := newRig(c, rng, k, m)
	c.Alloc(gap)
	far := newRig(c, rng, k, m)
	for _, pair := range [][2]*rig{{near0, far}, {far, near0}} {
		a, b := pair[0], pair[1]
		both := &rig{mixture: m, c: c, bank: a.bank}
		both.experts, both.bank.Experts = 2, 2
		both.bank.Step = int64(b.w13.A.Values) - int64(a.w13.A.Values)
		both.bank.ScaleStep = int64(b.w13.A.Scales) - int64(a.w13.A.Scales)
		both.bank.Step2 = int64(b.w2.A.Values) - int64(a.w2.A.Values)
		both.bank.ScaleStep2 = int64(b.w2.A.Scales) - int64(a.w2.A.Scales)
		x := cudatest.Normal(rng, m.tokens*m.hidden)
		ids := []int32{0, 1, 1, 0, 1, 0, 0, 0, 1}
		for _, v := range runnable(c) {
			y := c.Mat(tensor.F32, m.tokens, m.hidden)
			both.run(y, c.BF16(x, m.tokens, m.hidden), ids, Options{Variant: v})
			got := c.Floats(y)
			for i, e := range ids {
				want := pair[e].expert(0, x[i*m.hidden:(i+1)*m.hidden], 1, true)
				near(t, fmt.Sprintf("%v, row %d of expert %d", v, i, e), got[i*m.hidden:(i+1)*m.hidden], want, boundF32)
			}
		}
	}
}

// The sizes of DeepSeek-V2-Lite, with two experts and few tokens.
func TestRealSizes(t *testing.T) {
	if testing.Short() {
		t.Skip("some seconds on an emulated GPU")
	}
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(9, 2))
	k := cudatest.Layout{Bits: 4, Group: 128}
	pick := func(_ *rand.Rand, token, _ int) int32 { return int32(token % 2) }
	all := runnable(c)
	for _, v := range []Variant{A64, all[len(all)-1]} {
		testExperts(t, c, rng, k, v, mixture{3, 1, 2, 2048, 1408, pick}, false, false, device.Activation{})
		testDense(t, c, rng, k, v, [3]int{3, 64, 10944}, Add)
	}
}
