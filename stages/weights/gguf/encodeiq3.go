package gguf

import (
	"math"
	"sync"

	"krater/kernels/tensor/grid"
)

// nearIQ3S has, for each four of the magnitudes 1, 3, ... 15, three bits of the index each, the row of
// the table that is nearest.
var nearIQ3S = sync.OnceValue(func() []uint16 {
	near := make([]uint16, 1<<12)
	for i := range near {
		var x [4]float32
		for j := range x {
			x[j] = float32(i>>(3*j)&7*2 + 1)
		}
		near[i] = uint16(nearestRow(grid.IQ3_S, x[:], []float32{1, 1, 1, 1}))
	}
	return near
})

// nearestRow returns the row of a table with the least weighted squared error from x.
func nearestRow(g *grid.Grid, x, weight []float32) (best int) {
	least := float32(math.Inf(1))
	for i := range g.Rows() {
		var sum float32
		for j, v := range g.Row(i) {
			sum += weight[j] * (x[j] - v) * (x[j] - v)
		}
		if sum < least {
			least, best = sum, i
		}
	}
	return best
}

// encodeIQ3S searches each 32 values' scale over a range, with the rows nearest in the plain sense, then
// rounds the scales to four bits and takes the rows of least weighted error.
func encodeIQ3S(dst []byte, src, weight []float32) {
	var x [superblock]float32
	for i, v := range src {
		x[i] = float32(math.Abs(float64(v)))
	}
	var scales [8]float32
	for g := range scales {
		scales[g] = scaleIQ3S(x[32*g:][:32], weight[32*g:][:32])
	}
	clear(dst[:110])
	d := putHalf(dst, extreme(scales[:])/31)
	for g, scale := range scales {
		s := min(max(round((scale*inverse(d)-1)/2), 0), 15)
		dst[106+g/2] |= byte(s << (g % 2 * 4))
		inv := inverse(d * float32(1+2*s))
		for k := range 8 {
			var t [4]float32
			at := 32*g + 4*k
			for j := range t {
				t[j] = x[at+j] * inv
				if src[at+j] < 0 {
					dst[74+at/8] |= 1 << ((at + j) % 8)
				}
			}
			row := nearestRow(grid.IQ3_S, t[:], weight[at:][:4])
			dst[2+8*g+k] = byte(row)
			dst[66+g] |= byte(row >> 8 << k)
		}
	}
}

// scaleIQ3S returns the scale of 32 magnitudes with the least weighted squared error among those tried.
func scaleIQ3S(x, weight []float32) (best float32) {
	top := float32(0)
	for _, v := range x {
		top = max(top, v)
	}
	var gain float32
	for i := range 20 {
		inv := inverse(top) * (9 + 0.6*float32(i)) // the largest becomes 9 to 20.4
		var wq, qq float32
		for k := 0; k < 32; k += 4 {
			index := 0
			for j := range 4 {
				index |= min(max(int(x[k+j]*inv/2), 0), 7) << (3 * j)
			}
			for j, q := range grid.IQ3_S.Row(int(nearIQ3S()[index])) {
				wq += weight[k+j] * x[k+j] * q
				qq += weight[k+j] * q * q
			}
		}
		if qq > 0 && wq*wq > gain*qq {
			gain, best = wq*wq/qq, wq/qq
		}
	}
	return best
}
