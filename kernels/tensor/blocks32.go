package tensor

import "math"

// The encodings whose blocks are 32 or 64 columns, with their scales as floats. A block is described
// at stages/weights/gguf, where the functions that decode it are.

// Q4_0 has integers from -8 to 7 and a half-precision scale for 32 columns.
//
//	scales  [16 rows] half: d
//	values  4 lines of nibbles
var Q4_0 = blocks("q4_0", 4, stored{
	columns: 32, bytes: 18, sub: 32,
	fields: func(p *fields) {
		p.half(0)
		p.nibbles(apart16(8 * 2))
	},
	integers: func(x *IntegerRow, b []byte) {
		x.Scales[0] = getHalf(b)
		for c := range 32 {
			x.Values[c] = int32(nibble(b[2:], c, 16)) - 8
		}
	},
	scales: func(b []byte, f func(float32)) { f(getHalf(b)) },
})

// apart16 is where ggml has the nibble of a column of 32: columns c and c+16 share a byte.
func apart16(first int) func(int) int {
	return func(c int) int { return first + 8*(c%16) + c/16*4 }
}

// nibble is the code of column c where columns c and c+half share a byte.
func nibble(b []byte, c, half int) byte { return b[c%half] >> (c / half * 4) & 15 }

// fp4Values are twice the values of a 4-bit float with 2 exponent bits and 1 mantissa bit (OCP
// microscaling formats 1.0), so that they are whole; scales are halved.
var fp4Values = [16]int32{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// MXFP4 has 4-bit floats and a power of two for 32 columns.
//
//	scales  [16 rows] byte e: the scale is 2^(e-127), of doubled values 2^(e-128)
//	values  4 lines of nibbles
var MXFP4 = blocks("mxfp4", 4, stored{
	columns: 32, bytes: 17, sub: 32,
	fields: func(p *fields) {
		p.move(true, 0, 8, p.aside(1), 8)
		p.nibbles(apart16(8))
	},
	integers: func(x *IntegerRow, b []byte) {
		x.Scales[0] = HalfPower(b[0])
		for c := range 32 {
			x.Values[c] = fp4Values[nibble(b[1:], c, 16)]
		}
	},
	scales: func(b []byte, f func(float32)) {
		if b[0] == 255 { // NaN
			f(float32(math.NaN()))
		}
	},
})

// HalfPower is 2^(e-128); the two smallest are subnormal.
func HalfPower(e byte) float32 {
	if e < 2 {
		return math.Float32frombits(0x00200000 << e)
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

// NVFP4 has 4-bit floats and, for 16 columns, a scale of 4 exponent and 3 mantissa bits.
//
//	scales  2 x [2 groups of 16 columns][16 rows] byte: a scale
//	values  2 x 4 lines of nibbles
var NVFP4 = blocks("nvfp4", 4, nvfp4)

// NVFP4Scaled has the blocks of NVFP4 and a factor for each row, that of its tensor: scales are
// multiplied by it, or divided by its magnitude if it is negative.
//
//	scales  [16 rows] float32: the factors, then those of NVFP4
var NVFP4Scaled = blocks("nvfp4_scaled", 4, func() stored {
	s := nvfp4
	s.share, s.scale = wholeRow, func(s, factor float32) float32 {
		if factor < 0 {
			return s / -factor
		}
		return s * factor
	}
	return s
}())

var nvfp4 = stored{
	columns: 64, bytes: 36, sub: 16,
	fields: func(p *fields) {
		for g := range 4 {
			p.move(true, 8*g, 8, p.aside(1), 8)
		}
		for g := range 2 {
			p.nibbles(func(c int) int { return 8*(4+16*g+8*(c/16)+c%8) + c%16/8*4 })
		}
	},
	integers: func(x *IntegerRow, b []byte) {
		for g := range 4 {
			x.Scales[g] = halfE4M3(b[g])
			for c := range 16 {
				x.Values[16*g+c] = fp4Values[nibble(b[4+8*g:], c, 8)]
			}
		}
	},
	scales: func(b []byte, f func(float32)) {
		for _, s := range b[:4] {
			if s >= 0x7f { // NaN, or a sign that the type does not have
				f(float32(math.NaN()))
			} else {
				f(halfE4M3(s))
			}
		}
	},
}

// halfE4M3 is half of a scale with 4 exponent bits (bias 7) and 3 mantissa bits, unsigned.
func halfE4M3(b byte) float32 { return F16ToF32(uint16(b&0x7f)<<7) * 128 }

// FP8 has 8-bit floats of 4 exponent and 3 mantissa bits (arXiv 2209.05433) and a float32 factor for
// 128 columns of a row, or fewer at its end: of blocks of 128 by 128, or of a whole row or tensor,
// every row has the factors of its own.
//
//	scales  [cols/128][16 rows] float32: the factors
//	values  8 lines: four columns a dword
var FP8 = blocks("fp8", 8, stored{
	columns: 32, bytes: 32, sub: 32, share: FP8Share,
	fields: func(p *fields) {
		for four := range 8 {
			p.wordBytes(4 * four)
		}
	},
	integers: func(x *IntegerRow, b []byte) {
		x.Scales[0] = fp8Unit
		for c, code := range b {
			x.Values[c] = fp8Values[code]
		}
	},
	scales: func(b []byte, f func(float32)) {
		f(fp8Unit)
		for _, code := range b {
			if code&0x7f == 0x7f {
				f(float32(math.NaN()))
			}
		}
	},
	scale: func(s, factor float32) float32 { return s * factor },
})

const (
	// FP8Share is the number of columns that share a factor of FP8.
	FP8Share = 128
	// fp8Unit is the smallest number of the type: values are multiples of it, up to 448 times 512.
	fp8Unit = 1.0 / 512
)

var fp8Values = func() (t [256]int32) {
	for i := range t {
		if v := F8E4M3ToF32(uint8(i)); v == v {
			t[i] = int32(v / fp8Unit)
		}
	}
	return t
}()
