package cpu

import (
	"unsafe"

	"krater/kernels/device"
)

// LayerNorm is out = (x - mean(x)) / sqrt(variance(x) + eps) * w + b, row by row; out and x [T, H] F32 (may
// be the same), w and b [1, H] BF16 or F32. Scratch: 2*H values.
func (d *Device) LayerNorm(stream device.Stream, out, x, w, b device.Mat, eps float32) {
	const op = "LayerNorm"
	s := d.stream(op, stream)
	n := x.Cols
	dst, src := f32(op, "out", &out, x.Rows, n), f32(op, "x", &x, x.Rows, n)
	if n == 0 {
		return
	}
	s.arena.reset(2 * piece(n))
	weights, biases := d.wide(op, "w", &w, s.arena.take(n), n), d.wide(op, "b", &b, s.arena.take(n), n)
	for r := range x.Rows {
		row := unsafe.Slice(rowAt(src, x.Stride, r), n)
		var mean float64
		for _, v := range row {
			mean += float64(v)
		}
		mean /= float64(n)
		var squares float64
		for _, v := range row {
			squares += (float64(v) - mean) * (float64(v) - mean)
		}
		scale := float64(rmsScale(float32(squares), n, eps))
		to := unsafe.Slice(rowAt(dst, out.Stride, r), n)
		for i, v := range row {
			to[i] = float32((float64(v)-mean)*scale*float64(weights[i]) + float64(biases[i]))
		}
	}
}

// wide is a vector of n values as F32, in room if it has to be widened.
func (d *Device) wide(op, name string, m *device.Mat, room *float32, n int) []float32 {
	p, bf16 := weight(op, name, m, 1, n)
	if !bf16 {
		return unsafe.Slice((*float32)(p), n)
	}
	d.convert.Widen(room, (*uint16)(p), n)
	return unsafe.Slice(room, n)
}

// sparse holds the positions that rows of latent attention have chosen, a row for each row of the batch.
type sparse struct {
	chosen *int32 // nil: they see everything
	stride int
	n      int
	// The parts of a batch's spans whose rows see no more than n positions, and the others.
	dense, rest []device.Span
}

// row is the positions of a row of the batch, up to the first -1; nil if it sees everything.
func (c *sparse) row(r int) []int32 {
	if c.chosen == nil {
		return nil
	}
	list := unsafe.Slice((*int32)(unsafe.Add(unsafe.Pointer(c.chosen), 4*c.stride*r)), c.n)
	for n := c.n; n > 0; n-- {
		if list[n-1] != -1 {
			return list[:n]
		}
	}
	return list
}

// check checks the positions of the rows of spans, which were checked.
func (c *sparse) check(op string, spans []device.Span) {
	if c.chosen == nil {
		return
	}
	for _, sp := range spans {
		for r := range sp.Len { // a row of -1 alone is refused too
			inRange(op, "chosen", c.row(sp.Row+r), sp.Pos+r+1)
		}
	}
}

// cut divides spans.
func (c *sparse) cut(spans []device.Span) {
	c.dense, c.rest = c.dense[:0], c.rest[:0]
	for _, sp := range spans {
		if n := min(sp.Len, c.n-sp.Pos); n > 0 {
			head := sp
			head.Len = n
			c.dense = append(c.dense, head)
			sp.Row, sp.Len, sp.Pos = sp.Row+n, sp.Len-n, sp.Pos+n
		}
		if sp.Len != 0 {
			c.rest = append(c.rest, sp)
		}
	}
}

// SparseMLA has the arguments of MLADecode, and chosen [T, n] I32: the positions that each row sees, with -1 behind them. A
// row that may see no more than n positions is computed as MLAPrefill or MLADecode do; any other as
// MLADecode does, over a copy of the rows of the cache that it has chosen. Scratch per thread: that of both with a
// cache of 8 bits.
func (d *Device) SparseMLA(stream device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, chosen device.Mat, in device.Spans, p device.MLA) {
	const op = "SparseMLA"
	s := d.stream(op, stream)
	c := &s.decode.sparse
	c.n, c.stride = chosen.Cols, chosen.Stride
	c.cut(in.List)
	if len(c.dense) > 0 {
		dense := device.Spans{List: c.dense, Decode: in.Decode}
		if in.Decode {
			d.MLADecode(s, out, q, cache, kvB, dense, p)
		} else {
			d.MLAPrefill(s, out, q, cache, kvB, dense, p)
		}
	}
	if len(c.rest) == 0 {
		return
	}
	c.chosen = positions(op, &chosen, q.Rows, c.n)
	d.absorbed(op, s, &out, &q, &cache, &kvB, c.rest, &p)
	c.chosen = nil
}

// gather copies columns [first, first+n) of the rows of the cache at positions, at most keyBlock, one after the other
// into scratch, as the tiles read them.
func (a *paged) gather(s *device.Span, positions []int32, first, n int, scratch *float32) keyRows {
	k := keyRows{wide: unsafe.Pointer(scratch), stride: a.kv.wideRow(n)}
	for i, pos := range positions {
		a.copyRow(unsafe.Add(k.wide, i*k.stride), a.slot(s, int(pos)), first, n)
	}
	return k
}

// copyRow copies columns [first, first+n) of a row of the cache, as the tiles read them.
func (a *paged) copyRow(to unsafe.Pointer, slot, first, n int) {
	if a.kv.narrow() {
		a.kv.widen(a.dev.convert, to, slot, 1, first, n)
		return
	}
	size := a.tileSize()
	copy(unsafe.Slice((*byte)(to), n*size), unsafe.Slice((*byte)(unsafe.Add(a.kv.row(slot), first*size)), n*size))
}

// slot is the row of the cache that has a position.
func (a *paged) slot(s *device.Span, pos int) int {
	per := max(1, a.per)
	return int(s.Blocks[pos/a.block])*device.EntryRows(a.block, per) + pos%a.block/per
}

// gathered is the scratch of gather, in float32 values.
func (a *paged) gathered(n int) int { return piece(keyBlock * a.kv.wideRow(n) / 4) }
