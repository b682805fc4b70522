package cpu

import (
	"math"
	"slices"
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// read copies columns [first, first+n) of a cached row.
func (k *kvCache) read(dst []float32, slot, first int) {
	row, n := k.row(slot), len(dst)
	switch k.dt {
	case tensor.BF16:
		for i, v := range unsafe.Slice((*uint16)(row), first+n)[first:] {
			dst[i] = tensor.BF16ToF32(v)
		}
	case tensor.F8E4M3:
		for i, v := range unsafe.Slice((*uint8)(row), first+n)[first:] {
			dst[i] = tensor.F8E4M3ToF32(v)
		}
	case tensor.I8:
		scales := unsafe.Slice(k.rowScales(slot), (first+n+k.group-1)/k.group)
		for i, v := range unsafe.Slice((*int8)(row), first+n)[first:] {
			dst[i] = float32(v) * scales[(first+i)/k.group]
		}
	default:
		copy(dst, unsafe.Slice((*float32)(row), first+n)[first:])
	}
}

// slot is the row of the cache that has a position.
func (a *paged) slot(s *device.Span, pos int) int {
	return int(s.Blocks[pos/a.block])*a.block + pos%a.block
}

// dotF32 is the product of two vectors.
func dotF32(a, b []float32) (sum float32) {
	for i, v := range a {
		sum += v * b[i]
	}
	return sum
}

// blockTask is the choice of an index over blocks. Items of its first loop make the keys of the
// blocks of a span; those of its second choose for a row each.
type blockTask struct {
	device.BlockIndex
	paged
	q, norm, table   *float32
	qStride, tStride int
	chosen           *int32
	chosenStride     int
	span             *device.Span
	keys             []float32 // [complete blocks of the span, Dim]
}

// SelectBlocks: chosen [T, Positions] I32, q [T, Heads*Dim] F32, keys [slots, Dim] of any type, groups of I8 dividing Dim,
// norm [1, Dim] BF16 or F32, table [P, Rope.Dim] F32. Shared scratch: Dim values for each block of a sequence. Scratch per
// thread: two values for each, or Dim values.
func (d *Device) SelectBlocks(stream device.Stream, chosen, q device.Mat, keys device.KV, norm, table device.Mat, in device.Spans, p device.BlockIndex) {
	const op = "SelectBlocks"
	s := d.stream(op, stream)
	t := &s.blocks
	if p.Heads < 1 || p.Dim < 1 || p.Block < 1 || p.Chosen < 1 || p.BlockTokens < 1 || p.Rope.Heads != 1 || p.Rope.HeadDim != p.Dim || p.Rope.Offset+p.Rope.Dim > p.Dim {
		fail(op, "sizes %+v", p)
	}
	if chosen.Rows != q.Rows || chosen.Cols != p.Positions() || chosen.DType != tensor.I32 {
		fail(op, "chosen is %s, need I32 [%d, %d]", chosen, q.Rows, p.Positions())
	}
	t.BlockIndex, t.block = p, p.BlockTokens
	t.chosen, t.chosenStride = (*int32)(at(op, "chosen", &chosen)), chosen.Stride
	t.q, t.qStride = f32(op, "q", &q, q.Rows, p.Heads*p.Dim), q.Stride
	t.table, t.tStride = f32(op, "table", &table, table.Rows, p.Rope.Dim), table.Stride
	t.bind(op, d, &keys, newKVCache(op, &keys, p.Dim, p.Dim), in.List, q.Rows)
	s.arena.reset(2 * piece(p.Dim))
	t.norm = unsafe.SliceData(d.wide(op, "norm", &norm, s.arena.take(p.Dim), p.Dim))
	for i := range in.List {
		t.span = &in.List[i]
		blocks := (t.span.Pos + t.span.Len) / p.Block
		if blocks > 0 && (blocks-1)*p.Block >= table.Rows {
			fail(op, "position %d, the table of rotations has %d", (blocks-1)*p.Block, table.Rows)
		}
		t.keys = slices.Grow(t.keys[:0], blocks*p.Dim)[:blocks*p.Dim]
		s.each((*blockKeyTask)(t), blocks, blocks*p.Block*p.Dim*streamNs/16, piece(p.Dim))
		scratch := 2 * piece(max(1, blocks))
		s.each(t, t.span.Len, t.span.Len*blocks*p.Heads*p.Dim*2/d.speed.flopsPerNs, scratch)
	}
	t.spans, t.span = nil, nil
}

// blockKeyTask is the first loop of a blockTask.
type blockKeyTask blockTask

func (t *blockKeyTask) do(l *lane, b int) {
	key := t.keys[b*t.Dim:][:t.Dim]
	for c := range key {
		key[c] = 0
	}
	l.arena.clear()
	row := unsafe.Slice(l.arena.take(t.Dim), t.Dim)
	for pos := b * t.Block; pos < (b+1)*t.Block; pos++ {
		t.kv.read(row, t.slot(t.span, pos), 0)
		for c, v := range row {
			key[c] += v
		}
	}
	to := unsafe.SliceData(key)
	t.dev.axpy.Scale(to, t.Dim, 1/float32(t.Block))
	t.dev.norm.MulF32(to, to, t.norm, t.Dim, rmsScale(t.dev.norm.SumSquares(to, t.Dim), t.Dim, t.Eps))
	if t.Rope.Dim == 0 {
		return
	}
	turn := t.dev.rope.Halves
	if t.Rope.Interleaved {
		turn = t.dev.rope.Pairs
	}
	turn(shift(to, t.Rope.Offset), rowAt(t.table, t.tStride, b*t.Block), 1, t.Dim, t.Rope.Dim)
}

// do chooses for row i of the span.
func (t *blockTask) do(l *lane, i int) {
	row, pos := t.span.Row+i, t.span.Pos+i
	sees := (pos + 1) / t.Block
	out := unsafe.Slice((*int32)(unsafe.Add(unsafe.Pointer(t.chosen), 4*t.chosenStride*row)), t.Positions())
	l.arena.clear()
	if sees <= t.Chosen {
		fillPositions(out, 0, 0, pos)
		return
	}
	n := 0
	for _, b := range t.best(l, row, sees) {
		for j := range t.Block {
			out[n] = b*int32(t.Block) + int32(j)
			n++
		}
	}
	fillPositions(out, n, sees*t.Block, pos)
}

// best is the best blocks of the first sees, rising; there are more than are chosen.
func (t *blockTask) best(l *lane, row, sees int) []int32 {
	scores := unsafe.Slice(l.arena.take(sees), sees)
	best := unsafe.Slice((*int32)(unsafe.Pointer(l.arena.take(t.Chosen))), t.Chosen)
	q := unsafe.Slice(rowAt(t.q, t.qStride, row), t.Heads*t.Dim)
	for b := range scores {
		key := t.keys[b*t.Dim:][:t.Dim]
		scores[b] = 0
		for h := range t.Heads {
			scores[b] += max(0, dotF32(q[h*t.Dim:][:t.Dim], key))
		}
	}
	choose(best, scores)
	return best
}

// sparseGQATask is grouped-query attention over positions that rows list. An item is a row of a span and
// a key head.
type sparseGQATask struct {
	device.GQA
	paged
	out, q             *float32
	outStride, qStride int
	chosen             *int32
	chosenStride, n    int
	items              []gqaItem // head and the first row
}

// SparseGQA: out and q [T, Heads*HeadDim] F32, cache as in GQA, chosen [T, n] I32. Scratch per thread: n values for
// each query head of a key head, and two rows of HeadDim.
func (d *Device) SparseGQA(stream device.Stream, out, q device.Mat, cache device.KV, chosen device.Mat, in device.Spans, p device.GQA) {
	const op = "SparseGQA"
	s := d.stream(op, stream)
	t := &s.sparseGQA
	if p.KVHeads < 1 || p.Heads < p.KVHeads || p.Heads%p.KVHeads != 0 || p.HeadDim < 1 || p.BlockTokens < 1 || p.Window != 0 {
		fail(op, "sizes %+v", p)
	}
	if chosen.Rows != q.Rows || chosen.Cols < 1 || chosen.DType != tensor.I32 {
		fail(op, "chosen is %s, need I32 of %d rows", chosen, q.Rows)
	}
	t.GQA, t.block = p, p.BlockTokens
	t.out, t.outStride = f32(op, "out", &out, q.Rows, p.Heads*p.HeadDim), out.Stride
	t.q, t.qStride = f32(op, "q", &q, q.Rows, p.Heads*p.HeadDim), q.Stride
	t.chosen, t.chosenStride, t.n = (*int32)(at(op, "chosen", &chosen)), chosen.Stride, chosen.Cols
	t.bind(op, d, &cache, newKVCache(op, &cache, p.Width(), p.HeadDim), in.List, q.Rows)
	t.items = t.items[:0]
	for i := range in.List {
		sp := &in.List[i]
		for r := range sp.Len {
			inRange(op, "chosen", t.positions(sp.Row+r), sp.Pos+r+1)
			for h := range p.KVHeads {
				t.items = append(t.items, gqaItem{span: i, head: h, first: r})
			}
		}
	}
	group := p.Heads / p.KVHeads
	ns := len(t.items) * t.n * group * p.HeadDim * 4 / d.speed.flopsPerNs
	s.each(t, len(t.items), ns, piece(group*t.n)+2*piece(p.HeadDim))
	t.spans = nil
}

// positions returns the positions that a row lists, up to the first -1.
func (t *sparseGQATask) positions(row int) []int32 {
	list := unsafe.Slice((*int32)(unsafe.Add(unsafe.Pointer(t.chosen), 4*t.chosenStride*row)), t.n)
	if n := slices.Index(list, -1); n >= 0 {
		return list[:n]
	}
	return list
}

func (t *sparseGQATask) do(l *lane, i int) {
	item := t.items[i]
	sp, group, d := &t.spans[item.span], t.Heads/t.KVHeads, t.HeadDim
	row := sp.Row + item.first
	list := t.positions(row)
	l.arena.clear()
	scores := unsafe.Slice(l.arena.take(group*t.n), group*t.n)
	cached := unsafe.Slice(l.arena.take(d), d)
	head := func(base *float32, stride, h int) []float32 {
		return unsafe.Slice(shift(rowAt(base, stride, row), (item.head*group+h)*d), d)
	}
	for j, pos := range list {
		t.kv.read(cached, t.slot(sp, int(pos)), item.head*d)
		for h := range group {
			scores[h*t.n+j] = dotF32(head(t.q, t.qStride, h), cached) * t.Scale
		}
	}
	for h := range group {
		weigh(scores[h*t.n:][:len(list)])
		clear(head(t.out, t.outStride, h))
	}
	for j, pos := range list {
		t.kv.read(cached, t.slot(sp, int(pos)), (t.KVHeads+item.head)*d)
		for h := range group {
			w, out := scores[h*t.n+j], head(t.out, t.outStride, h)
			for c, v := range cached {
				out[c] += w * v
			}
		}
	}
}

// weigh is softmax in place.
func weigh(x []float32) {
	top, sum := float32(math.Inf(-1)), 0.0
	for _, v := range x {
		top = max(top, v)
	}
	for i, v := range x {
		e := math.Exp(float64(v - top))
		x[i] = float32(e)
		sum += e
	}
	for i := range x {
		x[i] = float32(float64(x[i]) / sum)
	}
}
