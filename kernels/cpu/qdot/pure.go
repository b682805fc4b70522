package qdot

import (
	"unsafe"

	"krater/kernels/tensor"
)

var pure = newPure()

func newPure() Funcs {
	const most = 4
	f := Funcs{}
	for _, e := range []*pureEncoding{
		{tensor.INT3, tensor.BF16ToF32}, {tensor.INT4, tensor.BF16ToF32}, {tensor.INT8, tensor.BF16ToF32}, {tensor.Q8_0, tensor.F16ToF32},
	} {
		f[e.Encoding] = make(Kernels, most+1)
		for rows := 1; rows <= most; rows++ {
			f[e.Encoding][rows] = func(t *Tile) { e.tiles(t, rows) }
		}
	}
	return f
}

// pureEncoding is an encoding and how its scales are read.
type pureEncoding struct {
	*tensor.Encoding
	scale func(uint16) float32
}

const (
	tileRows = tensor.TileRows
	block    = 32 // columns of a step
)

// sums are the integer sums of a group, one for each weight row of a tile.
type sums [tileRows]int32

func (e *pureEncoding) tiles(t *Tile, rows int) {
	stepBytes := block * tileRows * e.Bits() / 8
	tileBytes := t.K / block * stepBytes
	groups := t.K / block / t.Steps
	values := unsafe.Slice((*byte)(t.W), t.Tiles*tileBytes)
	scales := unsafe.Slice((*uint16)(t.S), t.Tiles*groups*tileRows)
	for i := range t.Tiles {
		for m := range rows {
			x := unsafe.Slice(t.X[m], t.K)
			out := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(t.Out[m]), 4*i*tileRows)), tileRows)
			clear(out)
			for g := range groups {
				var d sums
				for step := g * t.Steps; step < (g+1)*t.Steps; step++ {
					d.add(e.Bits(), values[i*tileBytes+step*stepBytes:][:stepBytes], x[step*block:][:block])
				}
				xs := unsafe.Slice(t.Scale[m], groups)[g]
				for r, s := range scales[(i*groups+g)*tileRows:][:tileRows] {
					out[r] = tensor.FMA(float32(d[r]), e.scale(s)*xs, out[r])
				}
			}
		}
	}
}

// add adds a step of weights of some bits. A function value instead would move d to the heap.
func (d *sums) add(bits int, w []byte, x []int8) {
	switch bits {
	case 3:
		d.add3(w, x)
	case 4:
		d.add4(w, x)
	default:
		d.add8(w, x)
	}
}

// add3 adds a step of INT3 weights.
func (d *sums) add3(w []byte, x []int8) {
	table := tensor.INT3Table()
	for r := range d {
		sum := int32(0)
		for j := range 4 {
			a, b, c := w[4*r+j], w[64+4*r+j], w[128+4*r+j]
			for n, code := range [8]byte{a, a >> 3, b, b >> 3, c, c >> 3, a>>6 | c>>4&4, b>>6 | c>>5&4} {
				sum += int32(table[code&7]) * int32(x[4*n+j])
			}
		}
		d[r] += sum
	}
}

// add4 adds a step of INT4 weights.
func (d *sums) add4(w []byte, x []int8) {
	for ; len(x) >= 8; w, x = w[64:], x[8:] {
		for r := range d {
			b, sum := w[4*r:4*r+4], int32(0)
			for j, v := range b {
				sum += (int32(v&15) - 8) * int32(x[j])
				sum += (int32(v>>4) - 8) * int32(x[4+j])
			}
			d[r] += sum
		}
	}
}

// add8 adds a step of INT8 weights.
func (d *sums) add8(w []byte, x []int8) {
	for ; len(x) >= 4; w, x = w[64:], x[4:] {
		for r := range d {
			b, sum := w[4*r:4*r+4], int32(0)
			for j, v := range b {
				sum += (int32(v) - 128) * int32(x[j])
			}
			d[r] += sum
		}
	}
}
