package route

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

// Bits of a kernel's flags, as in src/elem.cuh.
const (
	flagVec   = 1
	flagBF16x = 2
	flagBF16w = 4
)

// Logits is logits [T, E] F32 = x [T, H] * transposed gate [E, H], in float32 without
// rounding of inputs.
func Logits(l *launch.List, logits, x, gate launch.Mat) {
	const op = "Logits"
	f := checkLogits(op, logits, x, gate)
	if x.Rows == 0 {
		return
	}
	k, c := pickLogits(x, gate, f)
	args := logitArgs(logits, x, gate, f)
	l.Add(k, c, args[:]...)
}

func checkLogits(op string, logits, x, gate launch.Mat) (flags int) {
	if gate.Rows < 1 || gate.Cols < 1 {
		refuse(op, "gate is %v", gate)
	}
	floats(op, "x", x, x.Rows, gate.Cols)
	floats(op, "gate", gate, gate.Rows, gate.Cols)
	typed(op, "logits", logits, tensor.F32, x.Rows, gate.Rows)
	if x.At%16 == 0 && gate.At%16 == 0 && x.Stride%8 == 0 && gate.Stride%8 == 0 && gate.Cols%8 == 0 {
		flags = flagVec
	}
	if x.DType == tensor.BF16 {
		flags |= flagBF16x
	}
	if gate.DType == tensor.BF16 {
		flags |= flagBF16w
	}
	return flags
}

// Most tokens for which a warp computes one logit, those of 4 tokens, and of 4 tokens with
// 2 experts. Fewer tokens want more warps, more want fewer reads.
const (
	most1   = 2
	most4   = 16
	most4x2 = 128
)

// pickLogits chooses the kernel; all of them give the same bits.
func pickLogits(x, gate launch.Mat, flags int) (launch.Kernel, launch.Config) {
	switch {
	case flags&flagVec == 0 || x.Rows <= most1:
		return kLogits1, warps(x.Rows * gate.Rows)
	case x.Rows <= most4:
		return kLogits4, warps((x.Rows + 3) / 4 * gate.Rows)
	case x.Rows <= most4x2:
		return kLogits4x2, warps((x.Rows + 3) / 4 * ((gate.Rows + 1) / 2))
	}
	c := launch.Config{Block: launch.Dim{X: 256}, PDL: true}
	c.Grid = launch.Dim{X: uint32(gate.Rows+31) / 32, Y: uint32(x.Rows+15) / 16}
	c.Shared = stagedBytes(x, gate)
	return kLogits8[flags&flagBF16x/flagBF16x][flags&flagBF16w/flagBF16w], c
}

// stagedBytes is the shared memory of a block of 16 tokens by 32 experts: steps of 256
// columns, three of them where all is BF16, else two.
func stagedBytes(x, gate launch.Mat) uint32 {
	step, stages := 256*(16*x.DType.Size()+32*gate.DType.Size()), 2
	if x.DType == tensor.BF16 && gate.DType == tensor.BF16 {
		stages = 3
	}
	return uint32(step * stages)
}

// warps is the launch of n warps, four a block.
func warps(n int) launch.Config {
	return launch.Config{Grid: launch.Dim{X: uint32(n+3) / 4}, Block: launch.Dim{X: 128}, PDL: true}
}

func logitArgs(logits, x, gate launch.Mat, flags int) [10]launch.Arg {
	return [10]launch.Arg{launch.P(logits.At), launch.I32(logits.Stride), launch.P(x.At), launch.I32(x.Stride), launch.I32(x.Rows),
		launch.P(gate.At), launch.I32(gate.Stride), launch.I32(gate.Rows), launch.I32(gate.Cols), launch.I32(flags)}
}
