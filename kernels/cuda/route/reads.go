package route

import "krater/kernels/cuda/launch"

// Reads reports whether the last launch of l is the router for few tokens, and reads x from
// memory without writing it. It lets the next launch start only when x is there. So the next
// launch may read x, and write to memory, before it waits for the choice.
func Reads(l *launch.List, x launch.Mat, memory launch.Range) bool {
	if len(l.Ops) == 0 {
		return false
	}
	o := &l.Ops[len(l.Ops)-1]
	if o.Kind != launch.Run || o.Kernel != kLogitsFew[0] && o.Kernel != kLogitsFew[1] {
		return false
	}
	args := l.OpArgs(o)
	if args[argX] != launch.P(x.At) || args[argX+1] != launch.I32(x.Stride) || args[argTokens] != launch.I32(x.Rows) {
		return false
	}
	return outside(args, x.Rows, memory)
}

// outside reports whether the parts of a router's logits are outside of memory.
func outside(args []launch.Arg, rows int, memory launch.Range) bool {
	parts := pointer(args[argParts])
	n := Scratch(rows, int(number(args[argExperts])), int(number(args[argCols])))
	return parts+launch.Ptr(n) <= memory.At || memory.At+launch.Ptr(memory.Bytes) <= parts
}

// Normed are the rows of which NormRoute computes the norm, as arguments NORM_OF_ARGS of
// src/gemv_moe.cu. The zero value is none.
type Normed struct{ args [5]launch.Arg }

// Hold makes the last launch of l let the next one start only when the rows are there that it
// norms, if it is NormRoute of x. The next launch may then compute x from them, and write to memory, before it
// waits for the choice. ok is false, and nothing has changed, if this is not possible.
func Hold(l *launch.List, x launch.Mat, memory launch.Range) (n Normed, ok bool) {
	if len(l.Ops) == 0 {
		return n, false
	}
	o := &l.Ops[len(l.Ops)-1]
	if o.Kind != launch.Run || o.Kernel != kNormRoute[0] && o.Kernel != kNormRoute[1] {
		return n, false
	}
	args := l.OpArgs(o)
	if args[argX] != launch.P(x.At) || args[argX+1] != launch.I32(x.Stride) || args[argTokens] != launch.I32(x.Rows) || !outside(args, x.Rows, memory) {
		return n, false
	}
	args[argHold] = launch.I32(1)
	of := args[argNormed:]
	kind := number(of[1]) | number(of[4])<<1 | number(of[6])<<2
	n.args = [5]launch.Arg{of[0], of[2], of[3], of[5], launch.I32(int(kind))}
	return n, true
}

// Append appends the arguments NORM_OF_ARGS.
func (n *Normed) Append(args []launch.Arg) []launch.Arg {
	if *n == (Normed{}) {
		return append(args, launch.P(0), launch.I32(0), launch.P(0), launch.F32(0), launch.I32(0))
	}
	return append(args, n.args[:]...)
}
