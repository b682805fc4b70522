package dot

import (
	"unsafe"

	"krater/kernels/cpu/convert"
	"krater/kernels/tensor"
)

var pure = Funcs{
	F32:  [Rows + 1]func(*Tile){nil, func(t *Tile) { pureF32(t, 1) }, func(t *Tile) { pureF32(t, 2) }, func(t *Tile) { pureF32(t, 3) }, func(t *Tile) { pureF32(t, 4) }},
	BF16: [Rows + 1]func(*Tile){nil, func(t *Tile) { pureBF16(t, 1) }, func(t *Tile) { pureBF16(t, 2) }, func(t *Tile) { pureBF16(t, 3) }, func(t *Tile) { pureBF16(t, 4) }},
}

func pureF32(t *Tile, rows int) {
	for n := range t.N {
		w := unsafe.Slice((*float32)(unsafe.Add(t.W, n*t.Stride)), t.K)
		for m := range rows {
			x := unsafe.Slice(t.X[m], t.K)
			*at(t.Out[m], n) = rowF32(x, w)
		}
	}
}

func pureBF16(t *Tile, rows int) {
	for n := range t.N {
		w := unsafe.Slice((*uint16)(unsafe.Add(t.W, n*t.Stride)), t.K)
		for m := range rows {
			x := unsafe.Slice(t.X[m], convert.Padded(t.K))
			*at(t.Out[m], n) = rowBF16(x, w)
		}
	}
}

func at(p *float32, i int) *float32 {
	return (*float32)(unsafe.Add(unsafe.Pointer(p), 4*i))
}

// rowF32 keeps four partial sums, which a scalar core can overlap.
func rowF32(x, w []float32) float32 {
	var s0, s1, s2, s3 float32
	for len(x) >= 4 && len(w) >= 4 {
		s0 += x[0] * w[0]
		s1 += x[1] * w[1]
		s2 += x[2] * w[2]
		s3 += x[3] * w[3]
		x, w = x[4:], w[4:]
	}
	for i, v := range x {
		s0 += v * w[i]
	}
	return (s0 + s2) + (s1 + s3)
}

func rowBF16(x []float32, w []uint16) float32 {
	const half = convert.Block / 2
	var s0, s1, s2, s3 float32
	for len(w) >= convert.Block {
		even, odd := x[:half], x[half:convert.Block]
		block := w[:convert.Block]
		for i := 0; i < half; i += 2 {
			s0 += even[i] * tensor.BF16ToF32(block[2*i])
			s1 += odd[i] * tensor.BF16ToF32(block[2*i+1])
			s2 += even[i+1] * tensor.BF16ToF32(block[2*i+2])
			s3 += odd[i+1] * tensor.BF16ToF32(block[2*i+3])
		}
		x, w = x[convert.Block:], w[convert.Block:]
	}
	for i, v := range w {
		s0 += x[(i&1)*half+i/2] * tensor.BF16ToF32(v)
	}
	return (s0 + s2) + (s1 + s3)
}
