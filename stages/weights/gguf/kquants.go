package gguf

import (
	"encoding/binary"
	"math"
)

// The K types: superblocks of 256 values whose groups of 16 or 32 have small integer scales,
// which are multiplied by the superblock's binary16 scale.

// decodeQ2_K: 16 bytes of scale (low half) and minimum (high half), 64 bytes of values, d, dmin.
func decodeQ2_K(dst []float32, src []byte) {
	scales, q := src[:16], src[16:80]
	d, dmin := half(src[80:]), half(src[82:])
	for g := range 16 { // groups of 16; each 32 bytes hold eight of them, two bits of a byte a group
		dl, ml := d*float32(scales[g]&15), dmin*float32(scales[g]>>4)
		at, shift := g/8*32+g%2*16, g%8/2*2
		for j := range 16 {
			dst[g*16+j] = float32(dl*float32(q[at+j]>>shift&3)) - ml
		}
	}
}

// decodeQ3_K: 32 bytes of high bits, 64 bytes of low ones, 12 bytes of 6-bit scales, d. A
// high bit that is 0 means minus 4.
func decodeQ3_K(dst []float32, src []byte) {
	high, q, packed := src[:32], src[32:96], src[96:108]
	d := half(src[108:])
	for g := range 16 {
		scale := packed[g%8]>>(g/8*4)&15 | packed[8+g%4]>>(g/4*2)&3<<4
		dl := d * float32(int(scale)-32)
		at, shift, bit := g/8*32+g%2*16, g%8/2*2, g/2
		for j := range 16 {
			v := int(q[at+j]>>shift&3) - 4 + int(high[g%2*16+j]>>bit&1)<<2
			dst[g*16+j] = dl * float32(v)
		}
	}
}

// scaleMin unpacks the scale and the minimum, 6 bits each, of group g of 8 in a Q4_K or Q5_K
// superblock.
func scaleMin(packed []byte, g int) (scale, minimum byte) {
	if g < 4 {
		return packed[g] & 63, packed[g+4] & 63
	}
	return packed[g+4]&15 | packed[g-4]>>6<<4, packed[g+4]>>4 | packed[g]>>6<<4
}

// decodeQ4_K: d, dmin, 12 bytes of scales and minima of groups of 32, 128 bytes of values, of
// which each 32 hold two groups.
func decodeQ4_K(dst []float32, src []byte) {
	d, dmin, packed, q := half(src), half(src[2:]), src[4:16], src[16:144]
	for g := range 8 {
		s, m := scaleMin(packed, g)
		dl, ml := d*float32(s), dmin*float32(m)
		for j, b := range q[g/2*32:][:32] {
			dst[g*32+j] = float32(dl*float32(b>>(g%2*4)&15)) - ml
		}
	}
}

// decodeQ5_K: as Q4_K, with 32 bytes of fifth bits before the values, bit g of each for group g.
func decodeQ5_K(dst []float32, src []byte) {
	d, dmin, packed, high, q := half(src), half(src[2:]), src[4:16], src[16:48], src[48:176]
	for g := range 8 {
		s, m := scaleMin(packed, g)
		dl, ml := d*float32(s), dmin*float32(m)
		for j, b := range q[g/2*32:][:32] {
			dst[g*32+j] = float32(dl*float32(b>>(g%2*4)&15|high[j]>>g&1<<4)) - ml
		}
	}
}

// decodeQ6_K: 128 bytes of low halves, 64 bytes of two high bits, 16 signed scales, d. Each
// half of the superblock is four runs of 32 values.
func decodeQ6_K(dst []float32, src []byte) {
	low, high, scales, d := src[:128], src[128:192], src[192:208], half(src[208:])
	for r := range 8 { // runs of 32
		l, h := low[r/4*64+r%2*32:][:32], high[r/4*32:][:32]
		for j := range 32 {
			v := int(l[j]>>(r%4/2*4)&15|h[j]>>(r%4*2)&3<<4) - 32
			dst[r*32+j] = d * float32(int8(scales[r*2+j/16])) * float32(v)
		}
	}
}

// decodeQ8_K: a float32 scale, 256 signed bytes, and sums of groups that only products use.
func decodeQ8_K(dst []float32, src []byte) {
	d := math.Float32frombits(binary.LittleEndian.Uint32(src))
	for j, b := range src[4:260] {
		dst[j] = d * float32(int8(b))
	}
}
