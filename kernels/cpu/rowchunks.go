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

// colPieces cuts the columns of rows too, where there are fewer chunks of rows than threads. The columns of a row
// do not depend on each other.
type colPieces struct {
	rowChunks
	cols, pieces, width int
}

const (
	leastPiece = 256    // columns of a piece but the last
	leastCut   = 20_000 // ns of rows that are cut: below, moving rows between cores takes longer than it saves
)

// cutCols cuts rows of cols columns, whose work takes ns.
func (s *Stream) cutCols(rows, cols, ns int) colPieces {
	c := colPieces{rowChunks{rows}, cols, 1, cols}
	if chunks := c.rowChunks.count(); chunks > 0 && chunks < len(s.lanes) && (ns >= leastCut || s.dev.wakeNs == 0) && s.shared(ns) {
		each := max(leastPiece, cols*chunks/len(s.lanes))
		c.width = min(cols, (each+15)&^15)
		c.pieces = (cols + c.width - 1) / c.width
	}
	return c
}

func (c *colPieces) count() int { return c.rowChunks.count() * c.pieces }

// of returns the rows of item i, its first column and their number.
func (c *colPieces) of(i int) (from, to, at, n int) {
	from, to = c.rowChunks.of(i / c.pieces)
	at = i % c.pieces * c.width
	return from, to, at, min(c.width, c.cols-at)
}

// headChunks cuts the heads of rows too, where there are fewer chunks of rows than threads.
type headChunks struct {
	rowChunks
	heads, pieces int
}

// cutHeads cuts rows of heads, whose work takes ns.
func (s *Stream) cutHeads(rows, heads, ns int) headChunks {
	c := headChunks{rowChunks{rows}, heads, 1}
	if chunks := c.rowChunks.count(); chunks > 0 && chunks < len(s.lanes) && s.shared(ns) {
		c.pieces = min(heads, len(s.lanes)/chunks)
	}
	return c
}

func (c *headChunks) count() int { return c.rowChunks.count() * c.pieces }

// of returns the rows and the heads of item i.
func (c *headChunks) of(i int) (from, to, first, end int) {
	from, to = c.rowChunks.of(i / c.pieces)
	return from, to, i % c.pieces * c.heads / c.pieces, (i%c.pieces + 1) * c.heads / c.pieces
}

// sumTask adds up the expert rows of tokens.
type sumTask struct {
	dev                    *Device
	out, y, w, base        *float32
	oRow, yRow, wRow, bRow int // elements
	topK                   int
	rows                   colPieces
}

func (t *sumTask) do(l *lane, i int) {
	tile := &l.axpy
	from, to, at, n := t.rows.of(i)
	tile.Stride, tile.N, tile.Width = t.yRow*tensor.F32.Size(), t.topK, n
	for r := from; r < to; r++ {
		row := shift(rowAt(t.out, t.oRow, r), at)
		if t.base == nil {
			clearF32(row, n)
		} else if from := shift(rowAt(t.base, t.bRow, r), at); from != row {
			copy(unsafe.Slice(row, n), unsafe.Slice(from, n))
		}
		tile.P[0], tile.Acc[0] = rowAt(t.w, t.wRow, r), row
		tile.W = unsafe.Pointer(shift(rowAt(t.y, t.yRow, r*t.topK), at))
		t.dev.axpy.F32[1](tile)
	}
}

// sumNs is the time of a value of an expert row on one core, in 1/16 ns.
const sumNs = 3

// weightedSum is WeightedSum, checked.
func (d *Device) weightedSum(s *Stream, out, y, weights, base *device.Mat, t sumTask) {
	t.dev, t.oRow, t.yRow, t.wRow, t.bRow = d, out.Stride, y.Stride, weights.Stride, base.Stride
	ns := out.Rows * out.Cols * weights.Cols * sumNs / 16
	t.topK, t.rows = weights.Cols, s.cutCols(out.Rows, out.Cols, ns)
	s.sum = t
	s.each(&s.sum, t.rows.count(), ns, 0)
}
