package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"krater/kernels/tensor"
)

// encoders make one block, or any number of plain numbers. They are plain: each scale comes from
// the largest value or the range of its group, without a search for the least error.
var encoders = map[Type]func(dst []byte, src []float32){
	F32: encodeF32, F16: encodeF16, BF16: encodeBF16, Q4_0: encodeQ4_0, Q8_0: encodeQ8_0, Q4_K: encodeQ4_K, Q5_K: encodeQ5_K, Q6_K: encodeQ6_K,
	IQ4_XS: encodeIQ4_XS, IQ3_XXS: encodeIQ3_XXS, IQ2_XS: encodeIQ2_XS, IQ2_XXS: encodeIQ2_XXS, MXFP4: encodeMXFP4,
}

// Encode is the inverse of Decode, up to rounding: for F32, F16, BF16, the types of encoders, and IQ3_S.
// The values must be finite.
func (t Type) Encode(dst []byte, src []float32) error { return t.EncodeWeighted(dst, src, nil) }

// EncodeWeighted is Encode where the error of each value counts as weight says [len(src)]; nil: all
// alike. Only IQ3_S looks at it.
func (t Type) EncodeWeighted(dst []byte, src, weight []float32) error {
	encode, ok := encoders[t]
	if t == IQ3_S {
		if weight == nil {
			weight = slices.Repeat([]float32{1}, len(src))
		}
		ok = len(weight) == len(src)
	}
	if !ok {
		return fmt.Errorf("%w %s: it is not written", ErrType, t)
	}
	b := t.Block()
	n := len(src) / b.Elements
	if len(src)%b.Elements != 0 || len(dst) != n*b.Bytes {
		return fmt.Errorf("%w: %d values for %d bytes of %s; a block of %d takes %d", ErrLength, len(src), len(dst), t, b.Elements, b.Bytes)
	}
	if b.Elements == 1 {
		encode(dst, src)
		return nil
	}
	for i := range n {
		if t == IQ3_S {
			encodeIQ3S(dst[i*b.Bytes:][:b.Bytes], src[i*b.Elements:][:b.Elements], weight[i*b.Elements:][:b.Elements])
			continue
		}
		encode(dst[i*b.Bytes:][:b.Bytes], src[i*b.Elements:][:b.Elements])
	}
	return nil
}

func encodeF32(dst []byte, src []float32) {
	for i, v := range src {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
	}
}

func encodeF16(dst []byte, src []float32) {
	for i, v := range src {
		putHalf(dst[2*i:], v)
	}
}

func encodeBF16(dst []byte, src []float32) {
	for i, v := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], tensor.F32ToBF16(v))
	}
}

// encodeQ4_0: the value of the largest size becomes -8.
func encodeQ4_0(dst []byte, src []float32) {
	d := extreme(src) / -8
	inv := inverse(d)
	putHalf(dst, d)
	code := func(v float32) byte { return byte(min(max(int(float32(v*inv)+8.5), 0), 15)) }
	for j := range 16 {
		dst[2+j] = code(src[j]) | code(src[j+16])<<4
	}
}

func encodeQ8_0(dst []byte, src []float32) {
	d := float32(math.Abs(float64(extreme(src)))) / 127
	inv := inverse(d)
	putHalf(dst, d)
	for j, v := range src {
		dst[2+j] = byte(int8(round(v * inv)))
	}
}

func encodeQ4_K(dst []byte, src []float32) {
	codes := encodeK(dst, src, 15)
	q := dst[16:144]
	clear(q)
	for i, c := range codes {
		q[i/64*32+i%32] |= c << (i / 32 % 2 * 4)
	}
}

func encodeQ5_K(dst []byte, src []float32) {
	codes := encodeK(dst, src, 31)
	high, q := dst[16:48], dst[48:176]
	clear(dst[16:176])
	for i, c := range codes {
		q[i/64*32+i%32] |= c & 15 << (i / 32 % 2 * 4)
		high[i%32] |= c >> 4 << (i / 32)
	}
}

// encodeK writes the scales of Q4_K and Q5_K, and returns codes up to top. A group's minimum is 0 or
// below it, its scale the range in steps of top; the largest of each is 63 times d or dmin.
func encodeK(dst []byte, src []float32, top float32) (codes [superblock]byte) {
	var scales, minima [8]float32
	for g := range 8 {
		low, high := float32(0), float32(0)
		for _, v := range src[32*g:][:32] {
			low, high = min(low, v), max(high, v)
		}
		scales[g], minima[g] = (high-low)/top, -low
	}
	d, dmin := putHalf(dst, extreme(scales[:])/63), putHalf(dst[2:], extreme(minima[:])/63)
	packed := dst[4:16]
	clear(packed)
	for g := range 8 {
		s, m := byte(min(round(scales[g]*inverse(d)), 63)), byte(min(round(minima[g]*inverse(dmin)), 63))
		if g < 4 {
			packed[g], packed[g+4] = packed[g]|s, packed[g+4]|m
		} else {
			packed[g+4] = s&15 | m<<4
			packed[g-4] |= s >> 4 << 6
			packed[g] |= m >> 4 << 6
		}
		inv, low := inverse(d*float32(s)), dmin*float32(m)
		for j, v := range src[32*g:][:32] {
			codes[32*g+j] = byte(min(max(round((v+low)*inv), 0), int(top)))
		}
	}
	return codes
}

