//go:build cuda

package cudatest

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

// Layout is how a weight matrix is kept: rows of DType, or with Bits packed integers.
type Layout struct {
	DType  tensor.DType
	Bits   int
	Group  int // 0: one scale for all columns
	Joined bool
}

// Weights are N random matrices [Rows, Cols] on the GPU, one after the other, and their values.
type Weights struct {
	launch.Weight         // the first matrix
	Step, ScaleStep int64 // bytes to the next one's values and scales
	Dense           [][]float32
}

// RandomWeights makes n matrices whose rows have a norm of about 1.
func (c *GPU) RandomWeights(rng *rand.Rand, k Layout, n, rows, cols int) Weights {
	c.t.Helper()
	w := Weights{Dense: make([][]float32, n)}
	var values, scales []byte
	size := float32(1 / math.Sqrt(float64(cols)))
	f := tensor.Layout{Format: tensor.EncodingOf(fmt.Sprintf("int%d", k.Bits)).By(k.Group), Rows: rows, Cols: cols, For: tensor.GPU, Joined: k.Joined}
	if k.Group == 0 {
		f.Group = max(cols, 128)
	}
	for i := range n {
		w.Dense[i] = make([]float32, rows*cols)
		if k.Bits == 0 {
			values = appendRows(values, rng, k.DType, w.Dense[i], size)
			continue
		}
		v, s := randomTiles(rng, f, w.Dense[i], size)
		values, scales = append(values, v...), append(scales, s...)
	}
	w.Step, w.ScaleStep = int64(len(values)/n), int64(len(scales)/n)
	at := c.Bytes(values)
	if k.Bits == 0 {
		w.F = launch.Mat{At: at, DType: k.DType, Rows: rows, Cols: cols, Stride: cols}
	} else {
		w.A = launch.Tiles{Layout: f, Values: at, Scales: c.Bytes(scales)}
	}
	return w
}

func appendRows(b []byte, rng *rand.Rand, dt tensor.DType, dense []float32, size float32) []byte {
	for i := range dense {
		v := size * float32(rng.NormFloat64())
		if dt == tensor.F32 {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		} else {
			bits := tensor.F32ToBF16(v)
			v = tensor.BF16ToF32(bits)
			b = binary.LittleEndian.AppendUint16(b, bits)
		}
		dense[i] = v
	}
	return b
}

// randomTiles fills dense and packs it. Every integer of the format occurs, and all scales
// differ.
func randomTiles(rng *rand.Rand, f tensor.Layout, dense []float32, size float32) (values, scales []byte) {
	q := make([]int8, len(dense))
	groups := (f.Cols + f.Group - 1) / f.Group
	s := make([]float32, f.Rows*groups)
	levels := f.Levels()
	_, limit := f.Range()
	for i := range s {
		s[i] = tensor.BF16ToF32(tensor.F32ToBF16(size * float32(1+rng.Float64()) / float32(limit)))
	}
	for i := range q {
		q[i] = levels[rng.IntN(len(levels))]
		dense[i] = float32(q[i]) * s[i/f.Cols*groups+i%f.Cols/f.Group]
	}
	values, scales = make([]byte, f.ValueBytes()), make([]byte, f.ScaleBytes())
	f.Pack(values, scales, f.Matrix(q, s))
	return values, scales
}

// Normal returns n normally distributed numbers, rounded to bfloat16.
func Normal(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = tensor.BF16ToF32(tensor.F32ToBF16(float32(rng.NormFloat64())))
	}
	return x
}
