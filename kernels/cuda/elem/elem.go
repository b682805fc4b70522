package elem

import (
	"math"

	"krater/kernels/cuda/launch"
)

// GatherRows computes out[i] = table[ids[i]]; out [n, H], table [V, H], ids I32 [n, 1]. A row
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

// CopyRows copies src to out, both [n, W] of one type, in memory that does not overlap.
func CopyRows(l *launch.List, out, src launch.Mat) {
	const op, threads = "CopyRows", 256
	if out.DType != src.DType || out.Rows != src.Rows || out.Cols != src.Cols {
		refuse(op, "%v to %v", src, out)
	}
	if out.Rows == 0 || out.Cols == 0 {
		return
	}
	size := out.DType.Size()
	row, to, from, unit := out.Cols*size, out.Stride*size, src.Stride*size, 1
	if (row|to|from)%16 == 0 && (out.At|src.At)%16 == 0 {
		unit = 16
	}
	blocks := (int64(out.Rows)*int64(row/unit) + threads - 1) / threads
	if blocks > math.MaxInt32 {
		refuse(op, "%d rows of %d bytes", out.Rows, row)
	}
	l.Add(kCopyRows, launch.Config{Grid: launch.Dim{X: uint32(blocks)}, Block: launch.Dim{X: threads}, PDL: true},
		launch.P(out.At), launch.I64(int64(to/unit)), launch.P(src.At), launch.I64(int64(from/unit)), launch.I32(row/unit), launch.I32(out.Rows), launch.I32(unit/16))
}

// Add computes x += delta, both [T, H].
func Add(l *launch.List, x, delta launch.Mat) {
	floats("Add", "x", x, x.Rows, x.Cols)
	floats("Add", "delta", delta, x.Rows, x.Cols)
	add(l, "Add", x, delta, delta.Stride)
}

// AddBias computes x += b in every row; x [T, N], b [1, N].
func AddBias(l *launch.List, x, b launch.Mat) {
	floats("AddBias", "x", x, x.Rows, x.Cols)
	floats("AddBias", "b", b, 1, x.Cols)
	add(l, "AddBias", x, b, 0)
}

// Gate computes out *= sigmoid(x), element by element, both [T, N].
func Gate(l *launch.List, out, x launch.Mat) {
	const op = "Gate"
	floats(op, "out", out, out.Rows, out.Cols)
	floats(op, "x", x, out.Rows, out.Cols)
	if out.Rows == 0 || out.Cols == 0 {
		return
	}
	f := flags(out, x)
	l.Add(kGate, pieces(op, out.Rows, out.Cols, f),
		launch.P(out.At), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.I32(out.Cols), launch.I32(f))
}

// GateRows computes out *= sigmoid(x * w), one factor per row; out [T, N], x [T, H], w [1, H].
func GateRows(l *launch.List, out, x, w launch.Mat) {
	const op = "GateRows"
	floats(op, "out", out, x.Rows, out.Cols)
	floats(op, "x", x, x.Rows, x.Cols)
	floats(op, "w", w, 1, x.Cols)
	if x.Rows == 0 || x.Cols == 0 {
		return
	}
	f := flags(out, x, w)
	l.Add(kGateRows, rowBlocks(x.Rows, normThreads(x.Cols, step(f, flagVec))),
		launch.P(out.At), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.P(w.At),
		launch.I32(out.Cols), launch.I32(x.Cols), launch.I32(f))
}

func add(l *launch.List, op string, x, delta launch.Mat, stride int) {
	if x.Rows == 0 || x.Cols == 0 {
		return
	}
	f := flags(x, delta)
	l.Add(kAdd, pieces(op, x.Rows, x.Cols, f),
		launch.P(x.At), launch.I32(x.Stride), launch.P(delta.At), launch.I32(stride), launch.I32(x.Cols), launch.I32(f))
}
