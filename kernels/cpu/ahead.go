package cpu

import (
	"sync/atomic"
	"unsafe"

	"krater/kernels/cpu/dot"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// ahead is memory that will be read next. Workers without work ask for it: memory would rest while one thread computes what is too
// small to share. It is a hint: it may change at any time, and asking for memory never faults.
type ahead struct{ next, end atomic.Uintptr }

const (
	aheadPiece = 4096    // bytes that a worker asks for between two looks for work
	aheadMost  = 1 << 17 // bytes for each thread: a part of a second-level cache
	aheadOps   = 16      // operators until the one that reads
)

// set replaces the memory.
func (a *ahead) set(p unsafe.Pointer, n int) {
	a.end.Store(0)
	a.next.Store(uintptr(p))
	a.end.Store(uintptr(p) + uintptr(n))
}

// drop forgets the memory.
func (a *ahead) drop() { a.end.Store(0) }

// fetch asks for a piece, and reports whether there was one.
func (a *ahead) fetch() bool {
	if a.next.Load() >= a.end.Load() {
		return false
	}
	at := a.next.Add(aheadPiece) - aheadPiece
	if at >= a.end.Load() {
		return false
	}
	fetchRows(at, aheadPiece, 0, 1)
	return true
}

// lookAhead tells the workers which weights are read next, before operator l.Ops[0] of few rows. With operators that read weights
// themselves memory has enough to do.
func (s *Stream) lookAhead(l device.List) {
	if len(s.lanes) < 2 || s.team.handOff {
		return
	}
	for i := range min(len(l.Ops), aheadOps) {
		w, ok := weightsOf(&l.Ops[i])
		if !ok {
			continue
		}
		if i == 0 {
			s.team.ahead.drop()
			s.ahead = nil
		} else if p, n := memoryOf(&w); p != nil && p != s.ahead {
			s.ahead = p
			s.team.ahead.set(p, min(n, aheadMost*len(s.lanes)))
		}
		return
	}
}

// weightsOf is the weights that an operator reads first, if it reads any in large amounts; they may be absent.
func weightsOf(o *device.Op) (w device.Weight, ok bool) {
	switch {
	case o.Kind == device.OpMatMul:
		w = *o.Weight
	case o.Kind == device.OpFFN && o.FFN.Integer():
		w.Q = o.FFN.Q.W13
	case o.Kind != device.OpFFN && o.Kind != device.OpExperts:
		return w, false
	}
	if o.Out.Rows > dot.Rows {
		return device.Weight{}, true
	}
	return w, true
}

// memoryOf is where a matrix is, nil if it is absent or has gaps; of packed ones without scales.
func memoryOf(w *device.Weight) (p unsafe.Pointer, n int) {
	switch {
	case !w.Q.Zero():
		return at("Run", "weights", &device.Mat{Buf: w.Q.Values, Off: w.Q.ValueAt, DType: tensor.I8, Rows: 1, Cols: w.Q.ValueBytes(), Stride: w.Q.ValueBytes()}), w.Q.ValueBytes()
	case !w.F.Zero() && w.F.Dense():
		return at("Run", "weights", &w.F), w.F.Bytes()
	}
	return nil, 0
}
