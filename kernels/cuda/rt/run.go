//go:build cuda

package rt

/*
#include "run.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"gorgonia.org/cu"

	"krater/kernels/cuda/driver"
	"krater/kernels/cuda/launch"
)

// gorgonia keeps its handles unexported: each is a struct of one pointer. A change of that
// layout, or of launch.Arg, stops the build here.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(cu.Function{})-unsafe.Sizeof(uintptr(0))]
	_ = [1]struct{}{}[unsafe.Sizeof(cu.Stream{})-unsafe.Sizeof(uintptr(0))]
	_ = [1]struct{}{}[unsafe.Sizeof(launch.Arg{})-unsafe.Sizeof(C.kr_run_arg{})]
)

func cStream(s cu.Stream) C.CUstream { return *(*C.CUstream)(unsafe.Pointer(&s)) }

// runner converts lists to the arguments of kr_run; it keeps its memory.
type runner struct{ ops []C.kr_run_op }

// run enqueues ops [from, to) of l on s. It belongs to the owner's thread.
func (r *runner) run(m *modules, l *launch.List, from, to int, s cu.Stream) error {
	r.ops = r.ops[:0]
	for i := from; i < to; i++ {
		o, err := m.prepare(l, &l.Ops[i])
		if err != nil {
			return err
		}
		r.ops = append(r.ops, o)
	}
	if len(r.ops) == 0 {
		return nil
	}
	var done C.int64_t
	args := (*C.kr_run_arg)(unsafe.Pointer(unsafe.SliceData(l.Args)))
	res := C.kr_run(unsafe.SliceData(r.ops), C.int64_t(len(r.ops)), args, cStream(s), &done)
	if res == C.CUDA_SUCCESS {
		return nil
	}
	at := min(from+int(done), to-1)
	return fmt.Errorf("op %d of %d (%s): %w", at, len(l.Ops), opName(&l.Ops[at]), driver.Check("launch", int(res)))
}

func opName(o *launch.Op) string {
	switch o.Kind {
	case launch.Fill:
		return "fill"
	case launch.Copy:
		return "copy"
	}
	return o.Kernel.String()
}

// prepare checks an op against its kernel and lays out its arguments.
func (m *modules) prepare(l *launch.List, o *launch.Op) (C.kr_run_op, error) {
	if o.Kind != launch.Run {
		return C.kr_run_op{kind: C.int32_t(o.Kind), value: C.int32_t(o.Value),
			dst: C.uint64_t(o.Dst), src: C.uint64_t(o.Src), bytes: C.uint64_t(o.Bytes)}, nil
	}
	f, err := m.function(o.Kernel)
	if err != nil {
		return C.kr_run_op{}, err
	}
	if err := f.fits(l.OpArgs(o)); err != nil {
		return C.kr_run_op{}, fmt.Errorf("%s: %w", o.Kernel, err)
	}
	if err := f.room(o.Config.Shared); err != nil {
		return C.kr_run_op{}, fmt.Errorf("%s: %w", o.Kernel, err)
	}
	c := &o.Config
	out := C.kr_run_op{fn: *(*C.CUfunction)(unsafe.Pointer(&f.fn)), smem: C.uint32_t(c.Shared),
		first: C.int32_t(o.First), count: C.int32_t(o.Count)}
	if c.PDL && m.hopper {
		out.pdl = 1
	}
	for i, d := range [3]uint32{c.Grid.X, c.Grid.Y, c.Grid.Z} {
		out.grid[i] = C.uint32_t(max(d, 1))
	}
	for i, d := range [3]uint32{c.Block.X, c.Block.Y, c.Block.Z} {
		out.block[i] = C.uint32_t(max(d, 1))
	}
	return out, nil
}

// sizes asks the driver for the sizes of a kernel's parameters.
func sizes(fn cu.Function) ([]int, error) {
	var out []int
	for i := 0; ; i++ {
		var off, size C.size_t
		r := C.cuFuncGetParamInfo(*(*C.CUfunction)(unsafe.Pointer(&fn)), C.size_t(i), &off, &size)
		if r == C.CUDA_ERROR_INVALID_VALUE { // past the last one
			return out, nil
		}
		if r != C.CUDA_SUCCESS {
			return nil, driver.Check("cuFuncGetParamInfo", int(r))
		}
		out = append(out, int(size))
	}
}
