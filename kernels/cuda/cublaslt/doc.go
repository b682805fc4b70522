// Package cublaslt multiplies bfloat16 matrices with NVIDIA's cuBLASLt, to compare our own
// products with it. The library is looked for when Open is called and is no part of the
// program: nothing is linked to it, and without it Open says so. What it returns may differ
// from run to run and with the number of rows, so nothing is served through it.
//
// Without the build tag cuda only ErrAbsent exists.
package cublaslt

import "errors"

// ErrAbsent says that this machine has no cuBLASLt 12 or 13 on the loader's path.
var ErrAbsent = errors.New("no libcublasLt.so.13 or .12 on the library path")
