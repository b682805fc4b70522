package cpu

import (
	"unsafe"

	"krater/kernels/device"
)

// sumBlock is the values of a row that an item of sumOfTask adds up: a few rows are enough for all
// threads.
const sumBlock = 512

// sumOfTask adds the expert rows that count, one block of a token at a time.
type sumOfTask struct {
	dev          *Device
	out          []float32 // [T*cols]
	weights      []float32 // [T*topK]
	ids          []int32   // [T*topK]
	y            *float32
	yRow         int // elements
	topK, cols   int
	blocksPerRow int
}

func (t *sumOfTask) do(l *lane, i int) {
	row, from := i/t.blocksPerRow, i%t.blocksPerRow*sumBlock
	n := min(sumBlock, t.cols-from)
	dst := &t.out[row*t.cols+from]
	clearF32(dst, n)
	l.arena.clear()
	scaled := l.arena.take(n)
	for k := row * t.topK; k < (row+1)*t.topK; k++ {
		if t.ids[k] < 0 {
			continue
		}
		src := (*float32)(unsafe.Add(unsafe.Pointer(rowAt(t.y, t.yRow, k)), 4*from))
		copy(unsafe.Slice(scaled, n), unsafe.Slice(src, n))
		// The product is rounded before it is added, at every level: no multiply-add.
		t.dev.axpy.Scale(scaled, n, t.weights[k])
		t.dev.axpy.Add(dst, scaled, n)
	}
}

// WeightedSumOf computes out [T, H] = 0 + the sum over k of weights[t*K+k] * y[t*K+k]. Each product
// is rounded and added in that order. Only choices ids [T*K] >= 0 count; the other rows of y [T*K,
// H] may hold anything. A sum has the same bits for any number of threads and any instruction set.
// out, weights and ids are slices because they may lie in memory that another device has mapped. As
// with all operators here, the work is complete when the call returns.
func (d *Device) WeightedSumOf(stream device.Stream, out []float32, y device.Mat, weights []float32, ids []int32) {
	const op = "WeightedSumOf"
	s := d.stream(op, stream)
	h := y.Cols
	if h == 0 || len(out)%h != 0 || len(ids) != y.Rows || len(weights) != y.Rows {
		fail(op, "out has %d values, y is %s, there are %d weights and %d ids", len(out), y, len(weights), len(ids))
	}
	rows := len(out) / h
	if rows == 0 || y.Rows%rows != 0 {
		fail(op, "%d rows of y for %d of out", y.Rows, rows)
	}
	blocks := (h + sumBlock - 1) / sumBlock
	s.sumOf = sumOfTask{
		dev: d, out: out, weights: weights, ids: ids, y: f32(op, "y", &y, y.Rows, h), yRow: y.Stride,
		topK: y.Rows / rows, cols: h, blocksPerRow: blocks,
	}
	s.each(&s.sumOf, rows*blocks, y.Rows*h*sumNs/16, piece(min(h, sumBlock)))
}
