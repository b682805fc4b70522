//go:build cuda

package ops

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/gemv"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// The sizes of an operator in these tests. With this many columns, products of bfloat16 of few
// rows are summed in parts.
const (
	formsOut, formsCols, formsHidden, formsMost = 72, 1088, 64, 130
	formsWidth                                  = 1088
)

// formsRig has the operands of the operators.
type formsRig struct {
	*mapRig
	matrix        launch.Weight
	network       Network
	wide, in, sum launch.Mat // inputs [formsMost, formsCols] and [, formsHidden], and a residual stream
}

func newFormsRig(t *testing.T, c *cudatest.GPU, k cudatest.Layout) *formsRig {
	rng := rand.New(rand.NewPCG(31, 7))
	weights := func(k cudatest.Layout, rows, cols int) launch.Weight {
		return c.RandomWeights(rng, k, 1, rows, cols).Weight
	}
	matrix := weights(k, formsOut, formsCols)
	matrix.Bias = c.F32(cudatest.Normal(rng, formsOut), 1, formsOut).At
	return &formsRig{mapRig: newMapRig(t, c, k, k, tensor.BF16), matrix: matrix,
		network: Network{W13: weights(joined(k), 2*formsWidth, formsHidden), W2: weights(k, formsHidden, formsWidth)},
		wide:    c.BF16(cudatest.Normal(rng, formsMost*formsCols), formsMost, formsCols),
		in:      c.BF16(cudatest.Normal(rng, formsMost*formsHidden), formsMost, formsHidden),
		sum:     c.F32(cudatest.Normal(rng, formsMost*formsCols), formsMost, formsCols)}
}

// formsOps are the operators whose kernels depend on the number of rows. Each returns the first
// rows of its results, one after the other.
var formsOps = []struct {
	name string
	run  func(r *formsRig, b *Builder, rows int) launch.Mat
}{
	{"MatMul", func(r *formsRig, b *Builder, rows int) launch.Mat {
		out := r.c.Mat(tensor.BF16, rows, formsOut)
		b.MatMul(out, r.wide.RowRange(0, rows), r.matrix)
		return out
	}},
	{"NormMatMul", func(r *formsRig, b *Builder, rows int) launch.Mat {
		out, in := r.c.Mat(tensor.BF16, rows, formsOut), r.c.Mat(tensor.BF16, rows, formsCols)
		norm := r.wide.RowRange(0, 1)
		b.NormMatMul(out, in, r.sum.RowRange(0, rows), norm, 1e-6, r.matrix)
		return out
	}},
	{"AddMatMul", func(r *formsRig, b *Builder, rows int) launch.Mat {
		sum := r.c.F32(slices.Repeat([]float32{0.37}, rows*formsOut), rows, formsOut)
		b.AddMatMul(sum, r.c.Mat(tensor.BF16, rows, formsOut), r.wide.RowRange(0, rows), r.matrix)
		return sum
	}},
	{"FFN", func(r *formsRig, b *Builder, rows int) launch.Mat {
		out := r.c.Mat(tensor.F32, rows, formsHidden)
		b.FFN(out, r.in.RowRange(0, rows), r.network)
		return out
	}},
	{"AddFFN", func(r *formsRig, b *Builder, rows int) launch.Mat {
		sum := r.c.F32(slices.Repeat([]float32{0.37}, rows*formsHidden), rows, formsHidden)
		b.AddFFN(sum, r.c.Mat(tensor.BF16, rows, formsHidden), r.in.RowRange(0, rows), r.network)
		return sum
	}},
	{"Mix", func(r *formsRig, b *Builder, rows int) launch.Mat {
		out := r.c.Mat(tensor.BF16, rows, mapHidden)
		b.Mix(out, r.c.Mat(tensor.BF16, rows*mapTopK, mapHidden), r.c.Mat(tensor.BF16, rows, mapHidden), r.x.RowRange(0, rows), r.bank, r.shared,
			r.c.I32(r.ids[:rows*mapTopK], rows, mapTopK), r.c.F32(r.weights[:rows*mapTopK], rows, mapTopK))
		return out
	}},
	{"Route and AddMix", func(r *formsRig, b *Builder, rows int) launch.Mat {
		sum, x := r.c.F32(make([]float32, rows*mapHidden), rows, mapHidden), r.c.Mat(tensor.BF16, rows, mapHidden)
		ids, weights, logits := r.c.Mat(tensor.I32, rows, mapTopK), r.c.Mat(tensor.F32, rows, mapTopK), r.c.Mat(tensor.F32, rows, mapExperts)
		gate := launch.Mat{At: r.x.At, DType: tensor.BF16, Rows: mapExperts, Cols: mapHidden, Stride: mapHidden}
		b.NormRoute(ids, weights, logits, x, r.x.RowRange(0, rows), r.x.RowRange(7, 8), 1e-6, launch.Weight{F: gate}, launch.Mat{},
			device.Router{Experts: mapExperts, TopK: mapTopK, Scale: 1})
		b.AddMix(sum, r.c.Mat(tensor.BF16, rows, mapHidden), r.c.Mat(tensor.BF16, rows*mapTopK, mapHidden), r.c.Mat(tensor.BF16, rows, mapHidden), x,
			r.bank, r.shared, ids, weights)
		return sum
	}},
}

