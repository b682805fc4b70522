package cpu

import (
	"unsafe"

	"krater/kernels/device"
)

// gqaLists are the positions that rows attend to.
type gqaLists struct {
	on        bool // of the spans being computed: each is one row, as long as its list
	chosen    *int32
	stride, n int
	count     int // lists of a row, side by side
	// Spans of rows that list all positions they see, and the others, a span for each row and list, whose numbers are in of.
	dense, rest []device.Span
	of          []int
}

// row is a list of row r of chosen.
func (c *gqaLists) row(list, r int) []int32 {
	return unsafe.Slice((*int32)(unsafe.Add(unsafe.Pointer(c.chosen), 4*(c.stride*r+list*c.n))), c.n)
}

// full reports whether all lists of a row have all n positions that it sees.
func (c *gqaLists) full(r, n int) bool {
	for list := range c.count {
		if c.length(list, r) != n || int(c.row(list, r)[n-1]) != n-1 {
			return false
		}
	}
	return true
}

// length is the number of positions in a list of row r; -1 is behind them.
func (c *gqaLists) length(at, r int) int {
	list := c.row(at, r)
	low, high := 0, len(list)
	for low < high { // rising numbers, then -1
		if mid := (low + high) / 2; list[mid] < 0 {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low
}

// cut divides spans that were checked, for one list of their rows. Only the first list adds dense rows.
func (c *gqaLists) cut(op string, spans []device.Span, list int) {
	for i := range spans {
		sp := &spans[i]
		joins := false // the row before is dense
		for r := range sp.Len {
			row, pos := sp.Row+r, sp.Pos+r
			n := c.length(list, row)
			if n < 1 {
				fail(op, "row %d lists no position", row)
			}
			inRange(op, "chosen", c.row(list, row)[:n], pos+1)
			one := device.Span{Row: row, Len: 1, Pos: pos, Slot: sp.Slot, Blocks: sp.Blocks}
			dense := n == pos+1 && c.full(row, n)
			switch {
			case !dense:
				one.Pos = n - 1
				c.rest, c.of = append(c.rest, one), append(c.of, list)
			case list > 0:
			case joins:
				c.dense[len(c.dense)-1].Len++
			default:
				c.dense = append(c.dense, one)
			}
			joins = dense
		}
	}
}

// SparseGQA: out and q [T, Heads*HeadDim] F32, cache as in GQA, chosen [T, Lists*n] I32: each list has at least one position,
// rising, with -1 behind them. A row that lists all that it sees is computed as GQA does; any other by the same tiles
// over a copy of the keys and values that it lists, keyBlock at a time. So what is computed for a row has the same
// bits either way. Scratch per thread: that of GQA, and twice keyBlock rows of HeadDim values.
func (d *Device) SparseGQA(stream device.Stream, out, q device.Mat, cache device.KV, chosen device.Mat, in device.Spans, p device.GQA) {
	const op = "SparseGQA"
	s := d.stream(op, stream)
	t := &s.gqa
	lists := max(1, p.Lists)
	if p.Window != 0 || p.Lists < 0 || p.KVHeads%lists != 0 || chosen.Cols%lists != 0 {
		fail(op, "sizes %+v", p)
	}
	t.check(op, d, &out, &q, &cache, in.List, &p)
	c := &t.lists
	c.n, c.stride, c.count = chosen.Cols/lists, chosen.Stride, lists
	c.chosen = positions(op, &chosen, q.Rows, max(1, chosen.Cols))
	c.dense, c.rest, c.of = c.dense[:0], c.rest[:0], c.of[:0]
	for list := range lists {
		c.cut(op, in.List, list)
	}
	if len(c.dense) > 0 {
		d.GQA(s, out, q, cache, device.Mat{}, device.Spans{List: c.dense, Decode: in.Decode}, p)
	}
	if len(c.rest) > 0 {
		c.on = true
		t.check(op, d, &out, &q, &cache, c.rest, &p)
		t.sinks = nil
		pairs := 0
		for i := range c.rest {
			pairs += c.rest[i].Pos + 1
		}
		t.run(s, pairs/lists, pairs/lists)
		c.on = false
	}
	c.chosen, t.spans = nil, nil
}
