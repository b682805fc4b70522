package route

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// Bits of a kernel's flags, as in src/elem.cuh.
const (
	flagVec   = 1
	flagBF16x = 2
	flagBF16w = 4
)

// sliceCols is the number of columns per block in the tensor cores' kernels.
const sliceCols = 512

func slicesOf(cols int) int { return (cols + sliceCols - 1) / sliceCols }

// Scratch returns the most scratch memory that Logits and Route need, in bytes.
func Scratch(tokens, experts, cols int) int {
	if n := slicesOf(cols); n > 1 {
		return 4 * n * tokens * experts
	}
	return 0
}

// Logits computes logits [T, E] F32 = x [T, H] * transposed gate [E, H], in float32 without
// rounding of inputs. scratch is Scratch bytes, aligned to 16.
func Logits(l *launch.List, logits, x, gate launch.Mat, scratch launch.Ptr) {
	const op = "Logits"
	f := checkLogits(op, logits, x, gate, scratch)
	if x.Rows == 0 {
		return
	}
	if f&exact != exact {
		k, c := pickLogits(x, gate, f)
		l.Add(k, c, launch.P(logits.At), launch.I32(logits.Stride), launch.P(x.At), launch.I32(x.Stride), launch.I32(x.Rows),
			launch.P(gate.At), launch.I32(gate.Stride), launch.I32(gate.Rows), launch.I32(gate.Cols), launch.I32(f))
		return
	}
	if x.Rows <= mostFew {
		few(l, logits, x, &launch.Weight{F: gate}, scratch, 0, noChoice)
	} else {
		many(l, logits, x, &launch.Weight{F: gate}, scratch)
	}
	if n := slicesOf(x.Cols); n > 1 {
		c := launch.Config{Grid: launch.Dim{X: uint32(x.Rows*gate.Rows+255) / 256}, Block: launch.Dim{X: 256}, PDL: true}
		l.Add(kLogitsJoin, c, launch.P(scratch), launch.I32(n), launch.P(logits.At), launch.I32(logits.Stride), launch.I32(x.Rows), launch.I32(gate.Rows))
	}
}

// exact returns the flags for the tensor cores' kernels: bf16 times three bf16.
const exact = flagVec | flagBF16x

func checkLogits(op string, logits, x, gate launch.Mat, scratch launch.Ptr) (flags int) {
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
	if n := Scratch(x.Rows, gate.Rows, gate.Cols); n > 0 && scratch == 0 {
		refuse(op, "no scratch memory, need %d bytes", n)
	}
	return flags
}

// The most tokens for which a block computes logits of 8, and of 64.
const (
	mostFew = 128
	most64  = 4096
)

func fewConfig(x, gate launch.Mat) launch.Config {
	return launch.Config{Grid: launch.Dim{X: uint32((gate.Rows + 15) / 16 * slicesOf(x.Cols)), Y: uint32(x.Rows+7) / 8}, Block: launch.Dim{X: 256}, PDL: true}
}

// Arguments of the kernel for few tokens: turn, product, choice, and the destination of sorting.
const (
	argTurn    = 0
	argProduct = argTurn + 1
	argParts   = argProduct
	argLogits  = argProduct + 1
	argX       = argProduct + 3
	argTokens  = argProduct + 5
	argExperts = argProduct + 8
	argCols    = argProduct + 9
	argIDs     = argProduct + 11
	argBias    = argIDs + 4
	argRows    = argIDs + 5
	argTopK    = argIDs + 6
	argSorted  = argIDs + 13
	argsFew    = argSorted + 6

	argNormed = argSorted // of the kernel that norms
	argHold   = argNormed + 7
)

// few appends the kernel for few tokens; with a turn it also chooses.
func few(l *launch.List, logits, x launch.Mat, gate *launch.Weight, scratch, turn launch.Ptr, choice [13]launch.Arg) {
	c := fewConfig(x, gate.F)
	var args [argsFew]launch.Arg
	product, sorted := logitArgs(logits, x, gate, scratch), (&Aligned{}).args()
	args[argTurn] = launch.P(turn)
	copy(args[argProduct:], product[:])
	copy(args[argIDs:], choice[:])
	copy(args[argSorted:], sorted[:])
	l.Add(kLogitsFew[half(gate.F)], c, args[:]...)
}

// choiceOf returns the arguments of a choice in the kernel that does everything.
func choiceOf(ids, weights, bias launch.Mat, p device.Router, rows launch.Ptr) [13]launch.Arg {
	r := routerArgs(p)
	return [13]launch.Arg{launch.P(ids.At), launch.I32(ids.Stride), launch.P(weights.At), launch.I32(weights.Stride), launch.P(bias.At), launch.P(rows),
		r[0], r[1], r[2], r[3], r[4], r[5], r[6]}
}

var noChoice = choiceOf(launch.Mat{}, launch.Mat{}, launch.Mat{}, device.Router{}, 0)

func many(l *launch.List, logits, x launch.Mat, gate *launch.Weight, scratch launch.Ptr) {
	k, tokens, stages := kLogits64, 64, 4
	if x.Rows > most64 {
		k, tokens, stages = kLogits128, 128, 3
	}
	c := launch.Config{Block: launch.Dim{X: uint32(4 * tokens)}, PDL: true}
	c.Grid = launch.Dim{X: uint32((gate.F.Rows + 63) / 64 * slicesOf(x.Cols)), Y: uint32((x.Rows + tokens - 1) / tokens)}
	c.Shared = uint32(stages * 64 * (2*tokens + 64*gate.F.DType.Size()))
	args := logitArgs(logits, x, gate, scratch)
	l.Add(k[half(gate.F)], c, args[:]...)
}

// half returns 1 for BF16.
func half(m launch.Mat) int {
	if m.DType == tensor.BF16 {
		return 1
	}
	return 0
}

func logitArgs(logits, x launch.Mat, gate *launch.Weight, scratch launch.Ptr) [11]launch.Arg {
	return [11]launch.Arg{launch.P(scratch), launch.P(logits.At), launch.I32(logits.Stride), launch.P(x.At), launch.I32(x.Stride), launch.I32(x.Rows),
		launch.P(gate.F.At), launch.I32(gate.F.Stride), launch.I32(gate.F.Rows), launch.I32(gate.F.Cols), launch.P(gate.Bias)}
}

// The most tokens for which a warp computes one logit, those of 4 tokens, and those of 4 tokens
// with 2 experts. Fewer tokens need more warps; more tokens need fewer reads.
const (
	most1   = 2
	most4   = 16
	most4x2 = 128
)

// pickLogits chooses the kernel for operands that tensor cores do not take. All of these kernels
// give the same bits.
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
	c.Shared = uint32(2 * 256 * (16*4 + 32*gate.DType.Size())) // two steps of 256 columns, 16 tokens by 32 experts
	return kLogits8[half(gate)], c
}

// warps is the launch of n warps, four a block.
func warps(n int) launch.Config {
	return launch.Config{Grid: launch.Dim{X: uint32(n+3) / 4}, Block: launch.Dim{X: 128}, PDL: true}
}
