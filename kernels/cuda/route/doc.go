// Package route launches the kernels that choose experts: router logits, top-k, and the sorting
// of assignments into tiles of one expert for the grouped products.
//
// All values are computed as in float32, in a fixed order. A token's choice does not depend on
// the other tokens of its batch or their number, and is the same in every run. Functions panic
// with *device.ShapeError if shapes do not fit.
package route

import (
	"fmt"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// The kernels: src/logits.cu, route.cu, align.cu. Pairs are by the type of the gate: F32,
// BF16.
var (
	kLogitsFew  = [2]launch.Kernel{launch.Named("kr_logits_few_f"), launch.Named("kr_logits_few_b")}
	kLogits64   = [2]launch.Kernel{launch.Named("kr_logits_64_f"), launch.Named("kr_logits_64_b")}
	kLogits128  = [2]launch.Kernel{launch.Named("kr_logits_128_f"), launch.Named("kr_logits_128_b")}
	kLogitsJoin = launch.Named("kr_logits_join")
	kLogits1    = launch.Named("kr_logits_1")
	kLogits4    = launch.Named("kr_logits_4")
	kLogits4x2  = launch.Named("kr_logits_4x2")
	kLogits8    = [2]launch.Kernel{launch.Named("kr_logits_8_ff"), launch.Named("kr_logits_8_fb")}
	kTopK       = launch.Named("kr_route_top_k")
	kNormRoute  = [2]launch.Kernel{launch.Named("kr_norm_route_f"), launch.Named("kr_norm_route_b")}
	kAlignCount = launch.Named("kr_align_count")
	kAlign      = launch.Named("kr_align")
)

func refuse(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}

func typed(op, name string, m launch.Mat, dt tensor.DType, rows, cols int) {
	if m.Zero() || m.DType != dt || m.Rows != rows || m.Cols != cols || m.Stride < cols {
		refuse(op, "%s is %v, need %s [%d, %d]", name, m, dt, rows, cols)
	}
}

func floats(op, name string, m launch.Mat, rows, cols int) {
	if m.Zero() || m.DType != tensor.F32 && m.DType != tensor.BF16 || m.Rows != rows || m.Cols != cols || m.Stride < cols {
		refuse(op, "%s is %v, need F32 or BF16 [%d, %d]", name, m, rows, cols)
	}
}
