//go:build cuda

package cublaslt

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "cublaslt.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// names are the library's file names, the newest first.
var names = []string{"libcublasLt.so.13", "libcublasLt.so.12"}

// Library is an open cuBLASLt. It is for one goroutine, on the thread that has the GPU's context.
type Library struct {
	lt    *C.kr_lt
	plans map[key]*C.kr_lt_plan
}

// key has everything on which the choice of an algorithm depends.
type key struct {
	m, n, k, outStride, xStride, wStride int
	out                                  tensor.DType
	workspace                            int64
}

// Error is a failed call: the library's status code, as its manual numbers them.
type Error struct {
	Call   string
	Status int
}

func (e *Error) Error() string { return fmt.Sprintf("%s: cuBLASLt status %d", e.Call, e.Status) }

// Open finds the library on the loader's path and starts it. The error Is ErrAbsent if there is
// none.
func Open() (*Library, error) { return open(names) }

func open(names []string) (*Library, error) {
	var last string
	for _, name := range names {
		l := &Library{plans: map[key]*C.kr_lt_plan{}}
		var missing C.int
		var detail *C.char
		at := C.CString(name)
		status := C.kr_lt_open(at, &l.lt, &missing, &detail)
		C.free(unsafe.Pointer(at))
		switch missing {
		case 1:
			last = C.GoString(detail)
			continue
		case 2:
			return nil, fmt.Errorf("%s has no %s", name, C.GoString(detail))
		}
		if status != 0 {
			return nil, &Error{"cublasLtCreate", int(status)}
		}
		return l, nil
	}
	return nil, fmt.Errorf("%w (%s)", ErrAbsent, last)
}

// Close closes the library.
func (l *Library) Close() {
	for _, p := range l.plans {
		C.kr_lt_plan_free(l.lt, p)
	}
	C.kr_lt_close(l.lt)
	l.lt, l.plans = nil, nil
}

// Version returns the library's version, such as 130100 for 13.1.0.
func (l *Library) Version() int { return int(C.kr_lt_version(l.lt)) }

// BF16 enqueues out [M, N] = x [M, K] * transposed w [N, K] on a stream of the driver (0: its
// default stream), with add out += it. x and w are BF16, out is BF16 or F32. workspace is bytes
// of the GPU's memory, aligned to 256. The algorithm is the first that the library offers; it is
// looked up once per shape.
func (l *Library) BF16(stream uintptr, out, x, w launch.Mat, add bool, workspace launch.Ptr, bytes int64) error {
	if x.DType != tensor.BF16 || w.DType != tensor.BF16 || out.DType != tensor.BF16 && out.DType != tensor.F32 ||
		x.Cols != w.Cols || out.Rows != x.Rows || out.Cols != w.Rows || bytes < 0 {
		panic(&device.ShapeError{Op: "cublaslt BF16", Why: fmt.Sprintf("out %v, x %v, w %v, workspace %d", out, x, w, bytes)})
	}
	if x.Rows == 0 || w.Rows == 0 || x.Cols == 0 {
		return nil
	}
	p, err := l.plan(key{x.Rows, w.Rows, x.Cols, out.Stride, x.Stride, w.Stride, out.DType, bytes})
	if err != nil {
		return err
	}
	status := C.kr_lt_run(l.lt, p, address(out.At), address(x.At), address(w.At), flag(add), address(workspace), C.uint64_t(bytes),
		address(launch.Ptr(stream)))
	if status != 0 {
		return &Error{"cublasLtMatmul", int(status)}
	}
	return nil
}

func (l *Library) plan(k key) (*C.kr_lt_plan, error) {
	if p := l.plans[k]; p != nil {
		return p, nil
	}
	var p *C.kr_lt_plan
	var algorithms C.int
	status := C.kr_lt_plan_make(l.lt, C.int64_t(k.m), C.int64_t(k.n), C.int64_t(k.k), C.int64_t(k.outStride), C.int64_t(k.xStride),
		C.int64_t(k.wStride), flag(k.out == tensor.F32), C.uint64_t(k.workspace), &p, &algorithms)
	if status != 0 {
		return nil, &Error{"cublasLtMatmulAlgoGetHeuristic", int(status)}
	}
	if p == nil {
		return nil, fmt.Errorf("cuBLASLt offers no algorithm for [%d, %d] x [%d, %d] to %v", k.m, k.k, k.n, k.k, k.out)
	}
	l.plans[k] = p
	return p, nil
}

// address converts an address of the GPU's memory, or of the driver, for C. It points to no Go
// memory.
func address(p launch.Ptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}
