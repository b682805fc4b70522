package cpu

import (
	"unsafe"

	"krater/kernels/cpu/blockdot"
	"krater/kernels/tensor"
)

// Weights that are blocks of a file (package blockdot) read activations in an order of their own.
// Rows are brought into it before they are multiplied, some at a time, and then meet all tiles.

// preparedRows is the most rows prepared at a time.
const preparedRows = 64

// preparedScratch returns the float32 values that prepared rows take of a lane's second arena.
func (p *quantProduct) preparedScratch(rows int) int {
	most := 0
	for i := range min(rows, blockdot.Rows) {
		most = max(most, p.blocks.Step(i+1)/(i+1))
	}
	return piece(min(rows, preparedRows) * most * (p.k / blockdot.Group) / 4)
}

// streamBlocks is stream for weights that are blocks.
func (p *quantProduct) streamBlocks(d *Device, l *lane, in quantInput, out quantOutput, rows, from, to int) {
	for first := 0; first < rows; first += preparedRows {
		p.streamPrepared(d, l, in, out, first, min(rows, first+preparedRows), from, to)
	}
}

// streamPrepared multiplies rows [first, last).
func (p *quantProduct) streamPrepared(d *Device, l *lane, in quantInput, out quantOutput, first, last, from, to int) {
	rows, groups := last-first, p.k/blockdot.Group
	calls := (rows + d.blockdot.Most - 1) / d.blockdot.Most
	size := streamBlock
	if calls > 1 {
		size = cacheBlock
	}
	l.prepared.reset(p.preparedScratch(rows))
	var at [preparedRows]unsafe.Pointer // of each call
	p.prepare(l, in, first, rows, calls, &at)
	t := &l.blocks
	t.Groups, t.Table = groups, p.blocks.Table
	for step := max(1, size/p.tileBytes); from < to; from += step {
		t.Ahead = d.fetch.ahead(blockdot.Group, rows)
		for c := range calls {
			t.P = at[c]
			from0, to0 := first+c*rows/calls, first+(c+1)*rows/calls
			for j := from0; j < to0; j++ {
				t.Out[j-from0] = rowAt(out.base, out.stride, pick(out.index, out.first, j))
			}
			p.callBlocks(l, to0-from0, from, min(to, from+step))
			t.Ahead = 0 // the weights are in cache now
		}
	}
}

// prepare brings the rows of each call into order.
func (p *quantProduct) prepare(l *lane, in quantInput, first, rows, calls int, at *[preparedRows]unsafe.Pointer) {
	groups := p.k / blockdot.Group
	memory := unsafe.Pointer(l.prepared.take(p.preparedScratch(rows)))
	for c := range calls {
		from, to := first+c*rows/calls, first+(c+1)*rows/calls
		at[c] = memory
		for j := from; j < to; j++ {
			q, scale, bias := in.row(pick(in.index, in.first, j))
			p.blocks.Prepare(memory, j-from, to-from, q, scale, bias, groups)
		}
		memory = unsafe.Add(memory, groups*p.blocks.Step(to-from))
	}
}

// callBlocks is call for weights that are blocks.
func (p *quantProduct) callBlocks(l *lane, rows, from, to int) {
	kernel := p.blocks.Rows[rows]
	t := &l.blocks
	for m := range rows {
		t.Out[m] = (*float32)(unsafe.Add(unsafe.Pointer(t.Out[m]), 4*tensor.TileRows*from))
	}
	whole := min(to, p.n/tensor.TileRows)
	if from < whole {
		t.W, t.S, t.Tiles = unsafe.Add(p.w, from*p.tileBytes), unsafe.Add(p.s, from*p.scaleBytes), whole-from
		kernel(t)
	}
	if whole == to {
		return
	}
	var out [blockdot.Rows]*float32
	for m := range rows {
		out[m] = (*float32)(unsafe.Add(unsafe.Pointer(t.Out[m]), 4*tensor.TileRows*(whole-from)))
		t.Out[m] = &l.edge[tensor.TileRows*m]
	}
	t.W, t.S, t.Tiles = unsafe.Add(p.w, whole*p.tileBytes), unsafe.Add(p.s, whole*p.scaleBytes), 1
	kernel(t)
	for m := range rows {
		copy(unsafe.Slice(out[m], p.n%tensor.TileRows), l.edge[tensor.TileRows*m:])
	}
}
