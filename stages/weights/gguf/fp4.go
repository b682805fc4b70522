package gguf

import "math"

// The types of four-bit floats (1 sign, 2 exponent, 1 mantissa bit; OCP microscaling formats
// 1.0).

// fp4Values are twice the values, so that they are whole; the scales are halved instead.
var fp4Values = [16]float32{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// decodeMXFP4: a byte e, then 32 values with the scale 2^(e-127).
func decodeMXFP4(dst []float32, src []byte) {
	d := halfPower(src[0])
	for j, b := range src[1:17] {
		dst[j] = d * fp4Values[b&15]
		dst[j+16] = d * fp4Values[b>>4]
	}
}

// halfPower is 2^(e-128); the two smallest are subnormal.
func halfPower(e byte) float32 {
	if e < 2 {
		return math.Float32frombits(0x00200000 << e)
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

// decodeNVFP4: four scales, then four groups of 16 values, each group as MXFP4's.
func decodeNVFP4(dst []float32, src []byte) {
	for g := range 4 {
		d := halfE4M3(src[g])
		for j, b := range src[4+8*g:][:8] {
			dst[g*16+j] = d * fp4Values[b&15]
			dst[g*16+j+8] = d * fp4Values[b>>4]
		}
	}
}

// halfE4M3 is half of a scale with 4 exponent bits (bias 7) and 3 mantissa bits. The sign bit
// is ignored. 0x7f, which is NaN elsewhere, is 0 in ggml.
func halfE4M3(b byte) float32 {
	exp, man := int(b>>3&15), float32(b&7)
	switch {
	case b == 0x7f:
		return 0
	case exp == 0:
		return man * 0x1p-9 * 0.5
	}
	return (1 + man/8) * float32(math.Ldexp(1, exp-7)) * 0.5
}
