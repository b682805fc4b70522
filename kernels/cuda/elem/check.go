package elem

import (
	"fmt"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

func refuse(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}

// floats panics unless m is a matrix [rows, cols] of F32 or BF16.
func floats(op, name string, m launch.Mat, rows, cols int) {
	if m.Zero() || m.DType != tensor.F32 && m.DType != tensor.BF16 || m.Rows != rows || m.Cols != cols || m.Stride < cols {
		refuse(op, "%s is %v, need F32 or BF16 [%d, %d]", name, m, rows, cols)
	}
}

// typed panics unless m is a matrix [rows, cols] of that type.
func typed(op, name string, m launch.Mat, dt tensor.DType, rows, cols int) {
	if m.Zero() || m.DType != dt || m.Rows != rows || m.Cols != cols || m.Stride < cols {
		refuse(op, "%s is %v, need %s [%d, %d]", name, m, dt, rows, cols)
	}
}

// column panics unless m is I32 [rows, 1] without gaps.
func column(op, name string, m launch.Mat, rows int) {
	typed(op, name, m, tensor.I32, rows, 1)
	if !m.Dense() {
		refuse(op, "%s has gaps of %d", name, m.Stride)
	}
}

// Flags of a kernel, as in src/elem.cuh and src/kvstore.cu.
const (
	flagVec         = 1
	flagBF16        = 2 // << number of the operand
	flagInterleaved = 64
	flagNormVec     = 128
	flagCacheVec    = 256
)

// chunk is the number of elements that a thread processes at a time in aligned rows.
const chunk = 8

// aligned reports whether every row of m starts and ends at chunk boundaries. It checks the
// stride even for a single row, so that a row is computed the same way in every batch.
func aligned(m launch.Mat) bool {
	return m.Zero() || m.At%alignment(m.DType) == 0 && m.Stride%chunk == 0 && m.Cols%chunk == 0
}

func alignment(dt tensor.DType) launch.Ptr { return launch.Ptr(min(16, chunk*dt.Size())) }

// flags has a bit for each operand that is BF16, and vec if all are aligned.
func flags(operands ...launch.Mat) int {
	f := flagVec
	for i, m := range operands {
		if m.DType == tensor.BF16 {
			f |= flagBF16 << i
		}
		if !aligned(m) {
			f &^= flagVec
		}
	}
	return f
}

// step returns the number of elements that a thread processes at a time.
func step(flags, vec int) int {
	if flags&vec != 0 {
		return chunk
	}
	return 1
}

// pieces returns a launch with one thread per chunk: x rows, y pieces of a row.
func pieces(op string, rows, cols, flags int) launch.Config {
	chunks := cols / step(flags, flagVec)
	threads := min(256, warps(chunks))
	n := (chunks + threads - 1) / threads
	if n > 65535 {
		refuse(op, "rows of %d elements", cols)
	}
	return launch.Config{Grid: launch.Dim{X: uint32(rows), Y: uint32(n)}, Block: launch.Dim{X: uint32(threads)}, PDL: true}
}

// warps rounds a number of threads up to whole warps.
func warps(threads int) int { return (threads + 31) &^ 31 }

// normThreads returns the size of a block that norms a row: at most 512, with about equal work
// per thread. It depends only on the width, and so does the order of the sum.
func normThreads(cols, step int) int {
	chunks := cols / step
	each := (chunks + 511) / 512
	return warps((chunks + each - 1) / each)
}

// Chunks reports whether a kernel processes these matrices by chunks. With NormThreads this
// determines the order of a norm's sum, for kernels elsewhere that norm rows with the bits of
// RMSNorm.
func Chunks(operands ...launch.Mat) bool { return flags(operands...)&flagVec != 0 }

// NormThreads returns the number of threads that norm a row of cols elements by chunks.
func NormThreads(cols int) int { return normThreads(cols, chunk) }

// Aligned reports whether every row of m is made of aligned chunks.
func Aligned(m launch.Mat) bool { return aligned(m) }

func rowBlocks(rows, threads int) launch.Config {
	return launch.Config{Grid: launch.Dim{X: uint32(rows)}, Block: launch.Dim{X: uint32(threads)}, PDL: true}
}
