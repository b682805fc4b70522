package gguf

import (
	"encoding/binary"

	"krater/kernels/tensor/grid"
)

// The IQ types of one to three bits: eight or four values at a time are a row of a grid of
// good combinations (kernels/tensor/grid), with a sign for each in those of two bits and more.

// signs spreads the seven sign bits of eight values: the eighth makes their number even.
func signs(seven uint32) byte {
	b := byte(seven & 127)
	parity := b ^ b>>4
	parity ^= parity >> 2
	parity ^= parity >> 1
	return b | parity&1<<7
}

// spread writes d times the row of a grid, with the signs of bits.
func spread(dst []float32, d float32, row []float32, bits byte) {
	for j, v := range row {
		x := d * v
		if bits>>j&1 != 0 {
			x = -x
		}
		dst[j] = x
	}
}

// decodeIQ2_XXS: d, then for each 32 values four bytes of rows, and a word with four times
// seven signs and a scale.
func decodeIQ2_XXS(dst []float32, src []byte) {
	d := half(src)
	for g := range 8 {
		rows, word := src[2+8*g:][:4], binary.LittleEndian.Uint32(src[6+8*g:])
		db := d * (0.5 + float32(word>>28)) * 0.25
		for k, r := range rows {
			spread(dst[g*32+8*k:][:8], db, grid.IQ2_XXS.Row(int(r)), signs(word>>(7*k)))
		}
	}
}

// decodeIQ2_XS: d, 32 words of a row (9 bits) and seven signs, 16 scales of 16 values.
func decodeIQ2_XS(dst []float32, src []byte) {
	d, scales := half(src), src[66:74]
	for g := range 32 {
		db := d * (0.5 + float32(scales[g/4]>>(g%4/2*4)&15)) * 0.25
		word := binary.LittleEndian.Uint16(src[2+2*g:])
		spread(dst[8*g:][:8], db, grid.IQ2_XS.Row(int(word&511)), signs(uint32(word>>9)))
	}
}

// decodeIQ2_S: d, 32 bytes of rows, 32 of signs, 8 with the upper two bits of rows, 8 of scales.
func decodeIQ2_S(dst []float32, src []byte) {
	d, rows, sign, high, scales := half(src), src[2:34], src[34:66], src[66:74], src[74:82]
	for g := range 32 {
		db := d * (0.5 + float32(scales[g/4]>>(g%4/2*4)&15)) * 0.25
		row := int(rows[g]) | int(high[g/4]>>(g%4*2)&3)<<8
		spread(dst[8*g:][:8], db, grid.IQ2_S.Row(row), sign[g])
	}
}

// decodeIQ3_XXS: d, 64 bytes of rows of four values, then for each 32 values a word as in
// IQ2_XXS.
func decodeIQ3_XXS(dst []float32, src []byte) {
	d, rows := half(src), src[2:66]
	for g := range 8 {
		word := binary.LittleEndian.Uint32(src[66+4*g:])
		db := d * (0.5 + float32(word>>28)) * 0.5
		for k := range 8 {
			spread(dst[g*32+4*k:][:4], db, grid.IQ3_XXS.Row(int(rows[8*g+k])), signs(word>>(k/2*7))>>(k%2*4))
		}
	}
}

// decodeIQ3_S: d, 64 bytes of rows, 8 of their ninth bits, 32 of signs, 4 of scales.
func decodeIQ3_S(dst []float32, src []byte) {
	d, rows, high, sign, scales := half(src), src[2:66], src[66:74], src[74:106], src[106:110]
	for g := range 64 {
		db := d * float32(1+2*(scales[g/16]>>(g%16/8*4)&15))
		row := int(rows[g]) | int(high[g/8]>>(g%8)&1)<<8
		spread(dst[4*g:][:4], db, grid.IQ3_S.Row(row), sign[g/2]>>(g%2*4))
	}
}

// shift is the value that IQ1_S and IQ1_M add to each value of a row.
const shift = 0.125

// shifted writes d times the row of the grid, each value moved by the shift.
func shifted(dst []float32, d float32, row []float32, down bool) {
	delta := float32(shift)
	if down {
		delta = -shift
	}
	for j, v := range row {
		dst[j] = d * (v + delta)
	}
}

// decodeIQ1_S: d, 32 bytes of rows, then for each 32 values a word with the upper three bits
// of four rows, a scale, and the direction of the shift.
func decodeIQ1_S(dst []float32, src []byte) {
	d, rows := half(src), src[2:34]
	for g := range 8 {
		word := binary.LittleEndian.Uint16(src[34+2*g:])
		dl := d * float32(2*(word>>12&7)+1)
		for k := range 4 {
			row := int(rows[4*g+k]) | int(word>>(3*k)&7)<<8
			shifted(dst[g*32+8*k:][:8], dl, grid.IQ1.Row(row), word>>15 != 0)
		}
	}
}

// decodeIQ1_M: 32 bytes of rows, 16 with the upper three bits of two rows and their shifts,
// four words of four 3-bit scales each. The upper four bits of the words are d.
func decodeIQ1_M(dst []float32, src []byte) {
	rows, high := src[:32], src[32:48]
	var words [4]uint16
	var bits [2]byte
	for i := range words {
		words[i] = binary.LittleEndian.Uint16(src[48+2*i:])
		bits[i/2] |= byte(words[i]>>12) << (i % 2 * 4)
	}
	d := half(bits[:])
	for g := range 32 { // rows of eight values; two share a scale
		dl := d * float32(2*(words[g/8]>>(g/2%4*3)&7)+1)
		h := high[g/2] >> (g % 2 * 4)
		shifted(dst[8*g:][:8], dl, grid.IQ1.Row(int(rows[g])|int(h&7)<<8), h&8 != 0)
	}
}