// TestForms: with Invariant, a row of an operator has the bits of its numerics class, whatever
// number of rows of either class are in the batch. Without it, the number of rows decides.
func TestForms(t *testing.T) {
	c := cudatest.Open(t)
	batches := [][2]int{{1, 0}, {1, 1}, {2, 0}, {2, 1}, {2, 2}, {3, 1}, {7, 0}, {7, 3}, {7, 7}, {33, 5}, {64, 0}, {65, 1}, {65, 64}, {129, 64}}
	if testing.Short() {
		batches = [][2]int{{2, 1}, {65, 64}}
	}
	for _, k := range []cudatest.Layout{{DType: tensor.BF16}, {Bits: 4, Group: 128}, {Bits: 8}} {
		r, apart, hangs := newFormsRig(t, c, k), 0, 0 // results are rounded to bfloat16: a few may be equal by chance
		for _, o := range formsOps {
			t.Run(fmt.Sprintf("%s %+v", o.name, k), func(t *testing.T) {
				run := func(invariant bool, rows, generated int) []float32 {
					var out launch.Mat
					r.run(func(b *Builder) {
						b.Invariant, b.Generated = invariant, generated
						out = o.run(r, b, rows)
					})
					return c.Floats(out)
				}
				made, prompt := run(true, gemv.MaxRows, gemv.MaxRows), run(true, formsMost, 0)
				cols := len(made) / gemv.MaxRows
				if !slices.Equal(made, prompt[:len(made)]) {
					apart++
				}
				for _, x := range batches {
					rows, n := x[0], x[1]
					got := run(true, rows, n)
					want := slices.Concat(made[:n*cols], prompt[n*cols:rows*cols])
					if !slices.Equal(got, want) {
						t.Errorf("%d rows, %d of them generated: other bits", rows, n)
					}
				}
				alone := run(false, 1, 1)
				if !slices.Equal(alone, run(false, formsMost, 1)[:cols]) {
					hangs++
				}
				if !slices.Equal(alone, made[:cols]) {
					t.Error("a generated row alone has other bits with Invariant")
				}
			})
		}
		if apart < len(formsOps)-2 || hangs < len(formsOps)-2 {
			t.Errorf("%+v: of %d operators %d have forms with bits of their own, %d depend on the number of rows without Invariant: this test shows little",
				k, len(formsOps), apart, hangs)
		}
	}
}

// TestFormsRefuse: more generated rows than the kernels for few rows take.
func TestFormsRefuse(t *testing.T) {
	var l launch.List
	b := Builder{List: &l, Invariant: true, Generated: gemv.MaxRows + 1}
	defer func() {
		if _, ok := recover().(*device.ShapeError); !ok {
			t.Error("was taken")
		}
	}()
	x := launch.Mat{At: 256, DType: tensor.BF16, Rows: gemv.MaxRows + 2, Cols: 64, Stride: 64}
	b.MatMul(x, x, launch.Weight{F: launch.Mat{At: 512, DType: tensor.BF16, Rows: 64, Cols: 64, Stride: 64}})
}
