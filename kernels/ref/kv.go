package ref

import (
	"math"

	"krater/kernels/tensor"
)

// F8E4M3 rounds to the nearest float8, ties to even. It saturates: values beyond 448, also
// infinities, become 448. NaN becomes zero, so that later tokens do not read a NaN from the cache.
// A NaN comes with the hidden state of a token, and that token's own logits show it.
func F8E4M3(x float32) uint8 {
	if x != x {
		return 0
	}
	var sign uint8
	if math.Signbit(float64(x)) {
		sign = 0x80
	}
	abs := math.Min(math.Abs(float64(x)), 448)
	// The distance of float8 values around abs is 2^(exponent-3), the smallest 2^-9.
	_, exponent := math.Frexp(abs) // abs = [0.5, 1) * 2^exponent
	step := math.Ldexp(1, max(exponent-1, -6)-3)
	rounded := float32(math.RoundToEven(abs/step) * step)
	for code := range uint8(0x7f) {
		if tensor.F8E4M3ToF32(code) == rounded {
			return sign | code
		}
	}
	panic("ref: rounded to what no float8 is")
}

// StoreRowsF8 is StoreRows into a cache of float8.
func StoreRowsF8(cache []uint8, src []float32, slots []int32, width int) {
	for i, slot := range slots {
		for c := range width {
			cache[int(slot)*width+c] = F8E4M3(src[i*width+c])
		}
	}
}

// WidenF8 returns what a cache of float8 holds.
func WidenF8(cache []uint8) []float32 {
	out := make([]float32, len(cache))
	for i, v := range cache {
		out[i] = tensor.F8E4M3ToF32(v)
	}
	return out
}

// StoreRowsI8 is StoreRows into a cache of integers: a group of values of a row shares a scale,
// scales [slots, width/group]. The arithmetic is that of QuantizeRows, in float32, except that
// nothing becomes NaN: magnitudes beyond 2^127 (the largest power of two that is still finite after
// rounding) count as 2^127, and NaN counts as zero for the reason given at F8E4M3.
func StoreRowsI8(cache []int8, scales, src []float32, slots []int32, width, group int) {
	const most = 0x1p127
	groups := width / group
	for i, slot := range slots {
		for g := range groups {
			x := make([]float32, group)
			for c := range x {
				if v := src[i*width+g*group+c]; v == v {
					x[c] = max(min(v, most), -most)
				}
			}
			q := cache[int(slot)*width+g*group:][:group]
			clear(q)
			scales[int(slot)*groups+g], _ = quantize(q, x)
		}
	}
}

// WidenI8 returns what a cache of integers holds.
func WidenI8(cache []int8, scales []float32, width, group int) []float32 {
	out := make([]float32, len(cache))
	for i, v := range cache {
		out[i] = float32(v) * scales[i/width*(width/group)+i%width/group]
	}
	return out
}
