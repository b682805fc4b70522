package scaled

import (
	"math"

	"krater/kernels/tensor"
)

// The numbers that codes stand for.
var (
	e4m3Values = table(tensor.F8E4M3ToF32)
	int8Values = table(func(b uint8) float32 { return float32(int8(b)) })
	// Of pack-quantized integers: the least is 0.
	packedInt8Values = table(func(b uint8) float32 { return float32(int(b) - 128) })
	packedInt4Values = table(func(b uint8) float32 { return float32(int(b&15) - 8) })
	e2m1Values       = table(e2m1)
	e2m1Doubles      = table(func(b uint8) float32 { return 2 * e2m1(b) })
)

func table(f func(uint8) float32) *[256]float32 {
	var t [256]float32
	for i := range t {
		t[i] = f(uint8(i))
	}
	return &t
}

// e2m1 widens a 4-bit float: 1 sign, 2 exponent bits of bias 1, 1 mantissa bit (OCP microscaling
// formats 1.0). Its zeros have a sign.
func e2m1(b uint8) float32 {
	v := [8]float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}[b&7]
	if b&8 != 0 {
		v = math.Copysign(v, -1)
	}
	return float32(v)
}
