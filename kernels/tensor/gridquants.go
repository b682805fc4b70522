package tensor

import (
	"encoding/binary"
	"math/bits"

	"krater/kernels/tensor/grid"
)

// The encodings of two and three bits: eight or four columns at a time are a row of a table (package
// grid), with a sign for each column. On a CPU a line of rows of a table has, for row r of the
// matrix, bytes 4r to 4r+3: the rows of columns 0, 8, 16 and 24 of a group and the columns that
// follow. A line of signs has a dword for each row of the matrix, as the file does.

// signs spreads seven sign bits of eight columns: the eighth makes their number even.
func signs(seven uint32) uint32 {
	seven &= 127
	return seven | uint32(bits.OnesCount32(seven)&1)<<7
}

// spread writes a row of a table with the signs of b.
func spread(dst []int32, row []float32, b uint32) {
	for j, v := range row {
		dst[j] = int32(v)
		if b>>j&1 != 0 {
			dst[j] = -dst[j]
		}
	}
}

func firstHalf(b []byte, f func(float32)) { f(getHalf(b)) }

// IQ2_XXS has rows of eight columns and a 4-bit scale for 32.
//
//	scales  [16 rows] half d
//	values  8 groups of a line of rows, a line of signs: four times 7 bits, then the scale
var IQ2_XXS = blocks("iq2_xxs", 2, stored{
	columns: superblock, bytes: 66, sub: 32,
	fields: func(p *fields) {
		p.half(0)
		for g := range 8 {
			p.wordBytes(2 + 8*g)
			p.wordBytes(6 + 8*g)
		}
	},
	integers: func(x *IntegerRow, b []byte) {
		d := getHalf(b)
		for g := range 8 {
			rows, word := b[2+8*g:][:4], binary.LittleEndian.Uint32(b[6+8*g:])
			x.Scales[g] = d * (0.5 + float32(word>>28)) * 0.25
			for k, r := range rows {
				spread(x.Values[32*g+8*k:], grid.IQ2_XXS.Row(int(r)), signs(word>>(7*k)))
			}
		}
	},
	scales: firstHalf,
})

// IQ2_XS has rows of eight columns, chosen by nine bits, and 4-bit scales for 16.
//
//	scales  [16 rows] half d, then 8 groups of [16 rows] byte: two scales
//	values  8 groups of a line of the lower eight bits of rows, a line of signs: four times 7 bits,
//	        then the four ninth bits
var IQ2_XS = blocks("iq2_xs", 2, stored{
	columns: superblock, bytes: 74, sub: 16,
	fields: func(p *fields) {
		p.half(0)
		for g := range 8 {
			p.move(true, 8*(66+g), 8, p.aside(1), 8)
			rows, sign := p.line(1), p.line(1)
			for k := range 4 {
				word := 8 * (2 + 8*g + 2*k)
				p.move(false, word, 8, rows+8*k, 32)
				p.move(false, word+8, 1, sign+28+k, 32)
				p.move(false, word+9, 7, sign+7*k, 32)
			}
		}
	},
	integers: func(x *IntegerRow, b []byte) {
		d := getHalf(b)
		for k := range 32 {
			x.Scales[k/2] = d * (0.5 + float32(b[66+k/4]>>(k%4/2*4)&15)) * 0.25
			word := binary.LittleEndian.Uint16(b[2+2*k:])
			spread(x.Values[8*k:], grid.IQ2_XS.Row(int(word&511)), signs(uint32(word>>9)))
		}
	},
	scales: firstHalf,
})

// IQ3_XXS has rows of four columns and a 4-bit scale for 32.
//
//	scales  [16 rows] half d
//	values  8 groups of a line of rows whose columns are 0 to 3 of eight, one of those that are 4
//	        to 7, and a line of signs: four times 7 bits, then the scale
var IQ3_XXS = blocks("iq3_xxs", 3, stored{
	columns: superblock, bytes: 98, sub: 32,
	fields: func(p *fields) {
		p.half(0)
		for g := range 8 {
			p.quads(2 + 8*g)
			p.wordBytes(66 + 4*g)
		}
	},
	integers: func(x *IntegerRow, b []byte) {
		d := getHalf(b)
		for g := range 8 {
			word := binary.LittleEndian.Uint32(b[66+4*g:])
			x.Scales[g] = d * (0.5 + float32(word>>28)) * 0.5
			for k := range 8 {
				spread(x.Values[32*g+4*k:], grid.IQ3_XXS.Row(int(b[2+8*g+k])), signs(word>>(k/2*7))>>(k%2*4))
			}
		}
	},
	scales: firstHalf,
})

// quads moves eight rows of four columns to two lines.
func (p *fields) quads(from int) {
	even, odd := p.line(1), p.line(1)
	for k := range 4 {
		p.move(false, 8*(from+2*k), 8, even+8*k, 32)
		p.move(false, 8*(from+2*k+1), 8, odd+8*k, 32)
	}
}

// IQ3_S has rows of four columns, chosen by nine bits, and a 4-bit scale for 32.
//
//	scales  [16 rows] half d; 64 bytes of scales, byte 16*(g%4)+r, groups 4 to 7 in the high half;
//	        then 8 groups of two words of 64 bits: the ninth bits of the two lines of rows, bit
//	        4r+k
//	values  8 groups of two lines of rows, as IQ3_XXS, and a line of signs, 32 a row
var IQ3_S = blocks("iq3_s", 3, stored{
	columns: superblock, bytes: 110, sub: 32,
	fields: func(p *fields) {
		p.half(0)
		scales := p.aside(4)
		for g := range 8 {
			p.move(true, 8*(106+g/2)+g%2*4, 4, scales+8*TileRows*(g%4)+g/4*4, 8)
			p.quads(2 + 8*g)
			ninth := p.aside(1)
			for k := range 8 {
				p.move(true, 8*(66+g)+k, 1, ninth+k%2*64+k/2, 4)
			}
			p.wordBytes(74 + 4*g)
		}
	},
	integers: func(x *IntegerRow, b []byte) {
		d := getHalf(b)
		for g := range 8 {
			x.Scales[g] = d * float32(1+2*(b[106+g/2]>>(g%2*4)&15))
			for k := range 8 {
				row := int(b[2+8*g+k]) | int(b[66+g]>>k&1)<<8
				spread(x.Values[32*g+4*k:], grid.IQ3_S.Row(row), uint32(b[74+4*g+k/2]>>(k%2*4)))
			}
		}
	},
	scales: firstHalf,
})
