package cpu

import (
	"unsafe"

	"krater/kernels/cpu/qtile"
	"krater/kernels/tensor"
)

// wideRows is the number of rows of a group from which a network runs step by
// step, each step spread over all threads: a barrier is nothing then, but one
// thread that quantises the middle rows of all, or that is left alone with the last
// matrix, is much. Below it weights are what takes time; see ffnQTask.
const wideRows = 64

// wide reports whether the group runs in steps. Several experts keep all threads
// busy without (3 % faster on two); for the tile unit their rows would be packed
// anew for each part.
func (t *ffnQTask) wide(s *Stream) bool {
	return len(t.in) >= wideRows && len(s.lanes) > 1 && (len(t.items) == 1 || s.dev.unit.takes(&t.items[0].w13, t.items[0].rows))
}

// ffnQWide is a group run in steps: rows packed for the tile unit where it is used,
// W13, middle rows, W2.
type ffnQWide struct {
	*ffnQTask
	step   wideStep
	cut    int        // parts of a matrix
	packs  []widePack // of the rows for W13 and, behind them, for W2
	first  []int      // [items] first of an item's packs
	rows   rowChunks  // of the group
	owner  []int32    // [rows] item of a row
	onUnit [][2]bool  // [items] W13, W2
}

type wideStep uint8

const (
	widePackRows wideStep = iota
	wideUp
	wideMiddle
	wideDown
)

// widePack is rows [first, last) of an item, packed.
type widePack struct {
	tokens      qtile.Tokens
	first, last int // rows of the group
}

// do runs an item of the step.
func (t *ffnQWide) do(l *lane, i int) {
	switch t.step {
	case widePackRows:
		from, to := t.rows.of(i)
		for r := from; r < to; r++ {
			if t.onUnit[t.owner[r]][0] {
				q, scale, _ := t.x.row(int(t.in[r]))
				t.pack(0, r, q, scale)
			}
		}
	case wideUp:
		t.up(l, i/t.cut, i%t.cut)
	case wideMiddle:
		from, to := t.rows.of(i)
		for r := from; r < to; r++ {
			t.middle(&t.items[t.owner[r]], r)
			if t.onUnit[t.owner[r]][1] {
				q, scale, _ := t.mid.row(r)
				t.pack(1, r, q, scale)
			}
		}
	case wideDown:
		t.downWide(l, i/t.cut, i%t.cut)
	}
}

// packsOf are an item's packs for W13 (0) or W2 (1).
func (t *ffnQWide) packsOf(item, which int) []widePack {
	half := len(t.packs) / 2
	to := half
	if item+1 < len(t.first) {
		to = t.first[item+1]
	}
	return t.packs[which*half+t.first[item] : which*half+to]
}

// pack puts row r of the group where it belongs.
func (t *ffnQWide) pack(which, r int, q *int8, scale *float32) {
	packs := t.packsOf(int(t.owner[r]), which)
	for i := range packs {
		if p := &packs[i]; r < p.last {
			p.tokens.Pack(r-p.first, q, scale)
			return
		}
	}
}

// up computes part p of gate and up of an item.
func (t *ffnQWide) up(l *lane, i, p int) {
	item := &t.items[i]
	tiles := item.f / tensor.TileRows
	from, to := evenCut(p, t.cut, tiles)
	out := quantOutput{base: t.both, stride: 2 * t.stride}
	t.tiles(l, i, 0, out, from, to)
	// Tile F/16 of W13 is the first of up, and goes to column stride.
	out.base = (*float32)(unsafe.Add(unsafe.Pointer(out.base), 4*(t.stride-item.f)))
	t.tiles(l, i, 0, out, tiles+from, tiles+to)
}

// downWide computes part p of the results of an item.
func (t *ffnQWide) downWide(l *lane, i, p int) {
	from, to := evenCut(p, t.cut, t.items[i].w2.tiles())
	t.tiles(l, i, 1, quantOutput{base: t.y, stride: t.yRows, index: t.out}, from, to)
}

