//go:build cuda

package driver

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"fmt"

	"gorgonia.org/cu"
)

// Error is a failed driver call: which one, and the driver's number and name for what
// went wrong.
type Error struct {
	Call string // "cuGraphLaunch"
	Code int
	Name string // "CUDA_ERROR_INVALID_VALUE"
}

func (e *Error) Error() string { return e.Call + ": " + e.Name }

// Is makes errors.Is compare the code only, so that &Error{Code: 1} matches an invalid
// value from any call.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Check is the error of a call that answered code, nil for success. It is for packages
// with calls of their own.
func Check(call string, code int) error { return check(call, C.CUresult(code)) }

func check(call string, r C.CUresult) error {
	if r == C.CUDA_SUCCESS {
		return nil
	}
	e := &Error{Call: call, Code: int(r)}
	var name *C.char
	if C.cuGetErrorName(r, &name) == C.CUDA_SUCCESS && name != nil {
		e.Name = C.GoString(name)
	} else {
		e.Name = fmt.Sprintf("CUresult %d", int(r)) // no driver, or one that does not know it
	}
	return e
}

// Code is the driver's number in err, whether it came from this package or from
// gorgonia; 0 when there is none.
func Code(err error) int {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return resultCode(err, cu.Success)
}

// resultCode finds an error of gorgonia's unexported result type, which like has.
func resultCode[R interface {
	~int
	error
}](err error, like R) int {
	if errors.As(err, &like) {
		return int(like)
	}
	return 0
}

// Numbers that headers before CUDA 13 do not name.
const (
	contained        = 226 // CUDA_ERROR_CONTAINED: memory failed, the program must end
	tensorMemoryLeak = 721 // CUDA_ERROR_TENSOR_MEMORY_LEAK
	externalDevice   = 911 // CUDA_ERROR_EXTERNAL_DEVICE
)

// Sticky reports whether err has ended the GPU's context: a kernel or the hardware
// failed in a way after which every call in the context answers the same error. Its
// memory, modules and streams are gone; only a new process has the GPU back for sure.
func Sticky(err error) bool {
	switch Code(err) {
	case C.CUDA_ERROR_ILLEGAL_ADDRESS, C.CUDA_ERROR_MISALIGNED_ADDRESS, C.CUDA_ERROR_INVALID_ADDRESS_SPACE,
		C.CUDA_ERROR_ILLEGAL_INSTRUCTION, C.CUDA_ERROR_INVALID_PC, C.CUDA_ERROR_HARDWARE_STACK_ERROR,
		C.CUDA_ERROR_LAUNCH_FAILED, C.CUDA_ERROR_LAUNCH_TIMEOUT, C.CUDA_ERROR_ASSERT,
		C.CUDA_ERROR_ECC_UNCORRECTABLE, C.CUDA_ERROR_NVLINK_UNCORRECTABLE, contained, tensorMemoryLeak,
		externalDevice, C.CUDA_ERROR_CONTEXT_IS_DESTROYED, C.CUDA_ERROR_DEINITIALIZED, C.CUDA_ERROR_UNKNOWN:
		return true
	}
	return false
}

// NotReady reports whether err only says that queued work is not done yet.
func NotReady(err error) bool { return Code(err) == C.CUDA_ERROR_NOT_READY }

// NotFound reports whether err says that a module has no such kernel.
func NotFound(err error) bool { return Code(err) == C.CUDA_ERROR_NOT_FOUND }

// OutOfMemory reports whether err says that the GPU (or pinned host memory) is full.
func OutOfMemory(err error) bool { return Code(err) == C.CUDA_ERROR_OUT_OF_MEMORY }
