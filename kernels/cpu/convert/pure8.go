package convert

import (
	"math"
	"slices"
	"sync"
	"unsafe"

	"krater/kernels/tensor"
)

func pureWidenF8(dst *uint16, src *uint8, n, rows, stride int) {
	for r := range rows {
		d := unsafe.Slice((*uint16)(unsafe.Add(unsafe.Pointer(dst), 2*r*Padded(n))), n)
		for i, v := range unsafe.Slice((*uint8)(unsafe.Add(unsafe.Pointer(src), r*stride)), n) {
			d[i] = uint16(math.Float32bits(tensor.F8E4M3ToF32(v)) >> 16)
		}
	}
}

func pureNarrowF8(dst *uint8, src *float32, n int) {
	d := unsafe.Slice(dst, n)
	for i, v := range unsafe.Slice(src, n) {
		d[i] = narrowF8(v)
	}
}

// The parts of a float32 and of a float8 that matter for rounding.
const (
	f8Top    = 0x43e00000             // 448
	f8Normal = 0x3c800000             // 2^-6, the smallest normal float8
	f8Half   = 1<<19 - 1              // half of the part cut off, minus its lowest bit
	f8Rebias = (127 - 7) << 3         // exponents have biases of 127 and 7
	f8Magic  = float32(1 << (23 - 9)) // its last bit is 2^-9, the smallest float8
)

// narrowF8 rounds a normal number by adding half of the part that is cut off and its lowest bit,
// and a subnormal one by adding 2^14.
func narrowF8(x float32) uint8 {
	bits := math.Float32bits(x)
	if x != x {
		return 0
	}
	sign, abs := uint8(bits>>24&0x80), min(bits&^(1<<31), f8Top)
	if abs < f8Normal {
		return sign | uint8(math.Float32bits(math.Float32frombits(abs)+f8Magic)-math.Float32bits(f8Magic))
	}
	return sign | uint8((abs+f8Half+abs>>20&1)>>20-f8Rebias)
}

func pureWidenI8(dst *float32, src *int8, scales *float32, group, groups, rows, stride, scaleStride int) {
	n := group * groups
	for r := range rows {
		d := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(dst), 4*r*Padded(n))), n)
		scale := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(scales), r*scaleStride)), groups)
		for i, v := range unsafe.Slice((*int8)(unsafe.Add(unsafe.Pointer(src), r*stride)), n) {
			d[i] = float32(v) * scale[i/group]
		}
	}
}

func pureQuantI8(dst *int8, src, scales *float32, group, groups int) {
	for g := range groups {
		x := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(src), 4*g*group)), group)
		q := unsafe.Slice((*int8)(unsafe.Add(unsafe.Pointer(dst), g*group)), group)
		scale := (*float32)(unsafe.Add(unsafe.Pointer(scales), 4*g))
		*scale = quantI8(q, x)
	}
}

func quantI8(q []int8, x []float32) (scale float32) {
	const limit, least = 0x1p127, 0x1p-100
	var top float32
	for _, v := range x {
		if v == v {
			top = max(top, min(float32(math.Abs(float64(v))), limit))
		}
	}
	if top < least {
		clear(q)
		return 0
	}
	inverse := 127 / top
	for i, v := range x {
		if v != v {
			v = 0
		}
		q[i] = int8(math.RoundToEven(float64(min(max(v*inverse, -127), 127))))
	}
	return top / 127
}

// Any widens by the encoding's own definition, for those without a kernel. Its scratch memory is
// kept for later calls.
func Any(e *tensor.Encoding) Columns {
	type scratch struct {
		m   tensor.Matrix
		row []float32
	}
	var kept sync.Pool
	return func(dst *float32, w, s *byte, stride, groups, steps int) {
		l := tensor.Layout{Format: e.By(32 * steps), Rows: tensor.TileRows, Cols: 32 * steps * groups}
		x, _ := kept.Get().(*scratch)
		if x == nil {
			x = new(scratch)
		}
		x.m.Reset(l.Format, l.Rows, l.Cols)
		x.row = slices.Grow(x.row[:0], l.Cols)[:l.Cols]
		l.UnpackRows(&x.m, unsafe.Slice(w, l.ValueBytes()), unsafe.Slice(s, l.ScaleBytes()), 0, l.Rows)
		for r := range l.Rows {
			x.m.Row(x.row, r)
			for c, v := range x.row {
				*(*float32)(unsafe.Add(unsafe.Pointer(dst), c*stride+4*r)) = v
			}
		}
		kept.Put(x)
	}
}
