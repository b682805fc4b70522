package tensor

import "math"

// F16ToF32 widens one IEEE binary16; exact. A NaN keeps its payload and becomes
// quiet.
func F16ToF32(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, man := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0: // zero or subnormal: man * 2^-24
		f := float32(man) * 0x1p-24
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 0x1f:
		if man != 0 {
			man |= 0x200
		}
		return math.Float32frombits(sign | 0x7f800000 | man<<13)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | man<<13)
}

// F32ToF16 rounds to the nearest IEEE binary16, ties to even. What is beyond the largest
// becomes the largest, infinity too; NaN stays NaN.
func F32ToF16(v float32) uint16 {
	bits := math.Float32bits(v)
	sign, abs := uint16(bits>>16&0x8000), bits&^(1<<31)
	switch {
	case abs > 0x7f800000:
		return sign | 0x7e00
	case abs >= 0x477ff000: // 65520, from which on nothing rounds to 65504
		return sign | 0x7bff
	case abs < 0x38800000: // below 2^-14 a half's last bit is 2^-24, as is that of 0.5
		return sign | uint16(math.Float32bits(math.Float32frombits(abs)+0.5)-math.Float32bits(0.5))
	}
	return sign | uint16((abs+0xfff+abs>>13&1)>>13-(127-15)<<10)
}
