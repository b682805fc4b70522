package cpu

import (
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// rowChunks cuts rows into items of a few rows each.
type rowChunks struct{ rows int }

const chunkRows = 8

func (c rowChunks) count() int { return (c.rows + chunkRows - 1) / chunkRows }

// of returns the rows of item i.
func (c rowChunks) of(i int) (from, to int) {
	return i * chunkRows, min(c.rows, (i+1)*chunkRows)
}

// sumTask adds up the expert rows of tokens.
type sumTask struct {
	dev                    *Device
	out, y, w, base        *float32
	oRow, yRow, wRow, bRow int // elements
	topK, cols             int
	rows                   rowChunks
}

func (t *sumTask) do(l *lane, i int) {
	tile := &l.axpy
	tile.Stride, tile.N, tile.Width = t.yRow*tensor.F32.Size(), t.topK, t.cols
	from, to := t.rows.of(i)
	for r := from; r < to; r++ {
		row := rowAt(t.out, t.oRow, r)
		if t.base == nil {
			clearF32(row, t.cols)
		} else if from := rowAt(t.base, t.bRow, r); from != row {
			copy(unsafe.Slice(row, t.cols), unsafe.Slice(from, t.cols))
		}
		tile.P[0], tile.Acc[0] = rowAt(t.w, t.wRow, r), row
		tile.W = unsafe.Pointer(rowAt(t.y, t.yRow, r*t.topK))
		t.dev.axpy.F32[1](tile)
	}
}

// sumNs is the time of a value of an expert row on one core, in 1/16 ns.
const sumNs = 3

// weightedSum is WeightedSum, checked.
func (d *Device) weightedSum(s *Stream, out, y, weights, base *device.Mat, t sumTask) {
	t.dev, t.oRow, t.yRow, t.wRow, t.bRow = d, out.Stride, y.Stride, weights.Stride, base.Stride
	t.topK, t.cols, t.rows = weights.Cols, out.Cols, rowChunks{out.Rows}
	s.sum = t
	s.each(&s.sum, t.rows.count(), out.Rows*out.Cols*t.topK*sumNs/16, 0)
}
