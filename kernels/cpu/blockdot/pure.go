package blockdot

import (
	"sync"
	"unsafe"

	"krater/kernels/tensor"
)

var pure = sync.OnceValue(func() *Funcs {
	const most = 4
	return newFuncs(Funcs{Most: 1, LeastPanel: 1, MostPanel: most}, func(e *tensor.Encoding, k *Kernels) {
		k.prepare, k.Panels = k.pure, new([Rows + 1]func(*Tile))
		if e == tensor.FP8 {
			k.width = digits
		}
		k.Rows[1] = func(t *Tile) { k.direct(t, e) }
		k.Unpack = func(t *Tile) { k.unpack(t, e) }
		for rows := 1; rows <= most; rows++ {
			k.Panels[rows] = func(t *Tile) { k.multiply(t, rows) }
		}
	})
})

// digits is the number of digits to the base 128 of a value of FP8 in a panel, the least first.
const digits = 3

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

// direct multiplies one row with blocks, tile by tile through a panel.
func (k *Kernels) direct(t *Tile, e *tensor.Encoding) {
	values, scales := k.Panel()
	panel, small := make([]byte, t.Groups*values), make([]float32, t.Groups*scales/4)
	one := *t
	one.Tiles, one.Step, one.SmallStep = 1, values, scales
	w, s := e.BandBlock()
	columns, _ := e.Block()
	for i := range t.Tiles {
		one.Out = [Rows]*float32{(*float32)(unsafe.Pointer(&panel[0])), &small[0]}
		k.unpack(&one, e)
		x := one
		x.W, x.S = unsafe.Pointer(&panel[0]), unsafe.Pointer(&small[0])
		x.Out[0] = (*float32)(unsafe.Add(unsafe.Pointer(t.Out[0]), 4*i*tileRows))
		clear(unsafe.Slice(x.Out[0], tileRows))
		k.multiply(&x, 1)
		factors, _ := e.Factors(t.Groups * Group)
		one.W, one.S = unsafe.Add(one.W, t.Groups*Group/columns*w), unsafe.Add(one.S, t.Groups*Group/columns*s+4*tileRows*factors)
	}
}

// unpack restores the file's blocks one after the other. A panel has [digits][8 fours of columns][16
// rows][4] values of a group of a tile, and [scales and minima][16 rows].
func (k *Kernels) unpack(t *Tile, e *tensor.Encoding) {
	columns, size := e.Block()
	values, small := e.BandBlock()
	w, s := t.W, t.S
	block, x := make([]byte, size), e.NewIntegerRow()
	n, share := e.Factors(t.Groups * Group)
	for i := range t.Tiles {
		factors := unsafe.Slice((*float32)(s), n*tileRows)
		s = unsafe.Add(s, 4*len(factors))
		for g := 0; g < t.Groups; g += columns / Group {
			for r := range tileRows {
				e.UnpackBlock(block, unsafe.Slice((*byte)(w), values), unsafe.Slice((*byte)(s), small), r)
				e.ReadBlock(x, block)
				for sub, scale := range x.Scales[:len(x.Scales)*min(1, n)] {
					x.Scales[sub] = e.Scale(scale, factors[g*Group/share*tileRows+r])
				}
				for j := range columns / Group {
					k.unpackGroup(t, x, i, g, j, r)
				}
			}
			w, s = unsafe.Add(w, values), unsafe.Add(s, small)
		}
	}
}

// unpackGroup writes group j of a block to group g+j of a panel.
func (k *Kernels) unpackGroup(t *Tile, x *tensor.IntegerRow, tile, g, j, r int) {
	values, scales := k.panelAt(unsafe.Pointer(t.Out[0]), unsafe.Pointer(t.Out[1]), t, tile, g+j)
	for c, v := range x.Values[j*Group:][:Group] {
		at := values[c/4*4*tileRows+4*r+c%4:]
		for digit := range k.width - 1 {
			at[digit*Group*tileRows] = int8(v % 128)
			v /= 128
		}
		at[(k.width-1)*Group*tileRows] = int8(v)
	}
	for sub := range k.subs {
		scales[sub*tileRows+r] = x.Scales[j*k.subs+sub]
	}
	if k.mins {
		scales[k.subs*tileRows+r] = x.Mins[j]
	}
}

// panelAt is a group of a tile of a panel.
func (k *Kernels) panelAt(w, s unsafe.Pointer, t *Tile, tile, g int) (values []int8, scales []float32) {
	n, small := k.Panel()
	return unsafe.Slice((*int8)(unsafe.Add(w, g*t.Step+tile*n)), n), unsafe.Slice((*float32)(unsafe.Add(s, g*t.SmallStep+tile*small)), small/4)
}

// multiply adds the products of a panel.
func (k *Kernels) multiply(t *Tile, rows int) {
	for i := range t.Tiles {
		for g := range t.Groups {
			w, scales := k.panelAt(t.W, t.S, t, i, g)
			for m := range rows {
				for r, sum := range unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(t.Out[m]), 4*i*tileRows)), tileRows) {
					*(*float32)(unsafe.Add(unsafe.Pointer(t.Out[m]), 4*(i*tileRows+r))) = k.group(sum, w, scales, unsafe.Add(t.P, g*k.Step(rows)), r, m, rows)
				}
			}
		}
	}
}

// group adds a group of weight row r and row m of activations to a sum.
func (k *Kernels) group(sum float32, w []int8, scales []float32, p unsafe.Pointer, r, m, rows int) float32 {
	x, scale := unsafe.Slice((*int8)(unsafe.Add(p, Group*m)), Group), *(*float32)(unsafe.Add(p, Group*rows+4*m))
	for sub := range k.subs {
		d, n := int32(0), Group/k.subs
		for c := sub * n; c < (sub+1)*n; c++ {
			v := int32(0)
			for digit := k.width - 1; digit >= 0; digit-- {
				v = v<<7 + int32(w[digit*Group*tileRows+c/4*4*tileRows+4*r+c%4])
			}
			d += v * int32(x[c])
		}
		sum = tensor.FMA(float32(d), scales[sub*tileRows+r]*scale, sum)
	}
	if k.mins {
		sum = tensor.FMA(scales[k.subs*tileRows+r], *(*float32)(unsafe.Add(p, (Group+8)*rows+4*m)), sum)
	}
	return sum
}