// tiles multiplies the rows of item i with tiles [from, to) of W13 (0) or W2 (1).
// out names the rows of the group.
func (t *ffnQWide) tiles(l *lane, i, which int, out quantOutput, from, to int) {
	item := &t.items[i]
	w, in := &item.w13, quantInput{quantRows: &t.x, index: t.in[item.row:]}
	if which == 1 {
		w, in = &item.w2, quantInput{quantRows: &t.mid, first: item.row}
	}
	if t.onUnit[i][which] {
		end := from + (min(to, w.n/tensor.TileRows)-from)/2*2
		group := w.group()
		l.arena.clear()
		scratch := l.arena.take(qtile.Scratch(group))
		for p, packs := 0, t.packsOf(i, which); end > from && p < len(packs); p++ {
			l.unit.Begin(&packs[p].tokens, scratch)
			w.unitTiles(l, out, packs[p].first, packs[p].last, from, end)
		}
		from = max(from, end)
	}
	if out.index != nil {
		out.index = out.index[item.row:]
	} else {
		out.first = item.row
	}
	w.stream(t.dev, l, in, out, item.rows, from, to)
}

// evenCut is part p of cut of n tiles, on even bounds: the unit takes two at a time.
func evenCut(p, cut, n int) (from, to int) {
	pairs := (n + 1) / 2
	return min(n, p*pairs/cut*2), min(n, (p+1)*pairs/cut*2)
}

// prepare says what of the group goes to the unit and cuts it; it gives the
// float32 values of memory that the packs take.
func (t *ffnQWide) prepare(s *Stream) int {
	t.rows = rowChunks{len(t.in)}
	t.packs, t.first, t.owner, t.onUnit = t.packs[:0], t.first[:0], t.owner[:0], t.onUnit[:0]
	for i := range t.items {
		item := &t.items[i]
		t.onUnit = append(t.onUnit, [2]bool{s.dev.unit.takes(&item.w13, item.rows), s.dev.unit.takes(&item.w2, item.rows)})
		t.first = append(t.first, len(t.packs))
		calls := (item.rows + qtile.MostTokens - 1) / qtile.MostTokens
		for c := range calls {
			t.packs = append(t.packs, widePack{first: item.row + c*item.rows/calls, last: item.row + (c+1)*item.rows/calls})
		}
		for range item.rows {
			t.owner = append(t.owner, int32(i))
		}
	}
	t.packs = append(t.packs, t.packs...)
	total := 0
	t.each(func(p *widePack, w *quantProduct) {
		total += piece(qtile.TokensScratch(p.last-p.first, w.k, w.group()))
	})
	const perLane = 4
	t.cut = (perLane*len(s.lanes) + len(t.items) - 1) / len(t.items)
	return total
}

// each calls f for every pack of a step that uses the unit.
func (t *ffnQWide) each(f func(p *widePack, w *quantProduct)) {
	for i := range t.items {
		for which, w := range [2]*quantProduct{&t.items[i].w13, &t.items[i].w2} {
			if !t.onUnit[i][which] {
				continue
			}
			packs := t.packsOf(i, which)
			for p := range packs {
				f(&packs[p], w)
			}
		}
	}
}

// runWide computes the group; its rows are in memory of the arena already.
func (t *ffnQWide) runWide(s *Stream, ns int) {
	scratch, packed := 0, false
	t.each(func(p *widePack, w *quantProduct) {
		group := w.group()
		p.tokens.Begin(p.last-p.first, w.k, group, s.arena.take(qtile.TokensScratch(p.last-p.first, w.k, group)))
		scratch, packed = max(scratch, piece(qtile.Scratch(group))), true
	})
	steps := [...]struct {
		step  wideStep
		items int
		ns    int
	}{
		{widePackRows, t.rows.count(), ns / 50},
		{wideUp, t.cut * len(t.items), ns * 2 / 3},
		{wideMiddle, t.rows.count(), ns / 20},
		{wideDown, t.cut * len(t.items), ns / 3},
	}
	for _, x := range steps {
		if x.step == widePackRows && !packed {
			continue
		}
		t.step = x.step
		s.each(t, x.items, x.ns, scratch)
	}
}
