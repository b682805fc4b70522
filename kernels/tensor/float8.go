package tensor

import "math"

// F8E4M3ToF32 widens one float8 "fn" value (1 sign, 4 exponent bits of bias 7, 3
// mantissa bits); exact. There are no infinities: 0x7f and 0xff are NaN, and the
// largest value is 448 (arXiv 2209.05433).
func F8E4M3ToF32(b uint8) float32 { return f8e4m3[b] }

// F8E5M2ToF32 widens one float8 value (1 sign, 5 exponent bits of bias 15, 2
// mantissa bits); exact. It is the upper half of a binary16.
func F8E5M2ToF32(b uint8) float32 { return F16ToF32(uint16(b) << 8) }

// F8E8M0ToF32 returns the scale 2^(b-127); 0xff is NaN (OCP microscaling formats
// 1.0). 2^-127 is subnormal in float32 and exact.
func F8E8M0ToF32(b uint8) float32 {
	switch b {
	case 0:
		return math.Float32frombits(1 << 22)
	case 0xff:
		return math.Float32frombits(0x7fc00000)
	}
	return math.Float32frombits(uint32(b) << 23)
}

// f8e4m3 holds all values: a table is faster than the branch for subnormals.
var f8e4m3 = func() (t [256]float32) {
	for i := range t {
		exp, man := i>>3&15, i&7
		var v float64
		switch {
		case i&0x7f == 0x7f:
			t[i] = math.Float32frombits(uint32(i&0x80)<<24 | 0x7fc00000)
			continue
		case exp == 0:
			v = math.Ldexp(float64(man), -9)
		default:
			v = math.Ldexp(float64(8+man), exp-10)
		}
		if i&0x80 != 0 {
			v = math.Copysign(v, -1)
		}
		t[i] = float32(v)
	}
	return t
}()
