package cpu

import (
	"math"
	"unsafe"

	"krater/kernels/cpu/convert"
	"krater/kernels/cpu/dot"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

const (
	// scoreRoom bounds the scores that are kept at once, in values; a row may have more.
	scoreRoom = 1 << 20
	// scorePart is how many keys of a row one item scores: a multiple of keyBlock.
	scorePart = 16 * keyBlock
)

// selectTask is the choice of an indexer: items of its first loop score parts of rows, those of its
// second choose for a row each.
type selectTask struct {
	device.Index
	paged
	q, weights       *float32 // weights nil: all are 1
	qStride, wStride int
	chosen           *int32
	chosenStride     int
	scores           *float32 // of the rows in list, in the stream's arena
	list             []scoredRow
	parts            []scoredPart
}

// scoredRow is a row that sees more keys than it chooses.
type scoredRow struct {
	span, row int
	keys      int // of positions or pools that it sees
	at        int // of its scores, which have room for whole blocks of keys
}

// scoredPart is keys [from, to) of a row of the list.
type scoredPart struct{ row, from, to int }

// Select: chosen [T, Positions] I32, q [T, Heads*Dim] and weights [T, Heads] F32, keys [slots, Dim] of any type,
// groups of I8 dividing Dim. See device.Index. Shared scratch: the scores of a row, or scoreRoom values
// for several rows. Scratch per thread: Heads rows of Dim values, and headBlock + 1 rows of keyBlock values,
// and keyBlock rows of Dim values when the cache is of 8 bits, and always with pools, and keyBlock values then.
func (d *Device) Select(stream device.Stream, chosen, q, weights device.Mat, keys device.KV, in device.Spans, p device.Index) {
	const op = "Select"
	s := d.stream(op, stream)
	t := &s.choice
	if p.Heads < 1 || p.Dim < 1 || p.TopK < 1 || p.Pool < 0 || p.BlockTokens < 1 {
		fail(op, "sizes %+v", p)
	}
	t.Index, t.block = p, p.BlockTokens
	t.q, t.qStride = f32(op, "q", &q, q.Rows, p.Heads*p.Dim), q.Stride
	t.weights, t.wStride = f32(op, "weights", &weights, q.Rows, p.Heads), weights.Stride
	t.chosen, t.chosenStride = positions(op, &chosen, q.Rows, p.Positions()), chosen.Stride
	t.bind(op, d, &keys, newKVCache(op, &keys, p.Dim, p.Dim), in.List, q.Rows)
	t.choose(s)
}

// choose chooses for all rows.
func (t *selectTask) choose(s *Stream) {
	t.begin()
	for i := range t.spans {
		span := &t.spans[i]
		for r := range span.Len {
			n := t.Sees(span.Pos + r)
			if n <= t.TopK {
				last := span.Pos + r
				if t.Entries {
					last = n - 1
				}
				fillPositions(t.row(span.Row+r), 0, 0, last)
				continue
			}
			room := (n + keyBlock - 1) &^ (keyBlock - 1)
			if end := t.end(); end > 0 && end+room > scoreRoom {
				t.run(s)
			}
			t.list = append(t.list, scoredRow{span: i, row: r, keys: n, at: t.end()})
		}
	}
	t.run(s)
	t.spans = nil
}

// positions is at for a matrix that must be I32 with the given shape.
func positions(op string, m *device.Mat, rows, cols int) *int32 {
	if m.Rows != rows || m.Cols != cols || m.DType != tensor.I32 {
		fail(op, "chosen is %s, need I32 [%d, %d]", *m, rows, cols)
	}
	return (*int32)(at(op, "chosen", m))
}

// begin empties the list.
func (t *selectTask) begin() { t.list, t.parts = t.list[:0], t.parts[:0] }

// end is the room that the scores of the list take, in values.
func (t *selectTask) end() int {
	if len(t.list) == 0 {
		return 0
	}
	last := &t.list[len(t.list)-1]
	return last.at + (last.keys+keyBlock-1)&^(keyBlock-1)
}

// row is a row of chosen.
func (t *selectTask) row(r int) []int32 {
	return unsafe.Slice((*int32)(unsafe.Add(unsafe.Pointer(t.chosen), 4*t.chosenStride*r)), t.Positions())
}

// fillPositions writes positions from to last at number n of to, and -1 behind them.
func fillPositions(to []int32, n, from, last int) {
	for ; n < len(to); n++ {
		to[n] = -1
		if from <= last {
			to[n] = int32(from)
		}
		from++
	}
}

// run scores the rows of the list and chooses for them, and empties it.
func (t *selectTask) run(s *Stream) {
	if len(t.list) == 0 {
		return
	}
	keys := 0
	for i := range t.list {
		n := t.list[i].keys
		keys += n
		for from := 0; from < n; from += scorePart {
			t.parts = append(t.parts, scoredPart{i, from, min(from+scorePart, n)})
		}
	}
	s.arena.reset(piece(t.end()))
	t.scores = s.arena.take(t.end())
	scratch := t.Heads*convert.Padded(t.Dim) + headBlock*keyBlock + 2*piece(1) + t.blockRoom()
	s.each((*scoreTask)(t), len(t.parts), 2*keys*t.Heads*t.Dim/t.dev.speed.flopsPerNs, piece(scratch))
	s.each((*chooseTask)(t), len(t.list), keys*chooseNs, 0)
	t.begin()
}

// chooseNs is the time to choose among positions, in ns for each.
const chooseNs = 5

// blockRoom is the scratch that a block of keys takes, in float32 values.
func (t *selectTask) blockRoom() int {
	if t.Pool > 0 {
		return piece(keyBlock) + t.gathered(t.Dim)
	}
	return t.kv.wideBlock(t.Dim)
}

// pools gathers the keys of pools [from, to), at most keyBlock, into scratch.
func (t *selectTask) pools(span *device.Span, from, to int, scratch *float32) keyRows {
	at := unsafe.Slice((*int32)(unsafe.Pointer(scratch)), to-from)
	for i := range at {
		at[i] = int32(t.Last(from + i))
	}
	keys := t.gather(span, at, 0, t.Dim, shift(scratch, piece(keyBlock)))
	keys.from = from
	return keys
}

// scoreTask is the first loop of a selectTask.
type scoreTask selectTask

func (t *scoreTask) do(l *lane, i int) {
	part := t.parts[i]
	row := &t.list[part.row]
	span, wide := &t.spans[row.span], convert.Padded(t.Dim)
	l.arena.clear()
	query, scores := l.arena.take(t.Heads*wide), l.arena.take(headBlock*keyBlock)
	var block *float32
	if n := (*selectTask)(t).blockRoom(); n > 0 {
		block = l.arena.take(n)
	}
	t.queries(query, rowAt(t.q, t.qStride, span.Row+row.row), t.Heads, t.Dim)
	for from := part.from; from < part.to; from += keyBlock {
		to := min(from+keyBlock, part.to)
		var keys keyRows
		if t.Pool > 0 {
			keys = (*selectTask)(t).pools(span, from, to, block)
		} else {
			keys = t.keys(span, from, to, 0, t.Dim, block)
		}
		out := shift(t.scores, row.at+from)
		clearF32(out, keyBlock)
		for first := 0; first < t.Heads; first += headBlock {
			heads := min(headBlock, t.Heads-first)
			t.products(l, &keys, span, rowAt(query, wide, first), scores, heads, t.Dim, from, to)
			for h := range heads {
				row := unsafe.Slice(rowAt(scores, keyBlock, h), to-from)
				for i, v := range row {
					row[i] = max(v, 0)
				}
			}
			// All of a block of keys is summed, so that a score has the same bits wherever it lies.
			l.axpy.P[0], l.axpy.Acc[0] = &ones[0], out
			if t.weights != nil {
				l.axpy.P[0] = shift(rowAt(t.weights, t.wStride, span.Row+row.row), first)
			}
			l.axpy.W, l.axpy.Stride = unsafe.Pointer(scores), 4*keyBlock
			l.axpy.N, l.axpy.Width = heads, keyBlock
			t.dev.axpy.F32[1](&l.axpy)
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

// chooseTask is the second loop of a selectTask.
type chooseTask selectTask

func (t *chooseTask) do(_ *lane, i int) {
	row := &t.list[i]
	span := &t.spans[row.span]
	to := (*selectTask)(t).row(span.Row + row.row)
	choose(to[:t.TopK], unsafe.Slice(shift(t.scores, row.at), row.keys))
	if t.Pool == 0 || t.Entries {
		return
	}
	for i := t.TopK - 1; i >= 0; i-- { // from the last on, so that none is overwritten before it is read
		first := t.Last(int(to[i])-1) + 1
		for j := range t.Pool {
			to[i*t.Pool+j] = int32(first + j)
		}
	}
	fillPositions(to, t.TopK*t.Pool, t.Last(row.keys-1)+1, span.Pos+row.row)
}

// choose writes the positions of the best scores, rising; there are more scores than chosen has room for.
// Of equal ones it takes the first. It finds the digits of the least score that is chosen, the
// highest first, and then takes what is above.
func choose(chosen []int32, scores []float32) {
	var counts [1 << 11]int32
	left := int32(len(chosen)) // how many are chosen of the scores that begin with the digits found
	var found, mask uint32
	for _, digit := range [...]struct{ at, bits int }{{21, 11}, {10, 11}, {0, 10}} {
		clear(counts[:])
		most := uint32(1)<<digit.bits - 1
		for _, v := range scores {
			if k := scoreRank(v); k&mask == found {
				counts[k>>digit.at&most]++
			}
		}
		d := most
		for ; counts[d] < left; d-- {
			left -= counts[d]
		}
		found, mask = found|d<<digit.at, mask|most<<digit.at
	}
	n := 0
	for i, v := range scores {
		k := scoreRank(v)
		if k < found || k == found && left == 0 {
			continue
		}
		if k == found {
			left--
		}
		chosen[n] = int32(i)
		n++
	}
}

// scoreRank rises with the score; what is not a number has the least. Both zeros are equal.
func scoreRank(v float32) uint32 {
	switch b := math.Float32bits(v); {
	case v != v:
		return 0
	case v == 0:
		return 1 << 31
	case b>>31 != 0:
		return ^b
	default:
		return b | 1<<31
	}
}
