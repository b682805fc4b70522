package cpu

import (
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// read copies the values of a cached row.
func (k *kvCache) read(dst []float32, slot int) {
	row, n := k.row(slot), len(dst)
	switch k.dt {
	case tensor.BF16:
		for i, v := range unsafe.Slice((*uint16)(row), n) {
			dst[i] = tensor.BF16ToF32(v)
		}
	case tensor.F8E4M3:
		for i, v := range unsafe.Slice((*uint8)(row), n) {
			dst[i] = tensor.F8E4M3ToF32(v)
		}
	case tensor.I8:
		scales := unsafe.Slice(k.rowScales(slot), n/k.group)
		for i, v := range unsafe.Slice((*int8)(row), n) {
			dst[i] = float32(v) * scales[i/k.group]
		}
	default:
		copy(dst, unsafe.Slice((*float32)(row), n))
	}
}

// blockKeyTask makes the keys of blocks of tokens. An item is a block.
type blockKeyTask struct {
	device.BlockIndex
	paged
	norm, table *float32
	tStride     int
	list        []spanBlock
}

// spanBlock is a block of a span.
type spanBlock struct{ span, block int }

// SelectBlocks: chosen [T, Width] I32, q [T, Heads*Dim] F32, keys [slots, Dim] of any type, groups of I8 dividing Dim,
// norm [1, Dim] BF16 or F32, table [P, Rope.Dim] F32. Scratch as in
// Select with pools. With Local: see selectLocal.
func (d *Device) SelectBlocks(stream device.Stream, chosen, q device.Mat, keys device.KV, norm, table device.Mat, in device.Spans, p device.BlockIndex) {
	const op = "SelectBlocks"
	s := d.stream(op, stream)
	if p.Local > 0 {
		d.selectLocal(op, s, chosen, q, keys, in, p)
		return
	}
	if p.Heads < 1 || p.Dim < 1 || p.Block < 1 || p.Chosen < 1 || p.BlockTokens < 1 || p.Rope.Heads != 1 || p.Rope.HeadDim != p.Dim || p.Rope.Offset+p.Rope.Dim > p.Dim {
		fail(op, "sizes %+v", p)
	}
	t := &s.choice
	t.Index, t.block, t.per = device.Index{Heads: p.Heads, Dim: p.Dim, TopK: p.Chosen, Pool: p.Block, BlockTokens: p.BlockTokens}, p.BlockTokens, 0
	t.chosen, t.chosenStride = positions(op, &chosen, q.Rows, p.Positions()), chosen.Stride
	t.q, t.qStride, t.weights = f32(op, "q", &q, q.Rows, p.Heads*p.Dim), q.Stride, nil
	t.bind(op, d, &keys, newKVCache(op, &keys, p.Dim, p.Dim), in.List, q.Rows)

	k := &s.blockKeys
	k.BlockIndex, k.paged, k.list = p, t.paged, k.list[:0]
	k.table, k.tStride = f32(op, "table", &table, table.Rows, p.Rope.Dim), table.Stride
	for i := range in.List {
		sp := &in.List[i]
		last := (sp.Pos + sp.Len) / p.Block
		if last > 0 && (last-1)*p.Block >= table.Rows {
			fail(op, "position %d, the table of rotations has %d", (last-1)*p.Block, table.Rows)
		}
		for b := sp.Pos / p.Block; b < last; b++ {
			k.list = append(k.list, spanBlock{i, b})
		}
	}
	s.arena.reset(2 * piece(p.Dim))
	k.norm = unsafe.SliceData(d.wide(op, "norm", &norm, s.arena.take(p.Dim), p.Dim))
	s.each(k, len(k.list), len(k.list)*p.Block*p.Dim*streamNs/16, 2*piece(p.Dim))
	t.choose(s)
	k.spans, t.spans = nil, nil
}

func (t *blockKeyTask) do(l *lane, i int) {
	span, b := &t.spans[t.list[i].span], t.list[i].block
	l.arena.clear()
	to := l.arena.take(t.Dim)
	key, row := unsafe.Slice(to, t.Dim), unsafe.Slice(l.arena.take(t.Dim), t.Dim)
	clear(key)
	for pos := b * t.Block; pos < (b+1)*t.Block; pos++ {
		t.kv.read(row, t.slot(span, pos))
		for c, v := range row {
			key[c] += v
		}
	}
	t.dev.axpy.Scale(to, t.Dim, 1/float32(t.Block))
	t.dev.norm.MulF32(to, to, t.norm, t.Dim, rmsScale(t.dev.norm.SumSquares(to, t.Dim), t.Dim, t.Eps))
	if t.Rope.Dim > 0 {
		turn := t.dev.rope.Halves
		if t.Rope.Interleaved {
			turn = t.dev.rope.Pairs
		}
		turn(shift(to, t.Rope.Offset), rowAt(t.table, t.tStride, b*t.Block), 1, t.Dim, t.Rope.Dim)
	}
	t.kv.store(t.dev.convert, t.slot(span, (b+1)*t.Block-1), to, t.Dim)
}
