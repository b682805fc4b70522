package qdot

import (
	"unsafe"

	"krater/kernels/tensor"
)

var pure = newPure()

func newPure() Funcs {
	f := Funcs{Of: map[*tensor.Encoding]*Kernels{}, Most: 4}
	for e, half := range map[*tensor.Encoding]bool{tensor.INT4: false, tensor.INT8: false, tensor.Q8_0: true} {
		scale := tensor.BF16ToF32
		if half {
			scale = tensor.F16ToF32
		}
		f.Of[e] = new(Kernels)
		for rows := 1; rows <= f.Most; rows++ {
			f.Of[e][rows] = func(t *Tile) { pureTiles(t, rows, e.Bits(), scale) }
		}
	}
	return f
}

const (
	tileRows = tensor.TileRows
	block    = 32 // columns of a step
)

// sums are the integer sums of a group, one for each weight row of a tile.
type sums [tileRows]int32

func pureTiles(t *Tile, rows, bits int, scale func(uint16) float32) {
	stepBytes := block * tileRows * bits / 8
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
					w := values[i*tileBytes+step*stepBytes:][:stepBytes]
					if bits == 4 {
						d.add4(w, x[step*block:][:block])
					} else {
						d.add8(w, x[step*block:][:block])
					}
				}
				xs := unsafe.Slice(t.Scale[m], groups)[g]
				for r, s := range scales[(i*groups+g)*tileRows:][:tileRows] {
					out[r] = tensor.FMA(float32(d[r]), scale(s)*xs, out[r])
				}
			}
		}
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
