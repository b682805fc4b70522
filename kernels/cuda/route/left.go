package route

import (
	"encoding/binary"

	"krater/kernels/cuda/launch"
)

// MaxLeft is the most experts of a choice that may be left to its readers.
const MaxLeft = 64

// Left is a choice that a launch leaves to its readers: the logits, and the rules for choosing
// experts by them. The zero value is none.
type Left struct{ args [11]launch.Arg }

// Leave makes the last launch of l leave the choice to its readers, if it is Route or NormRoute
// in one launch and chooses these ids and weights among that many experts. The launch then writes
// the logits' parts alone, and a reader must write logits, ids and weights. The parts must not be
// within memory. ok is false, and nothing has changed, if this is not possible.
func Leave(l *launch.List, ids, weights launch.Mat, experts int, memory launch.Range) (left Left, ok bool) {
	if len(l.Ops) == 0 || experts > MaxLeft || !ids.Dense() || !weights.Dense() {
		return left, false
	}
	o := &l.Ops[len(l.Ops)-1]
	args := l.OpArgs(o)
	switch {
	case o.Kind != launch.Run:
		return left, false
	case o.Kernel == kNormRoute[0] || o.Kernel == kNormRoute[1]:
	case (o.Kernel == kLogitsFew[0] || o.Kernel == kLogitsFew[1]) && args[argSorted] == launch.P(0):
	default:
		return left, false
	}
	for at, want := range map[int]launch.Arg{
		argTokens: launch.I32(ids.Rows), argExperts: launch.I32(experts), argTopK: launch.I32(ids.Cols), argRows: launch.P(0),
		argIDs: launch.P(ids.At), argIDs + 1: launch.I32(ids.Stride), argIDs + 2: launch.P(weights.At), argIDs + 3: launch.I32(weights.Stride),
	} {
		if args[at] != want {
			return left, false
		}
	}
	parts, cols := pointer(args[argParts]), int(number(args[argCols]))
	end := memory.At + launch.Ptr(memory.Bytes)
	if args[argTurn] == launch.P(0) || parts < end && memory.At < parts+launch.Ptr(Scratch(ids.Rows, experts, cols)) {
		return left, false
	}
	args[argTurn] = launch.P(0)
	left.args = [11]launch.Arg{args[argParts], launch.I32(slicesOf(cols)), args[argLogits], args[argLogits+1], args[argBias]}
	copy(left.args[5:], args[argTopK+1:argTopK+7])
	return left, true
}

// Append appends the arguments UNCHOSEN_ARGS of src/gemv_moe.cu.
func (c *Left) Append(args []launch.Arg) []launch.Arg {
	if *c == (Left{}) {
		z := launch.I32(0)
		return append(args, launch.P(0), z, launch.P(0), z, launch.P(0), z, z, z, z, z, launch.F32(0))
	}
	return append(args, c.args[:]...)
}

func pointer(a launch.Arg) launch.Ptr { return launch.Ptr(bits(a)) }
func number(a launch.Arg) int32       { return int32(bits(a)) }

func bits(a launch.Arg) uint64 {
	var b [8]byte
	a.Put(b[:])
	return binary.LittleEndian.Uint64(b[:])
}
