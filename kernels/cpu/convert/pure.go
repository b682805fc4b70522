package convert

import (
	"unsafe"

	"krater/kernels/tensor"
)

var pure = Funcs{Pack: purePack, Unpack: pureUnpack, Widen: pureWiden, WidenPack: pureWidenPack, Narrow: pureNarrow,
	WidenF8: pureWidenF8, NarrowF8: pureNarrowF8, WidenI8: pureWidenI8, QuantI8: pureQuantI8,
	Columns: map[*tensor.Encoding]Columns{tensor.INT4: Any(tensor.INT4), tensor.INT8: Any(tensor.INT8)}}

// place returns the index of value i in packed order.
func place(i int) int { return i&^(Block-1) + (i&1)*(Block/2) + i%Block/2 }

func purePack(dst, src *float32, n int) {
	d, s := unsafe.Slice(dst, Padded(n)), unsafe.Slice(src, n)
	for i := n; i < len(d); i++ {
		d[place(i)] = 0
	}
	for i, v := range s {
		d[place(i)] = v
	}
}

func pureUnpack(dst, src *float32, n int) {
	d, s := unsafe.Slice(dst, n), unsafe.Slice(src, Padded(n))
	for i := range d {
		d[i] = s[place(i)]
	}
}

func pureWiden(dst *float32, src *uint16, n int) {
	d, s := unsafe.Slice(dst, n), unsafe.Slice(src, n)
	for i, v := range s {
		d[i] = tensor.BF16ToF32(v)
	}
}

func pureWidenPack(dst *float32, src *uint16, n int) {
	d, s := unsafe.Slice(dst, Padded(n)), unsafe.Slice(src, n)
	for i := n; i < len(d); i++ {
		d[place(i)] = 0
	}
	for i, v := range s {
		d[place(i)] = tensor.BF16ToF32(v)
	}
}

func pureNarrow(dst *uint16, src *float32, n int) {
	d, s := unsafe.Slice(dst, n), unsafe.Slice(src, n)
	for i, v := range s {
		d[i] = tensor.F32ToBF16(v)
	}
}
