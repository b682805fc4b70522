//go:build cuda

package gemm

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

// quantised is x of random integers as QuantizeRows lays them out, with a scale a row.
type quantised struct {
	values      []int8 // [m, k], in their natural order
	scale       []float32
	mat, scales launch.Mat
}

func newQuantised(c *cudatest.Card, rng *rand.Rand, m, k int, scale func() float32) quantised {
	wide := (k + 15) &^ 15
	stride := wide + 16
	q := quantised{values: make([]int8, m*k), scale: make([]float32, m)}
	laid := bytes.Repeat([]byte{0x55}, m*stride)
	for r := range m {
		q.scale[r] = scale()
		row := laid[r*stride:][:wide]
		clear(row)
		for i := range k {
			v := int8(rng.IntN(255) - 127)
			q.values[r*k+i] = v
			for at, col := range elem.QuantOrder {
				if col == i%16 {
					row[i/16*16+at] = byte(v)
				}
			}
		}
	}
	q.mat = launch.Mat{At: c.Bytes(laid), DType: tensor.I8, Rows: m, Cols: wide, Stride: stride}
	q.scales = c.F32(q.scale, m, 1)
	return q
}

// weights8 are random integers in format A with a scale a row.
func weights8(c *cudatest.Card, rng *rand.Rand, n, k int, joined bool, scale func() float32) (launch.Tiles, []int8, []float32) {
	w, s := make([]int8, n*k), make([]float32, n)
	for i := range w {
		w[i] = int8(rng.IntN(255) - 127)
	}
	for i := range s {
		s[i] = tensor.BF16ToF32(tensor.F32ToBF16(scale()))
	}
	return c.Tiles(tensor.FormatA{Rows: n, Cols: k, Bits: 8, Group: max(k, 128), Joined: joined}, w, s), w, s
}

func integers(x, w []int8, m, n, k int) []int64 {
	out := make([]int64, m*n)
	for i := range m {
		for j := range n {
			for c := range k {
				out[i*n+j] += int64(x[i*k+c]) * int64(w[j*k+c])
			}
		}
	}
	return out
}

func one() float32 { return 1 }

// With scales of one the results are the sums themselves: below 2^24 exactly.
func TestW8A8IsExact(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(7, 2))
	for _, v := range runnable(c, true) {
		for i, s := range []Sizes{
			{M: 1, N: 8, K: 8}, {M: 7, N: 72, K: 64}, {M: 64, N: 136, K: 72}, {M: 65, N: 264, K: 136}, {M: 129, N: 72, K: 512},
			{M: 260, N: 264, K: 192}, {M: 200, N: 128, K: 1000},
		} {
			t.Run(fmt.Sprintf("%v/%dx%dx%d", v, s.M, s.N, s.K), func(t *testing.T) {
				m, n, k := s.M, s.N, s.K
				x := newQuantised(c, rng, m, k, one)
				w, wq, _ := weights8(c, rng, n, k, false, one)
				want := integers(x.values, wq, m, n, k)
				out := c.Strided(tensor.F32, m, n, n+i%3)
				size := ((m-1)*out.Stride + n) * 4
				run := func(o Options) []byte {
					o.Plan.Variant = v
					c.Run(func(l *launch.List) { W8A8(l, narrow(c), out, x.mat, x.scales, w, o) })
					return cudatest.Download[byte](c, out.At, size)
				}
				first := run(Options{})
				for i, got := range c.Floats(out) {
					if int64(got) != want[i] || got != float32(want[i]) {
						t.Fatalf("element %d: %v, want %d", i, got, want[i])
					}
				}
				if !bytes.Equal(first, run(Options{})) {
					t.Fatal("another run, other bytes")
				}
				run(Options{Accumulate: true})
				for i, got := range c.Floats(out) {
					if got != 2*float32(want[i]) {
						t.Fatalf("accumulated element %d: %v, want %d twice", i, got, want[i])
					}
				}
			})
		}
	}
}

// With scales a result is the rounded sum times the rounded product of both.
func TestW8A8Scales(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(8, 2))
	scale := func() float32 { return 0.01 + 0.1*rng.Float32() }
	const m, n, k = 70, 144, 136
	x := newQuantised(c, rng, m, k, scale)
	x.scale[3] = float32(math.NaN()) // of a row with an infinity: all of it, and no other
	x.scales = c.F32(x.scale, m, 1)
	for _, joined := range []bool{false, true} {
		w, wq, ws := weights8(c, rng, n, k, joined, func() float32 { return scale() / 40 })
		sums := integers(x.values, wq, m, n, k)
		for _, v := range runnable(c, true) {
			cols := n
			if joined {
				cols = n / 2
			}
			out := c.Strided(tensor.BF16, m, cols, cols+8)
			c.Run(func(l *launch.List) { W8A8(l, c.Info(), out, x.mat, x.scales, w, Options{Plan: Plan{Variant: v}}) })
			for i, got := range c.Floats(out) {
				r, col := i/cols, i%cols
				value := func(row int) float64 { return float64(sums[r*n+row]) * float64(x.scale[r]) * float64(ws[row]) }
				want := value(col)
				if joined {
					want = want / (1 + math.Exp(-want)) * value(n/2+col)
				}
				if r == 3 {
					if !math.IsNaN(float64(got)) {
						t.Fatalf("%v: %v in a row whose scale is NaN", v, got)
					}
				} else if !(math.Abs(float64(got)-want) <= 0x1p-8*math.Abs(want)+1e-30) {
					t.Fatalf("%v, joined %v, row %d column %d: %v, want %v", v, joined, r, col, got, want)
				}
			}
		}
	}
}

// What QuantizeRows writes is what W8A8 reads.
func TestQuantizeRowsThenW8A8(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(9, 2))
	const m, n, k = 33, 72, 200
	xs := cudatest.Normal(rng, m*k)
	w, wq, ws := weights8(c, rng, n, k, false, func() float32 { return 0.001 * (1 + rng.Float32()) })
	dense, size := dense(xs, func() []float32 {
		f := make([]float32, n*k)
		for i, v := range wq {
			f[i] = float32(v) * ws[i/k]
		}
		return f
	}(), m, n, k)
	x := c.BF16(xs, m, k)
	q, scale, out := c.Mat(tensor.I8, m, 208), c.Mat(tensor.F32, m, 1), c.Mat(tensor.F32, m, n)
	c.Run(func(l *launch.List) {
		elem.QuantizeRows(l, q, scale, x)
		W8A8(l, c.Info(), out, q, scale, w, Options{})
	})
	for i, got := range c.Floats(out) {
		if math.Abs(float64(got)-dense[i]) > 0.02*size[i] { // half a step of 127 in each activation, mostly cancelling
			t.Fatalf("element %d: %v, want about %v", i, got, dense[i])
		}
	}
}
