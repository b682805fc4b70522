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
	turn := d.rope.Halves
	if p.Interleaved {
		turn = d.rope.Pairs
	}
	var back []float32 // a row of the table with the sines negated
	if p.Back {
		s.arena.reset(piece(p.Dim))
		back = unsafe.Slice(s.arena.take(p.Dim), p.Dim)
	}
	for r, q := range pos {
		first := (*float32)(unsafe.Add(unsafe.Pointer(rowAt(rows, x.Stride, r)), 4*p.Offset))
		row := rowAt(angles, table.Stride, int(q))
		if p.Back {
			copy(back, unsafe.Slice(row, p.Dim))
			for i := 1; i < p.Dim; i += 2 {
				back[i] = -back[i]
			}
			row = unsafe.SliceData(back)
		}
		turn(first, row, p.Heads, p.HeadDim, p.Dim)
	}
}
