// Package cublaslt multiplies bfloat16 matrices with NVIDIA's cuBLASLt, for comparisons with our
// own products. Open looks for the library, which is not part of the program: nothing links to
// it, and Open returns an error without it. Its results may differ from run to run and with the
// number of rows, so it is not used for serving.
//
// Without the build tag cuda only ErrAbsent exists.
package cublaslt

import "errors"

// ErrAbsent means that this machine has no cuBLASLt 12 or 13 on the loader's path.
var ErrAbsent = errors.New("no libcublasLt.so.13 or .12 on the library path")
