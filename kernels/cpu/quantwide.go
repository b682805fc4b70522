package cpu

import (
	"unsafe"

	"krater/kernels/cpu/qtile"
	"krater/kernels/tensor"
)

const (
	// wideRows is the number of rows of a group from which a network runs step by step, with each
	// step spread over all threads. With this many rows a barrier costs almost nothing, but a
	// single thread that quantises the middle rows of all, or is left alone with the last matrix,
	// costs much. With fewer rows, reading weights dominates; see ffnQTask. Rows for the tile unit are packed once in
	// steps, and else by every part, so these always run in steps.
	wideRows = 64
	// widePerLane is the number of parts that each lane's share of a step is cut into.
	widePerLane = 4
)

// wide reports whether the group runs in steps. Several experts keep all threads busy without steps
// (3 % faster on two); for the tile unit, each part would pack their rows again.
func (t *ffnQTask) wide(s *Stream) bool {
	unit, alone := s.dev.unit.takes(&t.items[0].w13, t.items[0].rows), len(t.items) == 1
	return len(s.lanes) > 1 && (unit && alone || len(t.in) >= wideRows && (unit || alone))
}

// ffnQWide is a group run in steps: rows packed for the tile unit or for blocks, W13, middle rows,
// W2.
type ffnQWide struct {
	*ffnQTask
	step  wideStep
	cut   int         // parts of a matrix
	items []wideItem  // in addition to those of ffnQTask
	packs []quantPack // of all items
	rows  rowChunks   // of the group
	owner []int32     // [rows] item of a row
}

// wideItem is where an item's packs are, for W13 and for W2: [first, last), none where rows are not
// packed.
type wideItem struct{ up, down struct{ first, last int } }

type wideStep uint8

const (
	widePackRows wideStep = iota
	wideUp
	wideMiddle
	wideDown
)

// do runs an item of the step.
func (t *ffnQWide) do(l *lane, i int) {
	switch t.step {
	case widePackRows:
		for r, to := t.rows.of(i); r < to; r++ {
			if packs := t.upPacks(int(t.owner[r])); len(packs) > 0 {
				q, scale, bias := t.x.row(int(t.in[r]))
				packRow(packs, r, q, scale, bias)
			}
		}
	case wideUp:
		t.up(l, i/t.cut, i%t.cut)
	case wideMiddle:
		for r, to := t.rows.of(i); r < to; r++ {
			t.middle(&t.ffnQTask.items[t.owner[r]], r)
			if packs := t.downPacks(int(t.owner[r])); len(packs) > 0 {
				q, scale, bias := t.mid.row(r)
				packRow(packs, r, q, scale, bias)
			}
		}
	case wideDown:
		t.down(l, i/t.cut, i%t.cut)
	}
}

func (t *ffnQWide) upPacks(item int) []quantPack {
	x := &t.items[item].up
	return t.packs[x.first:x.last]
}

func (t *ffnQWide) downPacks(item int) []quantPack {
	x := &t.items[item].down
	return t.packs[x.first:x.last]
}

// up computes part p of gate and up of an item.
func (t *ffnQWide) up(l *lane, i, p int) {
	item := &t.ffnQTask.items[i]
	tiles := item.f / tensor.TileRows
	from, to := evenCut(p, t.cut, tiles)
	in := quantInput{quantRows: &t.x, index: t.in[item.row:]}
	out := quantOutput{base: t.both, stride: 2 * t.stride}
	item.w13.multiplyPacked(t.dev, l, t.upPacks(i), in, out, item.row, item.rows, from, to)
	// Tile F/16 of W13 is the first of up, and goes to column stride.
	out.base = (*float32)(unsafe.Add(unsafe.Pointer(out.base), 4*(t.stride-item.f)))
	item.w13.multiplyPacked(t.dev, l, t.upPacks(i), in, out, item.row, item.rows, tiles+from, tiles+to)
}

// down computes part p of the results of an item.
func (t *ffnQWide) down(l *lane, i, p int) {
	item := &t.ffnQTask.items[i]
	from, to := evenCut(p, t.cut, item.w2.tiles())
	item.w2.multiplyPacked(t.dev, l, t.downPacks(i), quantInput{quantRows: &t.mid, first: item.row},
		quantOutput{base: t.y, stride: t.yRows, index: t.out}, item.row, item.rows, from, to)
	t.biased(item, from, to)
}

// prepare decides which part of the group is packed, and cuts it. It returns the memory of the
// packs in float32 values.
func (t *ffnQWide) prepare(s *Stream) (memory int) {
	t.rows = rowChunks{len(t.in)}
	t.packs, t.items, t.owner = t.packs[:0], t.items[:0], t.owner[:0]
	for i := range t.ffnQTask.items {
		item := &t.ffnQTask.items[i]
		var x wideItem
		x.up.first = len(t.packs)
		if s.dev.packed(&item.w13, item.rows) {
			t.packs = item.w13.appendPacks(s.dev, t.packs, item.row, item.rows)
			memory += item.w13.packScratch(t.packs[x.up.first:])
		}
		x.up.last, x.down.first = len(t.packs), len(t.packs)
		if s.dev.packed(&item.w2, item.rows) {
			t.packs = item.w2.appendPacks(s.dev, t.packs, item.row, item.rows)
			memory += item.w2.packScratch(t.packs[x.down.first:])
		}
		x.down.last = len(t.packs)
		t.items = append(t.items, x)
		for range item.rows {
			t.owner = append(t.owner, int32(i))
		}
	}
	t.cut = (widePerLane*len(s.lanes) + len(t.items) - 1) / len(t.items)
	return memory
}

// run computes the group; its rows are in memory of the arena already.
func (t *ffnQWide) run(s *Stream, ns int) {
	scratch := 0
	for i := range t.items {
		item := &t.ffnQTask.items[i]
		item.w13.begin(t.upPacks(i), &s.arena)
		item.w2.begin(t.downPacks(i), &s.arena)
		scratch = max(scratch, piece(qtile.Scratch(item.w13.group())), piece(qtile.Scratch(item.w2.group())))
	}
	if len(t.packs) == 0 {
		scratch = 0
	}
	// Shares of the time: W13 is two thirds of the products, and the steps over rows are little.
	t.pass(s, widePackRows, t.rows.count(), ns/50, 0)
	t.pass(s, wideUp, t.cut*len(t.items), ns*2/3, scratch)
	t.pass(s, wideMiddle, t.rows.count(), ns/20, 0)
	s.phases.middle()
	t.pass(s, wideDown, t.cut*len(t.items), ns/3, scratch)
}

func (t *ffnQWide) pass(s *Stream, step wideStep, items, ns, scratch int) {
	if step == widePackRows && len(t.packs) == 0 {
		return
	}
	t.step = step
	s.each(t, items, ns, scratch)
}
