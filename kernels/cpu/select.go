package cpu

import (
	"unsafe"

	"krater/kernels/cpu/index"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

const (
	// scoreRoom bounds the scores that are kept at once, in values; a row may have more.
	scoreRoom = 1 << 20
	// scorePart is the most keys that one item scores: a multiple of keyBlock.
	scorePart = 16 * keyBlock
	// scoreRows is the most rows of an item, whose keys are turned for all of them.
	scoreRows = 8
	// chooseNs is the time to choose among scores, in ns for each.
	chooseNs = 1
)

// selectTask is the choice of an indexer: items of its first loop score a part of the keys for some rows, those of its
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

// scoredPart is keys [from, to) for rows of the list from row on, which are of one span: the last one sees the most keys.
type scoredPart struct{ row, rows, from, to int }

// Select: chosen [T, Positions] I32, q [T, Heads*Dim] and weights [T, Heads] F32, keys [slots, Dim] of any type,
// groups of I8 dividing Dim. See device.Index. Shared scratch: the scores of a row, or scoreRoom values
// for several rows. Scratch per thread: index.Keys rows of Dim values and Heads values, and keyBlock rows of Dim values when the
// cache is of 8 bits, or two bits for each score of a row.
func (d *Device) Select(stream device.Stream, chosen, q, weights device.Mat, keys device.KV, in device.Spans, p device.Index) {
	const op = "Select"
	s := d.stream(op, stream)
	t := &s.choice
	if p.Heads < 1 || p.Dim < 1 || p.TopK < 1 || p.Pool < 0 || p.BlockTokens < 1 {
		fail(op, "sizes %+v", p)
	}
	t.Index, t.block, t.per = p, p.BlockTokens, 0
	if p.Entries {
		t.per = p.Pool
	}
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
	keys, most := t.divide(4 * len(s.lanes))
	s.arena.reset(piece(t.end()))
	t.scores = s.arena.take(t.end())
	s.each((*scoreTask)(t), len(t.parts), 2*keys*t.Heads*t.Dim/t.dev.speed.flopsPerNs, piece(index.Keys*t.Dim)+piece(t.Heads)+t.kv.wideBlock(t.Dim))
	s.each((*chooseTask)(t), len(t.list), keys*chooseNs, markRoom(most))
	t.begin()
}

// markRoom is the scratch of a choice among n scores, in float32 values.
func markRoom(n int) int { return piece(index.Marks(n) * 2) }

// divide makes the parts, with several rows where enough items are left. It returns the keys of all rows, and those of the
// row that has the most.
func (t *selectTask) divide(enough int) (keys, most int) {
	for i := range t.list {
		keys, most = keys+t.list[i].keys, max(most, t.list[i].keys)
	}
	rows := max(1, min(scoreRows, keys/scorePart/enough))
	part := max(keyBlock, min(scorePart, keys/enough/keyBlock*keyBlock))
	for i := 0; i < len(t.list); {
		n := 1
		for n < rows && i+n < len(t.list) && t.list[i+n].span == t.list[i].span {
			n++
		}
		for from, end := 0, t.list[i+n-1].keys; from < end; from += part {
			t.parts = append(t.parts, scoredPart{i, n, from, min(from+part, end)})
		}
		i += n
	}
	return keys, most
}

// scoreTask is the first loop of a selectTask.
type scoreTask selectTask

func (s *scoreTask) do(l *lane, i int) {
	t, part := (*selectTask)(s), s.parts[i]
	rows := t.list[part.row:][:part.rows]
	span := &t.spans[rows[0].span]
	l.arena.clear()
	panel, ones := l.arena.take(index.Keys*t.Dim), l.arena.take(t.Heads)
	for h := range unsafe.Slice(ones, t.Heads) {
		*shift(ones, h) = 1
	}
	var wide *float32
	if n := t.kv.wideBlock(t.Dim); n > 0 {
		wide = l.arena.take(n)
	}
	l.index.Panel, l.index.Stride, l.index.Dim, l.index.Heads = panel, 4*t.Dim, t.Dim, t.Heads
	for from := part.from; from < part.to; from += index.Keys {
		t.keyRows(l, span, from, min(from+index.Keys, part.to), wide)
		t.dev.index.Panel(panel, &l.keys, t.Dim, t.bf16)
		for r := range rows {
			row := &rows[r]
			if row.keys <= from {
				continue
			}
			at := span.Row + row.row
			l.index.Q, l.index.W, l.index.Out = rowAt(t.q, t.qStride, at), ones, shift(t.scores, row.at+from)
			if t.weights != nil {
				l.index.W = rowAt(t.weights, t.wStride, at)
			}
			t.dev.index.Score(&l.index)
		}
	}
}

// keyRows finds the rows of keys [from, to), at most index.Keys; the last one stands for what is missing. Keys of 8 bits are
// widened to wide.
func (t *selectTask) keyRows(l *lane, span *device.Span, from, to int, wide *float32) {
	step, per := max(1, t.Pool), max(1, t.per)
	rows, pos := device.EntryRows(t.block, per), t.Last(from)
	block, at := pos/t.block, pos%t.block
	for i := range l.keys {
		if i > 0 && from+i < to {
			for at += step; at >= t.block; at -= t.block {
				block++
			}
		}
		slot := int(span.Blocks[block])*rows + at/per
		if !t.kv.narrow() {
			l.keys[i] = t.kv.row(slot)
			continue
		}
		l.keys[i] = unsafe.Add(unsafe.Pointer(wide), i*t.kv.wideRow(t.Dim))
		t.kv.widen(t.dev.convert, l.keys[i], slot, 1, 0, t.Dim)
	}
}

// chooseTask is the second loop of a selectTask.
type chooseTask selectTask

func (t *chooseTask) do(l *lane, i int) {
	row := &t.list[i]
	span := &t.spans[row.span]
	to := (*selectTask)(t).row(span.Row + row.row)
	t.dev.choose(l, to[:t.TopK], shift(t.scores, row.at), row.keys)
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

// choose is index.Choose with scratch of the lane, markRoom(n) values.
func (d *Device) choose(l *lane, chosen []int32, scores *float32, n int) {
	l.arena.clear()
	marks := (*uint64)(unsafe.Pointer(l.arena.take(markRoom(n))))
	d.index.Choose(chosen, scores, n, unsafe.Slice(marks, index.Marks(n)))
}
