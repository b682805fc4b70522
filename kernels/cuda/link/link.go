// Package link has the launches with which a GPU copies experts that it lacks over the link in the middle of a
// step, from host memory that it has mapped. Launches depend on shapes only, so a list of them can be replayed: the
// GPU itself chooses the experts, by the rows of the step.
//
// Functions panic with *device.ShapeError if shapes do not fit.
package link

import (
	"fmt"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var (
	kPick  = launch.Named("kr_link_pick")
	kBring = launch.Named("kr_link_bring")
)

const (
	threads = 256
	// mostBlocks bounds the blocks of a copy. The link carries some 50 bytes in a nanosecond and a load takes a
	// microsecond or two; a block has 32 KB of loads in flight.
	mostBlocks = 32
	blockBytes = threads * 8 * 16
)

// Pick adds the launch that chooses what is brought: device.OpPickExperts.
func Pick(l *launch.List, now, list, coming, ids, where, terms launch.Mat) {
	const op = "PickExperts"
	experts, most := where.Cols, terms.Cols-1
	for _, m := range []struct {
		name string
		launch.Mat
		rows, cols int
	}{{"where", where, 1, experts}, {"terms", terms, 1, 1 + most}, {"now", now, 1, experts}, {"list", list, 1, 2 * most}, {"coming", coming, 1, coming.Cols}, {"ids", ids, ids.Rows, ids.Cols}} {
		if m.Zero() || m.DType != tensor.I32 || m.Rows != m.rows || m.Cols != m.cols || m.cols < 1 || !m.Dense() {
			refuse(op, "%s %v", m.name, m.Mat)
		}
	}
	l.Add(kPick, launch.Config{Block: launch.Dim{X: threads}, Shared: uint32(4 * experts), PDL: true},
		launch.P(now.At), launch.P(list.At), launch.P(coming.At), launch.P(ids.At), launch.I32(ids.Rows*ids.Cols), launch.P(where.At), launch.I32(experts), launch.P(terms.At), launch.I32(most))
}

// Bring adds the launch that copies what Pick has chosen: device.OpBringExperts. The launch behind it may begin
// while it copies (Last).
func Bring(l *launch.List, slots, from, first, list, coming launch.Mat) {
	const op = "BringExperts"
	row := from.Cols * 4
	switch {
	case from.Zero() || from.DType != tensor.F32 || !from.Dense() || row%16 != 0 || from.At%16 != 0:
		refuse(op, "experts %v in host memory", from)
	case slots.Zero() || slots.DType != tensor.F32 || !slots.Dense() || slots.Cols != from.Cols || slots.At%16 != 0:
		refuse(op, "slots %v for experts %v", slots, from)
	case first.At != from.At || first.DType != from.DType || first.Rows != from.Rows || first.Stride != from.Stride || first.Cols > from.Cols || first.Cols*4%16 != 0:
		refuse(op, "the first columns %v of experts %v", first, from)
	case coming.Zero() || coming.DType != tensor.I32 || coming.Rows != 1 || coming.Cols != slots.Rows:
		refuse(op, "marks %v for slots %v", coming, slots)
	case list.Zero() || list.DType != tensor.I32 || list.Rows != 1 || list.Cols%2 != 0:
		refuse(op, "list %v", list)
	}
	blocks := max(1, min(mostBlocks, (row+blockBytes-1)/blockBytes))
	l.Add(kBring, launch.Config{Grid: launch.Dim{X: uint32(blocks)}, Block: launch.Dim{X: threads}, PDL: true},
		launch.P(slots.At), launch.P(from.At), launch.P(list.At), launch.P(coming.At), launch.I32(list.Cols/2), launch.I32(row/16), launch.I32(first.Cols/4))
}

// Last reports whether the last launch of l is Bring's with these marks. A launch behind it that does not wait for the end of
// launches before it finds what was there before Bring. Of what Bring copies, it finds what the marks say.
func Last(l *launch.List, coming launch.Ptr) bool {
	if coming == 0 || len(l.Ops) == 0 {
		return false
	}
	o := &l.Ops[len(l.Ops)-1]
	return o.Kind == launch.Run && o.Kernel == kBring && l.OpArgs(o)[argComing] == launch.P(coming)
}

// argComing is the number of Bring's argument.
const argComing = 3

// After moves Bring's launch behind those that add appends, if it is the last one of l. None of them may read what it copies.
func After(l *launch.List, coming launch.Ptr, add func()) {
	if !Last(l, coming) {
		add()
		return
	}
	last := len(l.Ops) - 1
	o := l.Ops[last]
	l.Ops = l.Ops[:last]
	add()
	l.Ops = append(l.Ops, o)
}

func refuse(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}
