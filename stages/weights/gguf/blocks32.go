package gguf

import "encoding/binary"

// The types with blocks of 32 values and one binary16 scale, d: a value is d*q, or d*q+m in
// those that end in _1. Element j has the low half of byte j, element j+16 the high half.
//
// Products are converted to float32 before something is added to them, here and in the other
// files: else the compiler may round once instead of twice, and the bits differ from ggml's.

func decodeQ4_0(dst []float32, src []byte) {
	d := half(src)
	for j, b := range src[2:18] {
		dst[j] = d * float32(int(b&15)-8)
		dst[j+16] = d * float32(int(b>>4)-8)
	}
}

func decodeQ4_1(dst []float32, src []byte) {
	d, m := half(src), half(src[2:])
	for j, b := range src[4:20] {
		dst[j] = float32(d*float32(b&15)) + m
		dst[j+16] = float32(d*float32(b>>4)) + m
	}
}

// The fifth bits of Q5_0 and Q5_1 are in a word of their own, bit j for element j.

func decodeQ5_0(dst []float32, src []byte) {
	d, high := half(src), binary.LittleEndian.Uint32(src[2:])
	for j, b := range src[6:22] {
		dst[j] = d * float32(int(b&15)|int(high>>j&1)<<4-16)
		dst[j+16] = d * float32(int(b>>4)|int(high>>(j+16)&1)<<4-16)
	}
}

func decodeQ5_1(dst []float32, src []byte) {
	d, m, high := half(src), half(src[2:]), binary.LittleEndian.Uint32(src[4:])
	for j, b := range src[8:24] {
		dst[j] = float32(d*float32(int(b&15)|int(high>>j&1)<<4)) + m
		dst[j+16] = float32(d*float32(int(b>>4)|int(high>>(j+16)&1)<<4)) + m
	}
}

func decodeQ8_0(dst []float32, src []byte) {
	d := half(src)
	for j, b := range src[2:34] {
		dst[j] = d * float32(int8(b))
	}
}
