package cpu

import (
	"unsafe"

	"krater/kernels/cpu/convert"
	"krater/kernels/cpu/dot"
	"krater/kernels/device"
)

const (
	groupRows = 256 // assignments worked on between two barriers; bounds scratch to that many rows of H + F values
	itemRows  = 64  // assignments of one expert in an item
	innerMax  = 512 // rows of gate and up between SiLU passes; a multiple of convert.Block
)

// ffnItem is one expert with some consecutive rows of the group.
type ffnItem struct {
	gate, up, down product
	extra
	row, rows int
}

// ffnTask is SwiGLU for a group of items in two passes: inner rows
// (gate, up, activation) first, then down.
type ffnTask struct {
	dev      *Device
	items    []ffnItem
	in       []*float32 // a row of x for each row of the group
	out      []*float32 // a row of the result for each row of the group
	packed   *float32   // [rows, Padded(H)] x in packed order
	inner    *float32   // [rows, Padded(F)] natural or packed as down wants it
	h, f     int        // f: the largest of the group
	chunk    int        // weight rows per item of the loop
	perItem  int        // chunks per item
	downPass bool
}

func (t *ffnTask) do(l *lane, i int) {
	item, chunk := &t.items[i/t.perItem], i%t.perItem
	if t.downPass {
		t.down(l, item, chunk*t.chunk, min(item.down.n, (chunk+1)*t.chunk))
		return
	}
	end := min(item.gate.n, (chunk+1)*t.chunk)
	// Gate and up alternate for each tile of rows, so both blocks should stay in cache. A packed
	// row needs whole blocks of convert.Block.
	step := max(convert.Block, min(innerMax, item.gate.block(item.rows)&^(convert.Block-1)))
	for from := chunk * t.chunk; from < end; from += step {
		t.innerRows(l, item, from, min(end, from+step))
	}
}

// innerRows computes the middle values [from, to).
func (t *ffnTask) innerRows(l *lane, item *ffnItem, from, to int) {
	n := to - from
	l.arena.clear()
	gate, up := l.arena.take(dot.Rows*innerMax), l.arena.take(dot.Rows*innerMax)
	kernels := t.dev.tiles(item.gate.bf16)
	for r := 0; r < item.rows; r += dot.Rows {
		rows := min(dot.Rows, item.rows-r)
		for j := range rows {
			l.dot.X[j] = t.in[item.row+r+j]
			if item.gate.bf16 {
				l.dot.X[j] = rowAt(t.packed, convert.Padded(t.h), item.row+r+j)
			}
			l.dot.Out[j] = rowAt(gate, innerMax, j)
		}
		item.gate.tile(&l.dot, from, to)
		kernels[rows](&l.dot)
		for j := range rows {
			l.dot.Out[j] = rowAt(up, innerMax, j)
		}
		item.up.tile(&l.dot, from, to)
		kernels[rows](&l.dot)
		for j := range rows {
			g, u := rowAt(gate, innerMax, j), rowAt(up, innerMax, j)
			dst := (*float32)(unsafe.Add(unsafe.Pointer(rowAt(t.inner, convert.Padded(t.f), item.row+r+j)), 4*from))
			if !item.down.bf16 {
				item.middle(t.dev, dst, g, u, from, n)
				continue
			}
			item.middle(t.dev, g, g, u, from, n)
			t.dev.convert.Pack(dst, g, n)
		}
	}
}

// down computes columns [from, to) of the results.
func (t *ffnTask) down(l *lane, item *ffnItem, from, to int) {
	kernels := t.dev.tiles(item.down.bf16)
	step := item.down.block(item.rows)
	for ; from < to; from += step {
		end := min(to, from+step)
		item.down.tile(&l.dot, from, end)
		for r := 0; r < item.rows; r += dot.Rows {
			rows := min(dot.Rows, item.rows-r)
			for j := range rows {
				l.dot.X[j] = rowAt(t.inner, convert.Padded(t.f), item.row+r+j)
				l.dot.Out[j] = (*float32)(unsafe.Add(unsafe.Pointer(t.out[item.row+r+j]), 4*from))
			}
			kernels[rows](&l.dot)
			for j := range rows {
				item.finish(t.dev, l.dot.Out[j], from, end-from)
			}
		}
	}
}

// add assigns rows [row, row+rows) of the group to expert e.
func (t *ffnTask) add(op string, e *device.Expert, row, rows int) {
	f := e.Gate.Rows
	item := ffnItem{
		gate: newProduct(op, "gate", &e.Gate, f, t.h),
		up:   newProduct(op, "up", &e.Up, f, t.h),
		down: newProduct(op, "down", &e.Down, t.h, f), extra: newExtra(op, &e.Extra, f, t.h),
		row: row, rows: rows,
	}
	if item.gate.bf16 != item.up.bf16 || f == 0 || t.h == 0 {
		fail(op, "gate is %s, up is %s", e.Gate, e.Up)
	}
	t.f = max(t.f, f)
	t.items = append(t.items, item)
}

