package tensor

// The encodings with superblocks of 256 columns: groups of 16 or 32 columns have small integer
// scales, which are multiplied by the superblock's half-precision scale.

const superblock = 256

// scalesAndMins moves the eight 6-bit scales and minima of Q4_K and Q5_K: three times 64 bytes,
// byte 16*(g%4)+r of row r. The low nibbles of scales (high half: groups 4 to 7), those of minima,
// and the upper two bits: scales 0 to 3, scales 4 to 7, minima 0 to 3, minima 4 to 7.
func (p *fields) scalesAndMins(from int) {
	scales, mins, upper := p.aside(4), p.aside(4), p.aside(4)
	for g := range 8 {
		at, shift := 8*TileRows*(g%4), g/4*4
		scale, scale2, low, low2 := 8*(from+g), 8*(from+g)+4, 8*(from+g+4), 8*(from+g+4)+4
		if g >= 4 {
			scale, scale2, low, low2 = 8*(from+g+4), 8*(from+g-4)+6, 8*(from+g+4)+4, 8*(from+g)+6
		}
		p.move(true, scale, 4, scales+at+shift, 8)
		p.move(true, low, 4, mins+at+shift, 8)
		p.move(true, scale2, 2, upper+at+shift/2, 8)
		p.move(true, low2, 2, upper+at+shift/2+4, 8)
	}
}

// scaleMin unpacks the scale and the minimum, 6 bits each, of group g.
func scaleMin(packed []byte, g int) (scale, minimum byte) {
	if g < 4 {
		return packed[g] & 63, packed[g+4] & 63
	}
	return packed[g+4]&15 | packed[g-4]>>6<<4, packed[g+4]>>4 | packed[g]>>6<<4
}

// readScalesAndMins is the start of Q4_K and Q5_K.
func readScalesAndMins(x *IntegerRow, b []byte) {
	d, dmin := getHalf(b), getHalf(b[2:])
	for g := range 8 {
		s, m := scaleMin(b[4:16], g)
		x.Scales[g], x.Mins[g] = d*float32(s), dmin*float32(m)
	}
}

func twoHalves(b []byte, f func(float32)) {
	f(getHalf(b))
	f(getHalf(b[2:]))
}

// Q4_K has integers from 0 to 15 with scales and minima of 6 bits for 32 columns.
//
//	scales  [16 rows] half d, [16 rows] half dmin, 192 bytes of scales and minima
//	values  8 groups of 4 lines of nibbles
var Q4_K = blocks("q4_k", 4, stored{
	columns: superblock, bytes: 144, sub: 32, mins: true,
	fields: func(p *fields) {
		p.half(0)
		p.half(2)
		p.scalesAndMins(4)
		for g := range 8 {
			p.nibbles(func(c int) int { return 8*(16+g/2*32+c) + g%2*4 })
		}
	},
	integers: func(x *IntegerRow, b []byte) {
		readScalesAndMins(x, b)
		for g := range 8 {
			for j, q := range b[16+g/2*32:][:32] {
				x.Values[32*g+j] = int32(q >> (g % 2 * 4) & 15)
			}
		}
	},
	scales: twoHalves,
})

// Q5_K is Q4_K with a fifth bit.
//
//	scales  as Q4_K
//	values  8 groups of 4 lines of nibbles and a line of fifth bits: eight words of 64 bits, one
//	        for each four columns, bit 4r+j for row r and column j of them
var Q5_K = blocks("q5_k", 5, stored{
	columns: superblock, bytes: 176, sub: 32, mins: true,
	fields: func(p *fields) {
		p.half(0)
		p.half(2)
		p.scalesAndMins(4)
		for g := range 8 {
			p.nibbles(func(c int) int { return 8*(48+g/2*32+c) + g%2*4 })
			line := p.line(1)
			for c := range 32 {
				p.move(false, 8*(16+c)+g, 1, line+c/4*64+c%4, 4)
			}
		}
	},
	integers: func(x *IntegerRow, b []byte) {
		readScalesAndMins(x, b)
		for g := range 8 {
			for j, q := range b[48+g/2*32:][:32] {
				x.Values[32*g+j] = int32(q>>(g%2*4)&15 | b[16+j]>>g&1<<4)
			}
		}
	},
	scales: twoHalves,
})

// Q6_K has integers from -32 to 31 and signed scales of 8 bits for 16 columns.
//
//	scales  [16 rows] half d, then 8 groups of [2][16 rows] byte: scales
//	values  8 groups of 4 lines of nibbles and two of upper bits, each for 16 columns: in byte j
//	        of a row, bits 2i and 2i+1 for column 4i+j
var Q6_K = blocks("q6_k", 6, stored{
	columns: superblock, bytes: 210, sub: 16,
	fields: func(p *fields) {
		p.half(208)
		for g := range 8 {
			p.move(true, 8*(192+2*g), 8, p.aside(1), 8)
			p.move(true, 8*(193+2*g), 8, p.aside(1), 8)
			p.nibbles(func(c int) int { return 8*(g/4*64+g%2*32+c) + g%4/2*4 })
			line := p.line(2)
			for c := range 32 {
				p.move(false, 8*(128+g/4*32+c)+g%4*2, 2, line+c/16*8*lineBytes+8*(c%4)+c%16/4*2, 32)
			}
		}
	},
	integers: func(x *IntegerRow, b []byte) {
		d := getHalf(b[208:])
		for g := range 8 {
			x.Scales[2*g], x.Scales[2*g+1] = d*float32(int8(b[192+2*g])), d*float32(int8(b[193+2*g]))
			low, high := b[g/4*64+g%2*32:][:32], b[128+g/4*32:][:32]
			for j := range 32 {
				x.Values[32*g+j] = int32(low[j]>>(g%4/2*4)&15|high[j]>>(g%4*2)&3<<4) - 32
			}
		}
	},
	scales: func(b []byte, f func(float32)) { f(getHalf(b[208:])) },
})

// iq4Values are the values of IQ4_XS, finer near zero.
var iq4Values = [16]int32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// IQ4_XS has codes of a table and scales of 6 bits for 32 columns.
//
//	scales  [16 rows] half d; 64 bytes of the scales' low nibbles, byte 16*(g%4)+r, groups 4 to 7
//	        in the high half; 32 bytes of their upper bits, byte 16*(g%2)+r, bits 2*(g/2) and on
//	values  8 groups of 4 lines of nibbles
var IQ4_XS = blocks("iq4_xs", 4, stored{
	columns: superblock, bytes: 136, sub: 32,
	fields: func(p *fields) {
		p.half(0)
		low, upper := p.aside(4), p.aside(2)
		for g := range 8 {
			p.move(true, 8*(4+g/2)+g%2*4, 4, low+8*TileRows*(g%4)+g/4*4, 8)
			p.move(true, 8*2+2*g, 2, upper+8*TileRows*(g%2)+g/2*2, 8)
		}
		for g := range 8 {
			p.nibbles(apart16(8 * (8 + 16*g)))
		}
	},
	integers: func(x *IntegerRow, b []byte) {
		d, upper := getHalf(b), uint16(b[2])|uint16(b[3])<<8
		for g := range 8 {
			scale := int(b[4+g/2]>>(g%2*4)&15) | int(upper>>(2*g)&3)<<4
			x.Scales[g] = d * float32(scale-32)
			for c := range 32 {
				x.Values[32*g+c] = iq4Values[nibble(b[8+16*g:], c, 16)]
			}
		}
	},
	scales: func(b []byte, f func(float32)) { f(getHalf(b)) },
})
