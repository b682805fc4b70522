package elem

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

// GatherRows is out[i] = table[ids[i]]; out [n, H], table [V, H], ids I32 [n, 1]. A row
// whose id is not in the table is zero.
func GatherRows(l *launch.List, out, table, ids launch.Mat) {
	const op = "GatherRows"
	floats(op, "out", out, out.Rows, out.Cols)
	floats(op, "table", table, table.Rows, out.Cols)
	column(op, "ids", ids, out.Rows)
	if out.Rows == 0 || out.Cols == 0 {
		return
	}
	f := flags(out, table)
	l.Add(kGatherRows, pieces(op, out.Rows, out.Cols, f),
		launch.P(out.At), launch.I32(out.Stride), launch.P(table.At), launch.I32(table.Stride), launch.I32(table.Rows),
		launch.P(ids.At), launch.I32(out.Cols), launch.I32(f))
}

// Add is x += delta, both [T, H].
func Add(l *launch.List, x, delta launch.Mat) {
	floats("Add", "x", x, x.Rows, x.Cols)
	floats("Add", "delta", delta, x.Rows, x.Cols)
	add(l, "Add", x, delta, delta.Stride)
}

// AddBias is x += b in every row; x [T, N], b [1, N].
func AddBias(l *launch.List, x, b launch.Mat) {
	floats("AddBias", "x", x, x.Rows, x.Cols)
	floats("AddBias", "b", b, 1, x.Cols)
	add(l, "AddBias", x, b, 0)
}

func add(l *launch.List, op string, x, delta launch.Mat, stride int) {
	if x.Rows == 0 || x.Cols == 0 {
		return
	}
	f := flags(x, delta)
	l.Add(kAdd, pieces(op, x.Rows, x.Cols, f),
		launch.P(x.At), launch.I32(x.Stride), launch.P(delta.At), launch.I32(stride), launch.I32(x.Cols), launch.I32(f))
}

// Convert is dst = src in dst's type, rounded to nearest even.
func Convert(l *launch.List, dst, src launch.Mat) {
	const op = "Convert"
	floats(op, "dst", dst, src.Rows, src.Cols)
	floats(op, "src", src, src.Rows, src.Cols)
	if src.Rows == 0 || src.Cols == 0 {
		return
	}
	f := flags(dst, src)
	l.Add(kConvert, pieces(op, src.Rows, src.Cols, f),
		launch.P(dst.At), launch.I32(dst.Stride), launch.P(src.At), launch.I32(src.Stride), launch.I32(src.Cols), launch.I32(f))
}

// SiLUMul is out = silu(gate) * up, all [T, F]; out may be gate or up.
func SiLUMul(l *launch.List, out, gate, up launch.Mat) {
	const op = "SiLUMul"
	floats(op, "out", out, gate.Rows, gate.Cols)
	floats(op, "gate", gate, gate.Rows, gate.Cols)
	floats(op, "up", up, gate.Rows, gate.Cols)
	if gate.Rows == 0 || gate.Cols == 0 {
		return
	}
	f := flags(out, gate, up)
	l.Add(kSiLUMul, pieces(op, gate.Rows, gate.Cols, f),
		launch.P(out.At), launch.I32(out.Stride), launch.P(gate.At), launch.I32(gate.Stride), launch.P(up.At), launch.I32(up.Stride),
		launch.I32(gate.Cols), launch.I32(f))
}

// QuantizeRows is device.QuantizeRows' arithmetic with every row of x [T, K] as one
// group: scale [T, 1] F32 = max|x| / 127, q = x / scale to nearest even, zero and zero
// below 2^-100, scale NaN and zeros where x has an infinity or NaN. q [T, K filled up
// to at least a multiple of 16] I8, aligned to 16, holds every 16 columns in the order
// of QuantOrder; what fills up is zero.
func QuantizeRows(l *launch.List, q, scale, x launch.Mat) {
	const op = "QuantizeRows"
	floats(op, "x", x, x.Rows, x.Cols)
	typed(op, "q", q, tensor.I8, x.Rows, max(q.Cols, x.Cols))
	typed(op, "scale", scale, tensor.F32, x.Rows, 1)
	if q.Cols%16 != 0 || q.Stride%16 != 0 || q.At%16 != 0 {
		refuse(op, "q is %v at %#x, rows %d apart: not in blocks of 16", q, uint64(q.At), q.Stride)
	}
	if x.Rows == 0 || q.Cols == 0 {
		return
	}
	f := flags(x)
	if x.Cols%chunk != 0 { // the last block is read element by element anyway
		wide := x
		wide.Cols = wide.Cols / chunk * chunk
		f = flags(wide)
	}
	units := q.Cols / 16
	l.Add(kQuantizeRows, rowBlocks(x.Rows, min(512, warps(units))),
		launch.P(q.At), launch.I32(q.Stride), launch.P(scale.At), launch.I32(scale.Stride), launch.P(x.At), launch.I32(x.Stride),
		launch.I32(x.Cols), launch.I32(units), launch.I32(f))
}

// QuantOrder is the order in which QuantizeRows keeps 16 columns. What a lane holds of
// two steps of format A's INT8 then lies as four neighbours, as an 8-bit matrix
// instruction takes them.
var QuantOrder = [16]int{0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15}
