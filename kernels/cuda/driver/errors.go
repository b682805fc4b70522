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

// Error is a failed driver call: the call, and the driver's number and name for the error.
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

// Check converts the code that a call returned to an error, nil for success. It is for packages
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
		e.Name = fmt.Sprintf("CUresult %d", int(r)) // there is no driver, or it does not know the number
	}
	return e
}

// Code returns the driver's number in err, from this package or from gorgonia; 0 if there is
// none.
func Code(err error) int {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return resultCode(err, cu.Success)
}

// resultCode finds an error of gorgonia's unexported result type; like has that type.
func resultCode[R interface {
	~int
	error
}](err error, like R) int {
	if errors.As(err, &like) {
		return int(like)
	}
	return 0
}

// Numbers that headers before CUDA 13 have no names for.
const (
	contained        = 226 // CUDA_ERROR_CONTAINED: memory failed, the program must end
	tensorMemoryLeak = 721 // CUDA_ERROR_TENSOR_MEMORY_LEAK
	externalDevice   = 911 // CUDA_ERROR_EXTERNAL_DEVICE
)

// Sticky reports whether err has ended the GPU's context. A kernel or the hardware has failed so
// that every later call in the context returns the same error. Its memory, modules and streams
// are lost; only a new process is sure to be able to use the GPU again.
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

// NotReady reports whether err only means that queued work is not done yet.
func NotReady(err error) bool { return Code(err) == C.CUDA_ERROR_NOT_READY }

// NotFound reports whether err means that a module has no such kernel.
func NotFound(err error) bool { return Code(err) == C.CUDA_ERROR_NOT_FOUND }

// OutOfMemory reports whether err means that the GPU's memory (or pinned host memory) is full.
func OutOfMemory(err error) bool { return Code(err) == C.CUDA_ERROR_OUT_OF_MEMORY }

// PeerEnabled reports whether err only means that a GPU has access to the other's memory already.
func PeerEnabled(err error) bool { return Code(err) == C.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED }
