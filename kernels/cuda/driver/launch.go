//go:build cuda

package driver

/*
#include <stdlib.h>
#include <string.h>
#include "driver.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"gorgonia.org/cu"
)

// LaunchConfig says how one kernel is launched. A zero dimension means 1.
type LaunchConfig struct {
	Grid, Block [3]uint32
	Shared      uint32 // dynamic shared memory, bytes
	// PDL lets the kernel start while its predecessor in the stream still runs. The
	// kernel must then call griddepcontrol.wait before it touches anything its
	// predecessors write or read: without that call it races. So set it only for code
	// built for sm_90 or later, where the instruction exists.
	PDL bool
}

// LaunchList is a sequence of prepared launches. Launch hands all of them to the driver in
// one cgo call, on a stream that may be capturing. It is owned by one goroutine. Free it
// when no launch of it is in progress.
type LaunchList struct {
	ops []C.kr_op // only the pointers in it are C memory; the driver reads it in Launch alone
}

// Add appends a launch. Each argument is a cu.DevicePtr, a fixed-size number, or a []byte
// for a struct passed by value (a CUtensorMap, say); its size is checked against the
// kernel's own parameter. It returns the index for SetArg.
func (l *LaunchList) Add(f cu.Function, c LaunchConfig, args ...any) (int, error) {
	fn := function(f)
	offsets, sizes, total, err := params(fn)
	if err != nil {
		return 0, err
	}
	if len(args) != len(sizes) {
		return 0, fmt.Errorf("kernel takes %d arguments, got %d", len(sizes), len(args))
	}
	// One block of C memory: the pointers, then the argument values at the kernel's own offsets.
	head := C.size_t(len(args)) * 8
	block := C.calloc(1, head+total+16)
	ptrs := unsafe.Slice((*unsafe.Pointer)(block), len(args))
	for i, a := range args {
		ptrs[i] = unsafe.Add(block, head+offsets[i])
		if err := store(ptrs[i], int(sizes[i]), a); err != nil {
			C.free(block)
			return 0, fmt.Errorf("argument %d: %w", i, err)
		}
	}
	o := C.kr_op{fn: fn, smem: C.uint(c.Shared), params: (*unsafe.Pointer)(block)}
	for i := range c.Grid {
		o.grid[i], o.block[i] = C.uint(max(c.Grid[i], 1)), C.uint(max(c.Block[i], 1))
	}
	if c.PDL {
		o.pdl = 1
	}
	l.ops = append(l.ops, o)
	return len(l.ops) - 1, nil
}

// params asks the driver for the places and sizes of a kernel's parameters, and for the
// end of the last one.
func params(fn C.CUfunction) (offsets, sizes []C.size_t, total C.size_t, err error) {
	for i := C.size_t(0); ; i++ {
		var off, size C.size_t
		r := C.cuFuncGetParamInfo(fn, i, &off, &size)
		if r == C.CUDA_ERROR_INVALID_VALUE { // past the last one
			return offsets, sizes, total, nil
		}
		if err := check("cuFuncGetParamInfo", r); err != nil {
			return nil, nil, 0, err
		}
		offsets, sizes, total = append(offsets, off), append(sizes, size), off+size
	}
}

// SetArg replaces one argument of a launch by a value of the same size.
func (l *LaunchList) SetArg(op, arg int, value any) error {
	o := &l.ops[op]
	var off, size C.size_t
	if err := check("cuFuncGetParamInfo", C.cuFuncGetParamInfo(o.fn, C.size_t(arg), &off, &size)); err != nil {
		return err
	}
	at := *(*unsafe.Pointer)(unsafe.Add(unsafe.Pointer(o.params), 8*arg))
	return store(at, int(size), value)
}

// Launch queues every launch of the list on s.
func (l *LaunchList) Launch(s cu.Stream) error {
	if len(l.ops) == 0 {
		return nil
	}
	var done C.size_t
	r := C.kr_launch_list(unsafe.SliceData(l.ops), C.size_t(len(l.ops)), stream(s), &done)
	if r != C.CUDA_SUCCESS {
		return fmt.Errorf("launch %d of %d: %w", int(done), len(l.ops), check("cuLaunchKernelEx", r))
	}
	return nil
}

// Len is the number of launches in the list.
func (l *LaunchList) Len() int { return len(l.ops) }

// Free releases the argument memory; the list is empty afterwards.
func (l *LaunchList) Free() {
	for _, o := range l.ops {
		C.free(unsafe.Pointer(o.params))
	}
	l.ops = nil
}

// store writes v at p, which has room for size bytes.
func store(p unsafe.Pointer, size int, v any) error {
	put := func(src unsafe.Pointer, n int) error {
		if n != size {
			return fmt.Errorf("%T has %d bytes, the kernel's parameter %d", v, n, size)
		}
		copy(unsafe.Slice((*byte)(p), n), unsafe.Slice((*byte)(src), n))
		return nil
	}
	switch x := v.(type) {
	case cu.DevicePtr:
		return put(unsafe.Pointer(&x), 8)
	case []byte:
		return put(unsafe.Pointer(unsafe.SliceData(x)), len(x))
	case int8:
		return put(unsafe.Pointer(&x), 1)
	case uint8:
		return put(unsafe.Pointer(&x), 1)
	case uint16: // also bf16 and f16
		return put(unsafe.Pointer(&x), 2)
	case int32:
		return put(unsafe.Pointer(&x), 4)
	case uint32:
		return put(unsafe.Pointer(&x), 4)
	case float32:
		return put(unsafe.Pointer(&x), 4)
	case int64:
		return put(unsafe.Pointer(&x), 8)
	case uint64:
		return put(unsafe.Pointer(&x), 8)
	case float64:
		return put(unsafe.Pointer(&x), 8)
	}
	return fmt.Errorf("cannot pass a %T to a kernel", v)
}
