package gguf

import (
	"encoding/binary"
	"math"

	"krater/kernels/tensor"
)

// The plain numbers.

func decodeF32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func decodeF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = half(src[2*i:])
	}
}

func decodeBF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = tensor.BF16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

func decodeF64(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
	}
}

func decodeI8(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(int8(src[i]))
	}
}

func decodeI16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(int16(binary.LittleEndian.Uint16(src[2*i:])))
	}
}

func decodeI32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(int32(binary.LittleEndian.Uint32(src[4*i:])))
	}
}

func decodeI64(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(int64(binary.LittleEndian.Uint64(src[8*i:])))
	}
}

// half reads the binary16 at the start of b.
func half(b []byte) float32 { return tensor.F16ToF32(binary.LittleEndian.Uint16(b)) }
