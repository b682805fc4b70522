package axpy

import (
	"unsafe"

	"krater/kernels/cpu/convert"
	"krater/kernels/tensor"
)

var pure = Funcs{
	F32:   [Rows + 1]func(*Tile){nil, func(t *Tile) { pureF32(t, 1) }, func(t *Tile) { pureF32(t, 2) }, func(t *Tile) { pureF32(t, 3) }, func(t *Tile) { pureF32(t, 4) }},
	BF16:  [Rows + 1]func(*Tile){nil, func(t *Tile) { pureBF16(t, 1) }, func(t *Tile) { pureBF16(t, 2) }, func(t *Tile) { pureBF16(t, 3) }, func(t *Tile) { pureBF16(t, 4) }},
	Add:   pureAdd,
	Scale: pureScale,
}

func pureF32(t *Tile, rows int) {
	for m := range rows {
		acc, p := unsafe.Slice(t.Acc[m], t.Width), unsafe.Slice(t.P[m], t.N)
		for j, f := range p {
			w := unsafe.Slice((*float32)(unsafe.Add(t.W, j*t.Stride)), t.Width)
			for i, v := range w {
				acc[i] += f * v
			}
		}
	}
}

func pureBF16(t *Tile, rows int) {
	const half = convert.Block / 2
	for m := range rows {
		acc, p := unsafe.Slice(t.Acc[m], convert.Padded(t.Width)), unsafe.Slice(t.P[m], t.N)
		for j, f := range p {
			w := unsafe.Slice((*uint16)(unsafe.Add(t.W, j*t.Stride)), t.Width)
			for i, v := range w {
				acc[i&^(convert.Block-1)+(i&1)*half+i%convert.Block/2] += f * tensor.BF16ToF32(v)
			}
		}
	}
}

func pureAdd(dst, src *float32, n int) {
	d, s := unsafe.Slice(dst, n), unsafe.Slice(src, n)
	for i, v := range s {
		d[i] += v
	}
}

func pureScale(dst *float32, n int, factor float32) {
	d := unsafe.Slice(dst, n)
	for i := range d {
		d[i] *= factor
	}
}