// run computes the group and empties it.
func (t *ffnTask) run(s *Stream) {
	rows := len(t.in)
	if rows == 0 {
		return
	}
	s.phases.begin()
	hp, fp := convert.Padded(t.h), convert.Padded(t.f)
	s.arena.reset(rows * (hp + fp))
	t.packed, t.inner = s.arena.take(rows*hp), s.arena.take(rows*fp)
	ns := 0
	for i := range t.items {
		item := &t.items[i]
		ns += item.gate.ns(s.dev, item.rows) + item.up.ns(s.dev, item.rows)
		if item.gate.bf16 {
			for r := item.row; r < item.row+item.rows; r++ {
				s.dev.convert.Pack(rowAt(t.packed, hp, r), t.in[r], t.h)
			}
		}
	}
	t.pass(s, false, t.f, ns)
	s.phases.middle()
	t.pass(s, true, t.h, ns/2)
	s.phases.end()
	t.items, t.in, t.out, t.f = t.items[:0], t.in[:0], t.out[:0], 0
}

// pass runs one half of the group over n weight rows per item.
func (t *ffnTask) pass(s *Stream, down bool, n, ns int) {
	t.downPass = down
	t.chunk = n
	if s.shared(ns) {
		// The items are spread over the lanes: the more items, the fewer cuts.
		const perLane = 4
		cuts := max(1, perLane*len(s.lanes)/len(t.items))
		t.chunk = ((n+cuts-1)/cuts + convert.Block - 1) &^ (convert.Block - 1)
	}
	t.perItem = (n + t.chunk - 1) / t.chunk
	s.each(t, t.perItem*len(t.items), ns, 2*dot.Rows*innerMax)
}

// FFN is out [T, H] = down(silu(gate x) * up x), or with the activation and biases of e.Extra, x [T, H] F32, weights BF16 or F32. Scratch:
// groupRows rows of H + F values.
func (d *Device) FFN(stream device.Stream, out, x device.Mat, e device.Expert) {
	const op = "FFN"
	s := d.stream(op, stream)
	o, in := f32(op, "out", &out, x.Rows, x.Cols), f32(op, "x", &x, x.Rows, x.Cols)
	t := &s.ffn
	t.begin(d, x.Cols)
	t.add(op, &e, 0, 0) // checks the arguments even if there is no row
	if one := &t.items[0]; one.gate.onTiles(d) && one.up.onTiles(d) && one.down.onTiles(d) {
		s.ffnUnit.run(s, one, o, out.Stride, in, x.Stride, x.Rows)
		return
	}
	t.begin(d, x.Cols)
	for r := 0; r < x.Rows; {
		// The weights are read once for each group, so a group is one item.
		rows := min(groupRows, x.Rows-r)
		t.add(op, &e, 0, rows)
		for j := range rows {
			t.in = append(t.in, rowAt(in, x.Stride, r+j))
			t.out = append(t.out, rowAt(o, out.Stride, r+j))
		}
		t.run(s)
		r += rows
	}
}

func (t *ffnTask) begin(d *Device, h int) {
	t.dev, t.h = d, h
	t.items, t.in, t.out, t.f = t.items[:0], t.in[:0], t.out[:0], 0
}

// Experts runs the listed experts of bank on their rows: assignment a = token*K + rank reads row
// token of x [T, H] and writes row a of y [T*K, H]. Rows of y without an expert stay unchanged.
// Scratch as FFN.
func (d *Device) Experts(stream device.Stream, y, x device.Mat, bank []device.Expert, work []device.ExpertRows, topK int) {
	const op = "Experts"
	s := d.stream(op, stream)
	if topK <= 0 {
		fail(op, "top %d", topK)
	}
	o, in := f32(op, "y", &y, x.Rows*topK, x.Cols), f32(op, "x", &x, x.Rows, x.Cols)
	t := &s.ffn
	t.begin(d, x.Cols)
	for i := range work {
		if uint(work[i].Expert) >= uint(len(bank)) {
			fail(op, "expert %d of %d", work[i].Expert, len(bank))
		}
		inRange(op, "assignment", work[i].Assign, y.Rows)
		e := &bank[work[i].Expert]
		t.add(op, e, 0, 0) // checks all shapes before anything is written
	}
	t.begin(d, x.Cols)
	for i := range work {
		for from := 0; from < len(work[i].Assign); from += itemRows {
			part := work[i].Assign[from:min(from+itemRows, len(work[i].Assign))]
			if len(t.in)+len(part) > groupRows {
				t.run(s)
			}
			t.add(op, &bank[work[i].Expert], len(t.in), len(part))
			for _, a := range part {
				t.in = append(t.in, rowAt(in, x.Stride, int(a)/topK))
				t.out = append(t.out, rowAt(o, y.Stride, int(a)))
			}
		}
	}
	t.run(s)
}
