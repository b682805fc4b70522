//go:build cuda

package plain

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var layouts = []cudatest.Layout{
	{DType: tensor.F32}, {DType: tensor.BF16},
	{Bits: 4, Group: 32}, {Bits: 4, Group: 64}, {Bits: 4, Group: 128}, {Bits: 4},
	{Bits: 8, Group: 32}, {Bits: 8, Group: 128}, {Bits: 8},
	{Bits: 3, Group: 32}, {Bits: 3, Group: 64}, {Bits: 3, Group: 128},
}

var types = []tensor.DType{tensor.F32, tensor.BF16}

// upload makes a matrix of x with type dt.
func upload(c *cudatest.GPU, dt tensor.DType, x []float32, rows, cols int) launch.Mat {
	if dt == tensor.F32 {
		return c.F32(x, rows, cols)
	}
	return c.BF16(x, rows, cols)
}

// dot returns the product, and the sum of the sizes of its terms.
func dot(x, w []float32) (v, size float64) {
	for i := range x {
		p := float64(x[i]) * float64(w[i])
		v, size = v+p, size+math.Abs(p)
	}
	return v, size
}

func rounding(dt tensor.DType) float64 {
	if dt == tensor.F32 {
		return 0x1p-23
	}
	return 0x1p-8
}

func TestMatMul(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for i, k := range layouts {
		for _, shape := range [][3]int{{1, 1, 1}, {3, 23, 19}, {2, 70, 131}} {
			rows, n, cols := shape[0], shape[1], shape[2]
			xt, ot := types[i%2], types[(i+shape[0])%2]
			w := c.RandomWeights(rng, k, 1, n, cols)
			x := cudatest.Normal(rng, rows*cols)
			out := c.Strided(ot, rows, n, n+3)
			in := upload(c, xt, x, rows, cols)
			c.Run(func(l *launch.List) { MatMul(l, out, in, w.Weight) })
			got := c.Floats(out)
			for r := range rows {
				for j := range n {
					want, size := dot(x[r*cols:(r+1)*cols], w.Dense[0][j*cols:(j+1)*cols])
					if d := math.Abs(float64(got[r*n+j]) - want); !(d <= rounding(ot)*math.Abs(want)+0x1p-19*size) {
						t.Fatalf("%+v %v: out[%d, %d] = %v, want %v", k, shape, r, j, got[r*n+j], want)
					}
				}
			}
		}
	}
}

// swiglu returns the expert's output in float64, with hidden values rounded to dt, and a bound of
// its error. b13 and b2 are nil without biases.
func swiglu(x, w13, w2, b13, b2 []float32, act device.Activation, dt tensor.DType) (y, bound []float64) {
	h, hidden := len(w2)/len(x), len(x)
	mid := make([]float32, h)
	for f := range h {
		u, _ := dot(x, w13[f*hidden:(f+1)*hidden])
		v, _ := dot(x, w13[(h+f)*hidden:(h+f+1)*hidden])
		if b13 != nil {
			u, v = u+float64(b13[f]), v+float64(b13[h+f])
		}
		mid[f] = float32(act.Of(u, v))
		if dt == tensor.BF16 {
			mid[f] = tensor.BF16ToF32(tensor.F32ToBF16(mid[f]))
		}
	}
	y, bound = make([]float64, hidden), make([]float64, hidden)
	for i := range y {
		v, size := dot(mid, w2[i*h:(i+1)*h])
		if b2 != nil {
			v, size = v+float64(b2[i]), size+math.Abs(float64(b2[i]))
		}
		y[i], bound[i] = v, size*max(rounding(dt), 0x1p-18)
	}
	return y, bound
}

func TestExperts(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(3, 4))
	const rows, topK, experts, hidden, width = 3, 2, 3, 40, 24
	ids := []int32{2, 0, -1, 1, 0, experts} // none: below 0, and not below experts
	for i, k := range layouts {
		dt := types[i%2]
		joined := k
		joined.Joined = k.Bits != 0
		w13 := c.RandomWeights(rng, joined, experts, 2*width, hidden)
		w2 := c.RandomWeights(rng, k, experts, hidden, width)
		bank := launch.Bank{Experts: experts, W13: w13.Weight, W2: w2.Weight, Step: w13.Step, ScaleStep: w13.ScaleStep, Step2: w2.Step, ScaleStep2: w2.ScaleStep}
		x := cudatest.Normal(rng, rows*hidden)
		in, idMat := upload(c, dt, x, rows, hidden), c.I32(ids, rows, topK)
		h := c.Alloc(ScratchBytes(rows*topK, width, dt))
		y := c.Mat(tensor.F32, rows*topK, hidden)
		plain := bank
		act := []device.Activation{{}, {Alpha: 1.702, Limit: 7, Shift: 1}, {Limit: 0.5}, device.GELUTanh}[i%4]
		biases := make([]float32, experts*(2*width+hidden))
		if bank.Extra = (launch.Extra{Alpha: act.Alpha, Limit: act.Limit, Shift: act.Shift, Cubic: act.Cubic}); i%2 == 0 {
			biases = cudatest.Normal(rng, len(biases))
			all := c.F32(biases, 1, len(biases))
			bank.B13, bank.B2, bank.BiasStep = all.At, all.ColRange(2*width, 2*width+1).At, 4*(2*width+hidden)
		}
		c.Run(func(l *launch.List) { Experts(l, y, h, in, bank, idMat) })
		got := c.Floats(y)
		for s, id := range ids {
			want, bound := make([]float64, hidden), make([]float64, hidden)
			if id >= 0 && id < experts {
				own := biases[int(id)*(2*width+hidden):][:2*width+hidden]
				want, bound = swiglu(x[s/topK*hidden:][:hidden], w13.Dense[id], w2.Dense[id], own[:2*width], own[2*width:], act, dt)
			}
			for j := range hidden {
				if d := math.Abs(float64(got[s*hidden+j]) - want[j]); !(d <= bound[j]) {
					t.Fatalf("%+v: slot %d of expert %d: y[%d] = %v, want %v", k, s, id, j, got[s*hidden+j], want[j])
				}
			}
		}
		// A network for every row has the bits of expert 0 for every row.
		out, all := c.Mat(tensor.F32, rows, hidden), c.Mat(tensor.F32, rows, hidden)
		zeros := c.I32(make([]int32, rows), rows, 1)
		c.Run(func(l *launch.List) {
			FFN(l, out, h, in, w13.Weight, w2.Weight, launch.Extra{})
			Experts(l, all, h, in, plain, zeros)
		})
		if !slices.Equal(c.Floats(out), c.Floats(all)) {
			t.Fatalf("%+v: FFN differs from expert 0", k)
		}
		// One row alone has the same bits.
		one := c.Mat(tensor.F32, 1, hidden)
		c.Run(func(l *launch.List) { FFN(l, one, h, in.RowRange(1, 2), w13.Weight, w2.Weight, launch.Extra{}) })
		if !slices.Equal(c.Floats(one), c.Floats(out)[hidden:2*hidden]) {
			t.Fatalf("%+v: a row alone differs", k)
		}
	}
}
