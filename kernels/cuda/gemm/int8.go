package gemm

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

// toHidden is the fourth mode of the int8 kernels: silu(gate) * up of joined rows.
const toHidden = addF32 + 1

// CanW8A8 reports whether W8A8 takes the matrices: xq [M, K or more] I8 in blocks of 16
// columns, rows aligned to 16 bytes; scale [M, 1] F32; w [N, K] of 8 bits and one scale a
// row, N a multiple of 8 (joined: of 16); out F32, or BF16 with rows aligned to 16 bytes
// (joined: BF16 only).
func CanW8A8(out, xq, scale launch.Mat, w *launch.Tiles) bool {
	rows := 8
	if w.Joined {
		rows = 16
	}
	switch {
	case w.Zero() || w.Check() != nil || w.Bits != 8 || w.Group < w.Cols || w.Rows%rows != 0 || w.Values%16 != 0 || w.Scales%4 != 0:
		return false
	case xq.DType != tensor.I8 || xq.At%16 != 0 || xq.Cols%16 != 0 || xq.Stride%16 != 0 && xq.Rows > 1:
		return false
	case scale.DType != tensor.F32 || scale.Rows != xq.Rows || scale.Cols != 1:
		return false
	case w.Joined || out.DType != tensor.F32:
		return out.DType == tensor.BF16 && readable(out) && xq.Cols >= w.Cols
	}
	return xq.Cols >= w.Cols
}

// W8A8 is out [M, N] = x [M, K] * transposed w [N, K] with x = xq * scale as
// elem.QuantizeRows makes them, or with joined w out [M, N/2] = silu(gate) * up. The sums
// are exact integers, so a row has the same bits for every M and every plan. Of o
// Accumulate and Plan count.
func W8A8(l *launch.List, card launch.Card, out, xq, scale launch.Mat, w launch.Tiles, o Options) {
	const op = "gemm W8A8"
	p := o.Plan
	if p.Variant == Auto {
		p = Choose(card, Sizes{M: xq.Rows, N: w.Rows, K: w.Cols, Int8: true})
	}
	cols, m := w.Rows, modeOf(out, o.Accumulate)
	if w.Joined {
		cols, m = w.Rows/2, toHidden
	}
	if !CanW8A8(out, xq, scale, &w) || out.Rows != xq.Rows || out.Cols != cols || !p.runs(card, true) || p.Parts > 1 {
		refuse(op, "out %v, xq %v, scale %v, w [%d, %d], %v", out, xq, scale, w.Rows, w.Cols, p)
	}
	if o.Batch > 1 || o.Accumulate && (w.Joined || out.DType != tensor.F32) {
		refuse(op, "batch %d, accumulate %v into %v", o.Batch, o.Accumulate, out)
	}
	if xq.Rows == 0 {
		return
	}
	s := &shapes[p.Variant]
	tokens, rows := ceil(xq.Rows, s.rows), ceil(w.Rows, s.cols)
	l.Add(s.kernel, launch.Config{
		Grid:   launch.Dim{X: uint32(s.grid(card, tokens*rows))},
		Block:  launch.Dim{X: uint32(s.threads)},
		Shared: uint32(s.shared),
		PDL:    true,
	},
		launch.P(out.At), launch.I32(int(m)), launch.I32(out.Stride), launch.P(xq.At), launch.I32(xq.Stride), launch.I32((w.Cols+15)&^15),
		launch.P(scale.At), launch.I32(scale.Stride), launch.P(w.Values), launch.P(w.Scales), launch.I32(xq.Rows), launch.I32(w.Rows),
		launch.I32(w.TileCols()), launch.I32(tokens), launch.I32(rows))
}
