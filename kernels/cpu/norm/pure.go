package norm

import (
	"unsafe"

	"krater/kernels/tensor"
)

var pure = Funcs{SumSquares: pureSumSquares, AddSumSquares: pureAddSumSquares, MulF32: pureMulF32, MulBF16: pureMulBF16}

func pureSumSquares(x *float32, n int) float32 {
	var even, odd float32
	for i, v := range unsafe.Slice(x, n) {
		if i&1 == 0 {
			even += v * v
		} else {
			odd += v * v
		}
	}
	return even + odd
}

func pureAddSumSquares(x, delta *float32, n int) float32 {
	xs := unsafe.Slice(x, n)
	for i, v := range unsafe.Slice(delta, n) {
		xs[i] += v
	}
	return pureSumSquares(x, n)
}

func pureMulF32(out, x, w *float32, n int, scale float32) {
	o, xs := unsafe.Slice(out, n), unsafe.Slice(x, n)
	for i, v := range unsafe.Slice(w, n) {
		o[i] = xs[i] * scale * v
	}
}

func pureMulBF16(out, x *float32, w *uint16, n int, scale float32) {
	o, xs := unsafe.Slice(out, n), unsafe.Slice(x, n)
	for i, v := range unsafe.Slice(w, n) {
		o[i] = xs[i] * scale * tensor.BF16ToF32(v)
	}
}
