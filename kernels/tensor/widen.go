package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Widen converts the little-endian elements of src to float32. Everything up to
// F32 that is a floating-point type is exact; F64 and integers of more than 24
// bits round to nearest. len(src) must be len(dst) elements of dt.
func Widen(dst []float32, dt DType, src []byte) error {
	size := dt.Size()
	if size == 0 || len(src) != len(dst)*size {
		return fmt.Errorf("tensor: %d bytes are not %d elements of %s", len(src), len(dst), dt)
	}
	le := binary.LittleEndian
	switch dt {
	case BF16:
		// A GPU's rows come as BF16 for every token, and layers wait for them: so without a call per value, and four at once.
		for ; len(dst) >= 4 && len(src) >= 8; dst, src = dst[4:], src[8:] {
			x, d := le.Uint64(src), dst[:4]
			d[0], d[1] = math.Float32frombits(uint32(x)<<16), math.Float32frombits(uint32(x)&0xffff0000)
			d[2], d[3] = math.Float32frombits(uint32(x>>32)<<16), math.Float32frombits(uint32(x>>32)&0xffff0000)
		}
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(le.Uint16(src[2*i:])) << 16)
		}
	case F32:
		each(dst, src, 4, func(b []byte) float32 { return math.Float32frombits(le.Uint32(b)) })
	case F16:
		each(dst, src, 2, func(b []byte) float32 { return F16ToF32(le.Uint16(b)) })
	case F64:
		each(dst, src, 8, func(b []byte) float32 { return float32(math.Float64frombits(le.Uint64(b))) })
	case F8E4M3:
		each(dst, src, 1, func(b []byte) float32 { return F8E4M3ToF32(b[0]) })
	case F8E5M2:
		each(dst, src, 1, func(b []byte) float32 { return F8E5M2ToF32(b[0]) })
	case F8E8M0:
		each(dst, src, 1, func(b []byte) float32 { return F8E8M0ToF32(b[0]) })
	case Bool, U8:
		each(dst, src, 1, func(b []byte) float32 { return float32(b[0]) })
	case I8:
		each(dst, src, 1, func(b []byte) float32 { return float32(int8(b[0])) })
	case U16:
		each(dst, src, 2, func(b []byte) float32 { return float32(le.Uint16(b)) })
	case I16:
		each(dst, src, 2, func(b []byte) float32 { return float32(int16(le.Uint16(b))) })
	case U32:
		each(dst, src, 4, func(b []byte) float32 { return float32(le.Uint32(b)) })
	case I32:
		each(dst, src, 4, func(b []byte) float32 { return float32(int32(le.Uint32(b))) })
	case U64:
		each(dst, src, 8, func(b []byte) float32 { return float32(le.Uint64(b)) })
	case I64:
		each(dst, src, 8, func(b []byte) float32 { return float32(int64(le.Uint64(b))) })
	}
	return nil
}

// each applies one conversion to elements of size bytes.
func each(dst []float32, src []byte, size int, f func([]byte) float32) {
	for i := range dst {
		dst[i] = f(src[i*size : (i+1)*size])
	}
}
