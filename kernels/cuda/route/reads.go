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
	parts := pointer(args[argParts])
	n := Scratch(x.Rows, int(number(args[argExperts])), int(number(args[argCols])))
	return parts+launch.Ptr(n) <= memory.At || memory.At+launch.Ptr(memory.Bytes) <= parts
}
