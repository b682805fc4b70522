package gguf

import "encoding/binary"

// The types whose four-bit codes stand for values of a table.

// iq4Values are the values of IQ4_NL and IQ4_XS, finer near zero.
var iq4Values = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

func decodeIQ4_NL(dst []float32, src []byte) {
	d := half(src)
	for j, b := range src[2:18] {
		dst[j] = d * iq4Values[b&15]
		dst[j+16] = d * iq4Values[b>>4]
	}
}

// decodeIQ4_XS: d, 16 bits with the upper two bits of each group's scale, 4 bytes with the
// lower four, 128 bytes of codes.
func decodeIQ4_XS(dst []float32, src []byte) {
	d, high := half(src), binary.LittleEndian.Uint16(src[2:])
	for g := range 8 {
		scale := int(src[4+g/2]>>(g%2*4)&15) | int(high>>(2*g)&3)<<4
		dl := d * float32(scale-32)
		for j, b := range src[8+16*g:][:16] {
			dst[g*32+j] = dl * iq4Values[b&15]
			dst[g*32+j+16] = dl * iq4Values[b>>4]
		}
	}
}
