//go:build cuda

package driver

/*
#include "driver.h"
*/
import "C"

import (
	"unsafe"

	"gorgonia.org/cu"
)

// gorgonia keeps its handles unexported: each is a struct of one pointer. These two functions
// read it. A change of that layout stops the build here.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(cu.Function{})-unsafe.Sizeof(uintptr(0))]
	_ = [1]struct{}{}[unsafe.Sizeof(cu.Stream{})-unsafe.Sizeof(uintptr(0))]
)

func function(f cu.Function) C.CUfunction { return *(*C.CUfunction)(unsafe.Pointer(&f)) }
func stream(s cu.Stream) C.CUstream       { return *(*C.CUstream)(unsafe.Pointer(&s)) }

// Available returns nil if a driver is loaded, has started and sees a GPU.
func Available() error {
	_, err := Count()
	return err
}

// Count returns how many GPUs the driver sees, one or more.
func Count() (int, error) {
	var r C.CUresult
	switch C.kr_available(&r) {
	case 1:
		return 0, ErrNoDriver
	case 2:
		return 0, check("cuInit", r)
	}
	var n C.int
	if err := check("cuDeviceGetCount", C.cuDeviceGetCount(&n)); err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, check("cuDeviceGetCount", C.CUDA_ERROR_NO_DEVICE)
	}
	return int(n), nil
}

// SetMaxDynamicShared lets launches of f request up to n bytes of dynamic shared memory. It is
// needed above 48 KB (the limit is 227 KB on compute capability 9.0 and 163 KB on 8.0).
func SetMaxDynamicShared(f cu.Function, n int) error {
	const attribute = C.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
	return check("cuFuncSetAttribute", C.cuFuncSetAttribute(function(f), attribute, C.int(n)))
}

// WriteValue32 makes the stream store v at addr when it gets there.
func WriteValue32(s cu.Stream, addr cu.DevicePtr, v uint32) error {
	return check("cuStreamWriteValue32", C.cuStreamWriteValue32(stream(s), C.CUdeviceptr(addr), C.cuuint32_t(v), 0))
}
