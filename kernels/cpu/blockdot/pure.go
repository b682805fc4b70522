package blockdot

import (
	"sync"
	"unsafe"

	"krater/kernels/tensor"
)

var pure = sync.OnceValue(func() *Funcs {
	const most = 4
	return newFuncs(most, func(e *tensor.Encoding) (list []func(*Tile)) {
		for rows := 1; rows <= most; rows++ {
			list = append(list, func(t *Tile) { pureTiles(t, rows, e) })
		}
		return list
	}, func(e *tensor.Encoding, k *Kernels) { k.prepare = k.pure })
})

// pure is prepare in Go.
func (k *Kernels) pure(x *int8, scale *float32, bias *int32, groups, step int, toX, toScale, toBias, toSecond *byte) {
	xs, scales, biases := unsafe.Slice(x, groups*Group), unsafe.Slice(scale, groups), unsafe.Slice(bias, groups)
	for g := range groups {
		at := func(p *byte) unsafe.Pointer { return unsafe.Add(unsafe.Pointer(p), g*step) }
		group := xs[g*Group:][:Group]
		copy(unsafe.Slice((*int8)(at(toX)), Group), group)
		*(*float32)(at(toScale)) = scales[g]
		*(*int32)(at(toBias)) = biases[g]
		if k.subs == 2 {
			*(*int32)(at(toBias)), *(*int32)(at(toSecond)) = -8*sum(group[:16]), -8*sum(group[16:])
		}
		if k.mins {
			*(*float32)(at(toSecond)) = float32(biases[g]/8) * scales[g]
		}
	}
}

func sum(x []int8) (n int32) {
	for _, v := range x {
		n += int32(v)
	}
	return n
}

// pureTiles restores the file's blocks one after the other. Sums are in Out.
func pureTiles(t *Tile, rows int, e *tensor.Encoding) {
	columns, size := e.Block()
	values, small := e.BandBlock()
	w, s := t.W, t.S
	block, x := make([]byte, size), e.NewIntegerRow()
	for i := range t.Tiles {
		for m := range rows {
			clear(unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(t.Out[m]), 4*i*tileRows)), tileRows))
		}
		for g := 0; g < t.Groups; g += columns / Group {
			for r := range tileRows {
				e.UnpackBlock(block, unsafe.Slice((*byte)(w), values), unsafe.Slice((*byte)(s), small), r)
				e.ReadBlock(x, block)
				for m := range rows {
					out := (*float32)(unsafe.Add(unsafe.Pointer(t.Out[m]), 4*(i*tileRows+r)))
					*out = t.block(*out, x, g, m, rows)
				}
			}
			w, s = unsafe.Add(w, values), unsafe.Add(s, small)
		}
	}
}

// block adds a block of row m, whose first group is g, to a sum.
func (t *Tile) block(sum float32, w *tensor.IntegerRow, g, m, rows int) float32 {
	subs := Group / w.Sub
	step := (Group + 4 + 4*subs) * rows
	if w.Mins != nil {
		step += 4 * rows
	}
	for i := range len(w.Values) / Group {
		p := unsafe.Add(t.P, (g+i)*step)
		x, scale := unsafe.Slice((*int8)(unsafe.Add(p, Group*m)), Group), *(*float32)(unsafe.Add(p, Group*rows+4*m))
		for sub := range subs {
			d := int32(0)
			for c, v := range w.Values[i*Group+sub*w.Sub:][:w.Sub] {
				d += v * int32(x[sub*w.Sub+c])
			}
			sum = tensor.FMA(float32(d), w.Scales[i*subs+sub]*scale, sum)
		}
		if w.Mins != nil {
			sum = tensor.FMA(w.Mins[i], *(*float32)(unsafe.Add(p, (Group+8)*rows+4*m)), sum)
		}
	}
	return sum
}