// encodeIQ4_XS: the value of the largest size in a group becomes -127; the largest scale is -32 times
// d.
func encodeIQ4_XS(dst []byte, src []float32) {
	var scales [8]float32
	for g := range scales {
		scales[g] = extreme(src[32*g:][:32]) / -127
	}
	d := putHalf(dst, extreme(scales[:])/-32)
	clear(dst[2:136])
	var high uint16
	for g, scale := range scales {
		s := min(max(round(scale*inverse(d)), -32), 31)
		dst[4+g/2] |= byte(s+32) & 15 << (g % 2 * 4)
		high |= uint16(s+32) >> 4 << (2 * g)
		inv := inverse(d * float32(s))
		for j, v := range src[32*g:][:32] {
			dst[8+16*g+j%16] |= nearestCode(&iq4Values, v*inv) << (j / 16 * 4)
		}
	}
	binary.LittleEndian.PutUint16(dst[2:], high)
}

// encodeMXFP4: the scale is the power of two that brings the largest value to 4 or more and below 8
// (OCP microscaling formats 1.0, 6.3).
func encodeMXFP4(dst []byte, src []float32) {
	clear(dst)
	top := math.Abs(float64(extreme(src)))
	if top == 0 {
		return
	}
	e := min(max(math.Ilogb(top)-2+127, 0), 254)
	dst[0] = byte(e)
	inv := inverse(halfPower(byte(e)))
	for j, v := range src {
		dst[1+j%16] |= nearestCode(&fp4Values, v*inv) << (j / 16 * 4)
	}
}

// nearestCode returns the code whose value is nearest to v, the lower one of two.
func nearestCode(values *[16]float32, v float32) (best byte) {
	least := float32(math.Inf(1))
	for c, x := range values {
		if d := float32(math.Abs(float64(v - x))); d < least {
			least, best = d, byte(c)
		}
	}
	return best
}

// encodeQ6_K: the value of the largest size in a group of 16 becomes -32; the largest scale is
// -128 times d.
func encodeQ6_K(dst []byte, src []float32) {
	var scales [16]float32
	for g := range scales {
		scales[g] = extreme(src[16*g:][:16]) / -32
	}
	d := putHalf(dst[208:], extreme(scales[:])/-128)
	low, high := dst[:128], dst[128:192]
	clear(dst[:192])
	for g := range scales {
		s := int8(min(round(scales[g]*inverse(d)), 127))
		dst[192+g] = byte(s)
		inv := inverse(d * float32(s))
		for j, v := range src[16*g:][:16] {
			code := byte(min(max(round(v*inv), -32), 31) + 32)
			r, at := g/2, g%2*16+j // as in decodeQ6_K
			low[r/4*64+r%2*32+at] |= code & 15 << (r % 4 / 2 * 4)
			high[r/4*32+at] |= code >> 4 << (r % 4 * 2)
		}
	}
}

// extreme returns the value of the largest size, with its sign.
func extreme(x []float32) (e float32) {
	for _, v := range x {
		if math.Abs(float64(v)) > math.Abs(float64(e)) {
			e = v
		}
	}
	return e
}

// inverse is 1/d, and 0 for 0.
func inverse(d float32) float32 {
	if d == 0 {
		return 0
	}
	return 1 / d
}

// round is to nearest, halves away from zero.
func round(v float32) int { return int(math.Round(float64(v))) }

// putHalf stores the binary16 next to v, and returns its value.
func putHalf(dst []byte, v float32) float32 {
	h := toHalf(v)
	binary.LittleEndian.PutUint16(dst, h)
	return tensor.F16ToF32(h)
}

// toHalf rounds to the nearest binary16, ties to even; what is too large becomes infinite.
func toHalf(v float32) uint16 {
	bits := math.Float32bits(v)
	sign, size := uint16(bits>>16)&0x8000, bits&0x7fffffff
	switch {
	case size > 0x7f800000: // NaN
		return sign | 0x7e00
	case size >= 0x477ff000: // 65520 and more
		return sign | 0x7c00
	case size < 0x38800000: // below 2^-14: a multiple of 2^-24
		return sign | uint16(math.RoundToEven(float64(math.Float32frombits(size))*0x1p24))
	}
	size += 0xfff + size>>13&1
	return sign | uint16((size-0x38000000)>>13)
}
