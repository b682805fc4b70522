package cpu

import (
	"sync/atomic"
	"unsafe"

	"krater/kernels/cpu/qrows"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// ffnQItem is one expert with some consecutive rows of the group.
type ffnQItem struct {
	w13, w2 quantProduct
	extra
	f         int // columns of W2, a multiple of 16
	row, rows int
}

// ffnQTask is SwiGLU in integers for a group of items, in one loop without a barrier in the middle.
// Every thread takes parts of W13, item after item, until none is left, and then parts of the W2
// whose middle rows are ready. It waits a bounded time for middle rows that are not, and then
// leaves: the thread that computes them runs the rest of their W2. So no thread waits for one that
// lost its core.
type ffnQTask struct {
	dev   *Device
	x     quantRows
	y     *float32
	yRows int // stride
	items []ffnQItem
	in    []int32 // for each row of the group: a row of x
	out   []int32 // and one of y
	cut   int     // parts of a matrix
	wait  int     // looks at middle rows that are not ready, before a thread leaves

	phases   *phases      // of the stream
	next     atomic.Int64 // part of all W13
	progress []ffnQProgress

	// The middle rows: gate and up in float32, then integers.
	both   *float32 // [rows, 2*stride]
	mid    quantRows
	stride int // padded F, the largest of the group
}

// ffnQProgress is the progress of an item.
type ffnQProgress struct {
	left atomic.Int32 // parts of W13 to go, and one more for the middle rows
	down atomic.Int32 // parts of W2 that were taken
}

// A thread that has no part left waits about as long as others may need for theirs, partWait times a part by the assumed
// speeds: 16 threads that share the memory read a part at a quarter of the speed of one. Otherwise the threads of a large
// network leave before its W2, a third of its bytes. A look takes about roundNs.
const partWait, roundNs = 4, 40

// midReady is the value of left when the middle rows are ready.
const midReady = 0

func (t *ffnQTask) do(l *lane, _ int) {
	parts := int64(t.cut * len(t.items))
	for i := t.next.Add(1) - 1; i < parts; i = t.next.Add(1) - 1 {
		t.inner(l, int(i)/t.cut, int(i)%t.cut)
	}
	for idle := 0; idle < t.wait; idle++ {
		took, missing := t.downs(l)
		if !missing {
			return
		}
		if took {
			idle = 0
		}
		pause()
	}
}

// downs runs parts of W2 until none is available. took: there were some; missing: there are items
// whose middle rows are not there yet.
func (t *ffnQTask) downs(l *lane) (took, missing bool) {
	cut := int32(t.cut)
	for i := range t.items {
		p := &t.progress[i]
		if p.left.Load() != midReady {
			missing = true
			continue
		}
		for p.down.Load() < cut {
			part := p.down.Add(1) - 1
			if part >= cut {
				break
			}
			t.down(l, &t.items[i], int(part))
			took = true
		}
	}
	return took, missing
}

// down computes part p of the results of an item.
func (t *ffnQTask) down(l *lane, item *ffnQItem, p int) {
	tiles := item.w2.tiles()
	from, to := p*tiles/t.cut, (p+1)*tiles/t.cut
	item.w2.multiply(t.dev, l, quantInput{quantRows: &t.mid, first: item.row},
		quantOutput{base: t.y, stride: t.yRows, index: t.out[item.row:]},
		item.rows, from, to)
	t.biased(item, from, to)
}

// biased adds the bias to the results of tiles [from, to) of an item.
func (t *ffnQTask) biased(item *ffnQItem, from, to int) {
	at, end := from*tensor.TileRows, min(to*tensor.TileRows, item.w2.n)
	for _, row := range t.out[item.row : item.row+item.rows] {
		item.finish(t.dev, shift(rowAt(t.y, t.yRows, int(row)), at), at, end-at)
	}
}

// inner computes part p of gate and up of an item. The thread that finishes last quantises the
// middle rows.
func (t *ffnQTask) inner(l *lane, i, p int) {
	item := &t.items[i]
	tiles := item.f / tensor.TileRows
	from, to := p*tiles/t.cut, (p+1)*tiles/t.cut
	in := quantInput{quantRows: &t.x, index: t.in[item.row:]}
	out := quantOutput{base: t.both, stride: 2 * t.stride, first: item.row}
	item.w13.multiply(t.dev, l, in, out, item.rows, from, to)
	// Tile F/16 of W13 is the first of up, and goes to column stride.
	out.base = (*float32)(unsafe.Add(unsafe.Pointer(out.base), 4*(t.stride-item.f)))
	item.w13.multiply(t.dev, l, in, out, item.rows, tiles+from, tiles+to)
	if left := &t.progress[i].left; left.Add(-1) == midReady+1 {
		t.quantize(item)
		t.phases.middle()
		left.Store(midReady)
	}
}

// quantize makes the middle rows of an item.
func (t *ffnQTask) quantize(item *ffnQItem) {
	for r := item.row; r < item.row+item.rows; r++ {
		t.middle(item, r)
	}
}

// middle makes middle row r, of an item.
func (t *ffnQTask) middle(item *ffnQItem, r int) {
	gate := rowAt(t.both, 2*t.stride, r)
	up := (*float32)(unsafe.Add(unsafe.Pointer(gate), 4*t.stride))
	if fill := item.w2.k - item.f; fill > 0 {
		clearF32((*float32)(unsafe.Add(unsafe.Pointer(gate), 4*item.f)), fill)
		clearF32((*float32)(unsafe.Add(unsafe.Pointer(up), 4*item.f)), fill)
	}
	q, scale, bias := t.mid.row(r)
	if item.silu {
		item.extra.biased(t.dev, gate, up, 0, item.f)
		t.dev.qrows.SiluQuantize(gate, up, q, scale, bias, item.w2.groups(), item.w2.steps)
		return
	}
	item.extra.middle(t.dev, gate, gate, up, 0, item.f)
	t.dev.qrows.Quantize(gate, q, scale, bias, item.w2.groups(), item.w2.steps)
}

// begin makes t ready for rows of x.
func (t *ffnQTask) begin(d *Device, x quantRows, y *float32, yStride int) {
	t.dev, t.x, t.y, t.yRows = d, x, y, yStride
	t.empty()
}

func (t *ffnQTask) empty() {
	t.items, t.in, t.out, t.stride = t.items[:0], t.in[:0], t.out[:0], 0
}

// add puts rows [row, row+rows) of the group on expert e, whose results have h columns.
func (t *ffnQTask) add(op string, e *device.QExpert, h, row, rows int) {
	f := e.W2.Cols
	if f < 1 || f%tensor.TileRows != 0 {
		fail(op, "inner size %d is not a multiple of %d", f, tensor.TileRows)
	}
	t.items = append(t.items, ffnQItem{
		w13:   t.dev.quantProduct(op, "W13", &e.W13, 2*f, t.x.k, t.x.group),
		w2:    t.dev.quantProduct(op, "W2", &e.W2, h, e.W2.PaddedCols(), e.W2.Group),
		extra: newExtra(op, &e.Extra, f, h), f: f, row: row, rows: rows,
	})
	t.stride = max(t.stride, e.W2.PaddedCols())
}

// run computes the group and empties it.
func (t *ffnQTask) run(s *Stream) {
	rows := len(t.in)
	if rows == 0 {
		return
	}
	s.phases.begin()
	t.phases = &s.phases
	wide := t.wide(s)
	packs := 0
	if wide {
		s.ffnQWide.ffnQTask = t
		packs = s.ffnQWide.prepare(s)
	}
	t.makeRoom(s, rows, packs)
	ns, scratch := 0, 0
	for i := range t.items {
		item := &t.items[i]
		scratch = max(scratch, s.dev.unit.scratch(&item.w13, item.rows), s.dev.unit.scratch(&item.w2, item.rows))
		ns += item.w13.ns(s.dev, item.rows) + item.w2.ns(s.dev, item.rows)
	}
	if wide {
		s.ffnQWide.run(s, ns)
		s.phases.end()
		t.empty()
		return
	}
	t.cut = s.cuts(ns, 2*len(t.items))
	t.wait = max(spinRounds, partWait*ns/(t.cut*len(t.items))/roundNs)
	if len(t.progress) < len(t.items) {
		t.progress = make([]ffnQProgress, 2*len(t.items))
	}
	for i := range t.items {
		t.progress[i].left.Store(int32(midReady + 1 + t.cut))
		t.progress[i].down.Store(0)
	}
	t.next.Store(0)
	s.each(t, min(len(s.lanes), t.cut*len(t.items)), ns, scratch)
	s.phases.end()
	t.empty()
}

// makeRoom takes the middle rows from the arena, with more values to be taken later. Rows of
// integers are a cache line longer than they need, so that eight of them do not meet in one place
// of the first-level cache.
func (t *ffnQTask) makeRoom(s *Stream, rows, more int) {
	const line = 64
	qStride, groups := t.stride+line, t.stride/qrows.Block
	s.arena.reset(piece(rows*2*t.stride) + piece(rows*qStride/4) + 2*piece(rows*groups) + more)
	t.both = s.arena.take(rows * 2 * t.stride)
	t.mid = quantRows{
		q: (*int8)(unsafe.Pointer(s.arena.take(rows * qStride / 4))), qStride: qStride,
		scale: s.arena.take(rows * groups), scaleStride: groups,
		bias: (*int32)(unsafe.Pointer(s.arena.take(rows * groups))), biasStride: groups,
		rows: rows,
	}
}

// quantGroup returns the number of rows of a group whose middle rows have f values. More lanes need
// larger groups, to wait for each other less often, within bounded memory.
func (s *Stream) quantGroup(f int) int {
	const lanes, most, values = 4, 1024, 2 << 20
	return max(groupRows, min(len(s.lanes)/lanes*groupRows, most, values/f))
}

// FFNQ is out [T, H] F32 = down(silu(gate x) * up x), or with the activation and biases of e.Extra, in integers; the middle row is quantised by
// the groups of W2. Scratch: quantGroup rows of 9 bytes for each of F values, their scales, and
// what the tile unit's rows take.
func (d *Device) FFNQ(stream device.Stream, out device.Mat, x device.QRows, e device.QExpert) {
	const op = "FFNQ"
	s := d.stream(op, stream)
	in := newQuantRows(op, &x)
	t := &s.ffnQ
	t.begin(d, in, f32(op, "out", &out, in.rows, out.Cols), out.Stride)
	t.add(op, &e, out.Cols, 0, 0) // checks even when there is no row
	t.empty()
	most := s.quantGroup(e.W2.Cols)
	for r := 0; r < in.rows; r += most {
		// The weights are read once for each group, so a group is one item.
		rows := min(most, in.rows-r)
		t.add(op, &e, out.Cols, 0, rows)
		for j := range rows {
			t.in, t.out = append(t.in, int32(r+j)), append(t.out, int32(r+j))
		}
		t.run(s)
	}
}

// ExpertsQ runs the listed experts of bank on their rows, as Experts does: assignment a = token*K +
// rank reads row token of x and writes row a of y [T*K, H] F32. Rows of y without an expert stay
// unchanged. Scratch as FFNQ.
func (d *Device) ExpertsQ(stream device.Stream, y device.Mat, x device.QRows, bank []device.QExpert, work []device.ExpertRows, topK int) {
	const op = "ExpertsQ"
	s := d.stream(op, stream)
	if topK <= 0 {
		fail(op, "top %d", topK)
	}
	in := newQuantRows(op, &x)
	t := &s.ffnQ
	t.begin(d, in, f32(op, "y", &y, in.rows*topK, y.Cols), y.Stride)
	for i := range work {
		if uint(work[i].Expert) >= uint(len(bank)) {
			fail(op, "expert %d of %d", work[i].Expert, len(bank))
		}
		inRange(op, "assignment", work[i].Assign, y.Rows)
		t.add(op, &bank[work[i].Expert], y.Cols, 0, 0) // checks shapes of all before anything is written
	}
	t.empty()
	for i := range work {
		for from := 0; from < len(work[i].Assign); from += itemRows {
			assign := work[i].Assign[from:min(from+itemRows, len(work[i].Assign))]
			if len(t.in)+len(assign) > s.quantGroup(bank[work[i].Expert].W2.Cols) {
				t.run(s)
			}
			t.add(op, &bank[work[i].Expert], y.Cols, len(t.in), len(assign))
			for _, a := range assign {
				t.in, t.out = append(t.in, a/int32(topK)), append(t.out, a)
			}
		}
	}
	t.run(s)
}
