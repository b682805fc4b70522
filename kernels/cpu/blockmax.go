package cpu

import (
	"unsafe"

	"krater/kernels/cpu/convert"
	"krater/kernels/cpu/dot"
	"krater/kernels/cpu/index"
	"krater/kernels/device"
)

// localTask is the choice of an index over blocks whose heads choose for themselves. Items of its first loop score
// parts of the blocks of rows; those of its second choose for a head of a row each.
type localTask struct {
	device.BlockIndex
	paged
	q            *float32
	qStride      int
	chosen       *int32
	chosenStride int
	span         *device.Span
	first, rows  int      // rows of the span that are at hand
	blocks       int      // the most that one of them scores
	part         int      // blocks that an item scores
	room         int      // the same, with what a choice needs
	scores       *float32 // [rows, Heads, room]
}

// selectLocal is SelectBlocks with p.Local. Shared scratch: a score for each head and block of a row, or scoreRoom values
// for several rows. Scratch per thread: that of Select.
func (d *Device) selectLocal(op string, s *Stream, chosen, q device.Mat, keys device.KV, in device.Spans, p device.BlockIndex) {
	t := &s.local
	if p.Heads < 1 || p.Dim < 1 || p.Block < 1 || p.Chosen < p.Local || p.BlockTokens < 1 {
		fail(op, "sizes %+v", p)
	}
	t.BlockIndex, t.block = p, p.BlockTokens
	t.chosen, t.chosenStride = positions(op, &chosen, q.Rows, p.Width()), chosen.Stride
	t.q, t.qStride = f32(op, "q", &q, q.Rows, p.Heads*p.Dim), q.Stride
	t.bind(op, d, &keys, newKVCache(op, &keys, p.Dim, p.Dim), in.List, q.Rows)
	t.part = max(1, scorePart/p.Block)
	scratch := p.Heads*convert.Padded(p.Dim) + headBlock*keyBlock + 2*piece(1) + t.kv.wideBlock(p.Dim)
	for i := range t.spans {
		t.span = &t.spans[i]
		t.blocks = t.free(t.span.Len - 1)
		t.room = (t.blocks + index.Round - 1) / index.Round * index.Round
		some := max(1, scoreRoom/max(1, p.Heads*t.room))
		for t.first = 0; t.first < t.span.Len; t.first += some {
			t.rows = min(some, t.span.Len-t.first)
			values := t.rows * p.Heads * t.blocks
			s.arena.reset(max(1, t.rows*p.Heads*t.room))
			t.scores = s.arena.take(max(1, t.rows*p.Heads*t.room))
			s.each((*localScores)(t), t.rows*t.parts(), 2*values*p.Block*p.Dim/t.dev.speed.flopsPerNs, piece(scratch))
			s.each(t, t.rows*p.Heads, values*chooseNs, markRoom(t.blocks))
		}
	}
	t.spans, t.span = nil, nil
}

// free is how many blocks row i of the span may choose among: those before the ones that are chosen anyway. It is 0 where
// the row sees no more blocks than it chooses.
func (t *localTask) free(i int) int {
	sees := (t.span.Pos+i)/t.Block + 1
	if sees <= t.Chosen {
		return 0
	}
	return sees - t.Local
}

// parts is the number of items that score the blocks of a row.
func (t *localTask) parts() int { return (t.blocks + t.part - 1) / t.part }

// row is the scores of a head of row i of those at hand.
func (t *localTask) row(i, head int) []float32 {
	return unsafe.Slice(shift(t.scores, (i*t.Heads+head)*t.room), t.blocks)
}

// localScores is the first loop of a localTask.
type localScores localTask

func (s *localScores) do(l *lane, item int) {
	t := (*localTask)(s)
	i, first := item/t.parts(), item%t.parts()*t.part
	end := min(first+t.part, t.free(t.first+i))
	if first >= end {
		return
	}
	l.arena.clear()
	wide := convert.Padded(t.Dim)
	query, products := l.arena.take(t.Heads*wide), l.arena.take(headBlock*keyBlock)
	var room *float32
	if n := t.kv.wideBlock(t.Dim); n > 0 {
		room = l.arena.take(n)
	}
	t.queries(query, rowAt(t.q, t.qStride, t.span.Row+t.first+i), t.Heads, t.Dim)
	for h := range t.Heads {
		for b := range t.row(i, h)[first:end] {
			t.row(i, h)[first+b] = minusInf
		}
	}
	for from := first * t.Block; from < end*t.Block; from += keyBlock {
		to := min(from+keyBlock, end*t.Block)
		keys := t.keys(t.span, from, to, 0, t.Dim, room)
		for head := 0; head < t.Heads; head += headBlock {
			heads := min(headBlock, t.Heads-head)
			t.products(l, &keys, t.span, rowAt(query, wide, head), products, heads, t.Dim, from, to)
			for h := range heads {
				scores := t.row(i, head+h)
				for pos := from; pos < to; {
					b := pos / t.Block
					n := min((b+1)*t.Block, to) - pos
					scores[b] = max(scores[b], t.dev.exp.Max(shift(rowAt(products, keyBlock, h), pos-from), n))
					pos += n
				}
			}
		}
	}
}

// queries copies heads of dim values as the tiles read them.
func (t *paged) queries(to, from *float32, heads, dim int) {
	for h := range heads {
		from, to := shift(from, h*dim), rowAt(to, convert.Padded(dim), h)
		if t.bf16 {
			t.dev.convert.Pack(to, from, dim)
		} else {
			copy(unsafe.Slice(to, dim), unsafe.Slice(from, dim))
		}
	}
}

// products makes scores [heads, keyBlock] the products of queries of dim values with keys [from, to).
func (t *paged) products(l *lane, keys *keyRows, span *device.Span, query, scores *float32, heads, dim, from, to int) {
	kernels, wide := t.dev.tiles(t.bf16), convert.Padded(dim)
	l.dot.Stride, l.dot.K = keys.stride, dim
	for pos := from; pos < to; {
		rows, n := t.rows(keys, span, pos, to)
		l.dot.W, l.dot.N = rows, n
		for h := 0; h < heads; h += dot.Rows {
			group := min(dot.Rows, heads-h)
			for j := range group {
				l.dot.X[j] = rowAt(query, wide, h+j)
				l.dot.Out[j] = shift(rowAt(scores, keyBlock, h+j), pos-from)
			}
			kernels[group](&l.dot)
		}
		pos += n
	}
}

// do chooses for a head of a row.
func (t *localTask) do(l *lane, item int) {
	i, head := t.first+item/t.Heads, item%t.Heads
	pos, n := t.span.Pos+i, t.Positions()
	to := unsafe.Slice((*int32)(unsafe.Add(unsafe.Pointer(t.chosen), 4*(t.chosenStride*(t.span.Row+i)+head*n))), n)
	begin, at := 0, 0 // the first position of what is chosen whatever its score; where it is written
	if free := t.free(i); free > 0 {
		best := to[:t.Chosen-t.Local] // widened to positions from the last one on
		if len(best) > 0 {
			t.dev.choose(l, best, unsafe.SliceData(t.row(item/t.Heads, head)), free)
		}
		at = len(best) * t.Block
		for b := len(best) - 1; b >= 0; b-- {
			block := best[b] * int32(t.Block)
			for j := t.Block - 1; j >= 0; j-- {
				to[b*t.Block+j] = block + int32(j)
			}
		}
		begin = free * t.Block
	}
	for p := begin; p <= pos; p++ {
		to[at] = int32(p)
		at++
	}
	for ; at < n; at++ {
		to[at] = -1
	}
}
