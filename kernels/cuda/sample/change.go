package sample

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

// Lists are the tokens of each of n rows: row r has those from Starts[r] up to, not with,
// Starts[r+1]. A row names a token once; tokens outside of the vocabulary are left out.
type Lists struct {
	Starts launch.Ptr // I32 [n+1]
	IDs    launch.Ptr // I32
}

// What follows changes logits [n, V] F32 in place before a choice. The host's order is
// bias, then masks, then penalties.

// ApplyBias is logits[r, id] += value for the tokens of each row; values F32 beside
// t.IDs. A value of -Inf masks a token.
func ApplyBias(l *launch.List, logits launch.Mat, t Lists, values launch.Ptr) {
	checkLogits("ApplyBias", logits)
	if logits.Rows == 0 {
		return
	}
	l.Add(kBias, lists(logits.Rows), launch.P(logits.At), launch.I32(logits.Stride), launch.I32(logits.Cols),
		launch.P(t.Starts), launch.P(t.IDs), launch.P(values))
}

// ApplyMask makes the logits of forbidden tokens -Inf. mask [n, (V+31)/32] I32: bit i%32
// of word i/32 is 1 for a token i that may come.
func ApplyMask(l *launch.List, logits, mask launch.Mat) {
	const op = "ApplyMask"
	checkLogits(op, logits)
	words := (logits.Cols + 31) / 32
	if mask.Zero() || mask.DType != tensor.I32 && mask.DType != tensor.U32 || mask.Rows != logits.Rows || mask.Cols != words {
		refuse(op, "mask is %v for logits %v", mask, logits)
	}
	if logits.Rows == 0 {
		return
	}
	c := lists(logits.Rows)
	c.Grid.Y = uint32(logits.Cols+255) / 256
	l.Add(kMask, c, launch.P(logits.At), launch.I32(logits.Stride), launch.I32(logits.Cols), launch.P(mask.At), launch.I32(mask.Stride))
}

// ApplyPenalties punishes tokens that a row has had: counts I32 beside t.IDs is how often
// in the answer, 0 for one of the prompt only. penalties [n, 3] F32: repetition (divides
// positive logits, multiplies others; 1 = off), and what is subtracted from tokens of the
// answer once (presence) and for each time (frequency).
func ApplyPenalties(l *launch.List, logits launch.Mat, t Lists, counts launch.Ptr, penalties launch.Mat) {
	const op = "ApplyPenalties"
	checkLogits(op, logits)
	if penalties.Zero() || penalties.DType != tensor.F32 || penalties.Rows != logits.Rows || penalties.Cols != 3 || !penalties.Dense() {
		refuse(op, "penalties are %v for logits %v", penalties, logits)
	}
	if logits.Rows == 0 {
		return
	}
	l.Add(kPenalties, lists(logits.Rows), launch.P(logits.At), launch.I32(logits.Stride), launch.I32(logits.Cols),
		launch.P(t.Starts), launch.P(t.IDs), launch.P(counts), launch.P(penalties.At))
}

func lists(rows int) launch.Config {
	return launch.Config{Grid: launch.Dim{X: uint32(rows)}, Block: launch.Dim{X: 256}, PDL: true}
}
