package cpu

import (
	"unsafe"

	"krater/kernels/device"
)

// Rope turns x [T, *] F32 in place by each row's position [T, 1] I32; row q of table [P, Dim] F32
// holds the pairs (cos, sin) of position q.
func (d *Device) Rope(stream device.Stream, x, positions, table device.Mat, p device.Rope) {
	const op = "Rope"
	s := d.stream(op, stream)
	if p.Heads < 1 || p.Dim < 0 || p.Dim%2 != 0 || p.Offset < 0 || p.Offset+p.Dim > p.HeadDim || p.Heads*p.HeadDim > x.Cols {
		fail(op, "%+v does not fit rows of %d", p, x.Cols)
	}
	pos := i32s(op, "positions", &positions, x.Rows)
	rows := f32(op, "x", &x, x.Rows, x.Cols)
	angles := f32(op, "table", &table, table.Rows, p.Dim)
	inRange(op, "positions", pos, table.Rows)
	if p.Dim == 0 {
		return
	}
	t := &s.turn
	*t = ropeTask{Rope: p, turn: d.rope.Halves, x: rows, table: angles, pos: pos, xRow: x.Stride, tableRow: table.Stride, rows: rowChunks{x.Rows}}
	if p.Interleaved {
		t.turn = d.rope.Pairs
	}
	const valuesPerNs = 4
	s.each(t, t.rows.count(), x.Rows*p.Heads*p.Dim/valuesPerNs, piece(p.Dim))
}

// ropeTask is Rope.
type ropeTask struct {
	device.Rope
	turn           func(x, table *float32, heads, headDim, dim int)
	x, table       *float32
	pos            []int32
	xRow, tableRow int // values
	rows           rowChunks
}

func (t *ropeTask) do(l *lane, i int) {
	var back []float32 // a row of the table with the sines negated
	if t.Back {
		l.arena.clear()
		back = unsafe.Slice(l.arena.take(t.Dim), t.Dim)
	}
	for r, to := t.rows.of(i); r < to; r++ {
		first := (*float32)(unsafe.Add(unsafe.Pointer(rowAt(t.x, t.xRow, r)), 4*t.Offset))
		row := rowAt(t.table, t.tableRow, int(t.pos[r]))
		if t.Back {
			copy(back, unsafe.Slice(row, t.Dim))
			for i := 1; i < t.Dim; i += 2 {
				back[i] = -back[i]
			}
			row = unsafe.SliceData(back)
		}
		t.turn(first, row, t.Heads, t.HeadDim, t.Dim)
	}
}
