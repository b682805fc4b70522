package index

import (
	"math"
	"unsafe"

	"krater/kernels/tensor"
)

var pure = Funcs{
	turnF32:  func(panel *float32, rows *Rows, dim int) { pureTurnF32(panel, rows, 0, dim) },
	turnBF16: func(panel *float32, rows *Rows, dim int) { pureTurnBF16(panel, rows, 0, dim) },
	Score:    pureScore, rank: pureRank, count: pureCount, mark: pureMark,
}

// pureTurnF32 writes the dimensions from..dim-1 of a panel.
func pureTurnF32(panel *float32, rows *Rows, from, dim int) {
	to := unsafe.Slice(panel, dim*Keys)
	for d := from; d < dim; d++ {
		for i, row := range rows {
			to[d*Keys+i] = *(*float32)(unsafe.Add(row, 4*d))
		}
	}
}

func pureTurnBF16(panel *float32, rows *Rows, from, dim int) {
	to := unsafe.Slice(panel, dim*Keys)
	for d := from; d < dim; d++ {
		for i, row := range rows {
			to[d*Keys+i] = tensor.BF16ToF32(*(*uint16)(unsafe.Add(row, 2*d)))
		}
	}
}

func pureScore(t *Tile) {
	panel, weights, out := unsafe.Slice(t.Panel, t.Dim*Keys), unsafe.Slice(t.W, t.Heads), unsafe.Slice(t.Out, Keys)
	clear(out)
	for h, w := range weights {
		query := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(t.Q), h*t.Stride)), t.Dim)
		var sums [Keys]float32
		for d, q := range query {
			for i, k := range panel[d*Keys:][:Keys] {
				sums[i] = tensor.FMA(q, k, sums[i])
			}
		}
		for i, v := range sums {
			if v < 0 {
				v = 0
			}
			out[i] = tensor.FMA(w, v, out[i])
		}
	}
}

func pureRank(scores *float32, n int) {
	for i, v := range unsafe.Slice(scores, n) {
		b := int32(math.Float32bits(v + 0)) // one zero of both
		b ^= b >> 31 & math.MaxInt32
		if v != v {
			b = math.MinInt32
		}
		*(*int32)(unsafe.Add(unsafe.Pointer(scores), 4*i)) = b
	}
}

func pureCount(ranks *int32, n int, least int32) (count int) {
	for _, r := range unsafe.Slice(ranks, n) {
		if r >= least {
			count++
		}
	}
	return count
}

func pureMark(marks *uint64, ranks *int32, n int, least int32) {
	to := unsafe.Slice(marks, n/64)
	clear(to)
	for i, r := range unsafe.Slice(ranks, n) {
		if r >= least {
			to[i/64] |= 1 << (i % 64)
		}
	}
}
