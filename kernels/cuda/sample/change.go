package sample

import (
	"time"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// changeRange is the number of tokens per block of kr_change_logits, changeThreads its threads (src/change.cu).
const changeRange, changeThreads = 8192, 1024

// Changes are device.LogitChanges: Rows is its Draws, Wanted its Rows. Masks may be absent if no
// row has one.
type Changes struct {
	Rows                             launch.Ptr // as Sample takes them
	Table, IDs, Wanted, Store, Masks launch.Mat
	Limit                            time.Duration // for a mask
}

// Change changes logits [n, V] F32 in place before a choice, as the host does: biases, end tokens
// that are not allowed yet, masks, then penalties. It waits for masks that are not there yet. NaN and +Inf, which make a row unusable, stay.
// The step's token for a row is added to the row's history.
func Change(l *launch.List, logits launch.Mat, c *Changes) {
	const op = "Change"
	checkLogits(op, logits)
	n := logits.Rows
	ints := func(m launch.Mat, cols int) bool {
		return !m.Zero() && m.DType == tensor.I32 && m.Rows == n && m.Cols == cols && m.Dense()
	}
	switch {
	case c.Rows == 0 || c.Rows%8 != 0:
		refuse(op, "parameters at %#x", uint64(c.Rows))
	case !ints(c.Table, 2) || c.Table.At%8 != 0 || !ints(c.Wanted, 1):
		refuse(op, "table %v at %#x and rows %v for logits %v", c.Table, uint64(c.Table.At), c.Wanted, logits)
	case c.IDs.Zero() || c.IDs.DType != tensor.I32 || c.IDs.Cols != 1 || !c.IDs.Dense():
		refuse(op, "tokens are %v", c.IDs)
	case !c.Masks.Zero() && (!ints(c.Masks, device.MaskStride(logits.Cols)) || c.Masks.At%16 != 0 || c.Limit < time.Microsecond || c.Limit > time.Hour):
		refuse(op, "masks are %v at %#x within %v for logits %v", c.Masks, uint64(c.Masks.At), c.Limit, logits)
	case !c.Store.Zero() && (c.Store.DType != tensor.I32 || c.Store.Cols < device.ChangeWords || c.Store.Stride%4 != 0 || c.Store.At%16 != 0):
		refuse(op, "histories are %v at %#x", c.Store, uint64(c.Store.At))
	}
	if n == 0 {
		return
	}
	l.Add(kChange, launch.Config{
		Grid:  launch.Dim{X: uint32((logits.Cols + changeRange - 1) / changeRange), Y: uint32(n)},
		Block: launch.Dim{X: changeThreads},
		PDL:   true,
	},
		launch.P(logits.At), launch.I32(logits.Stride), launch.I32(logits.Cols), launch.P(c.Rows), launch.P(c.Table.At),
		launch.P(c.IDs.At), launch.P(c.Wanted.At), launch.P(c.Store.At), launch.I64(int64(c.Store.Stride)), launch.P(c.Masks.At), launch.U32(uint32(c.Limit.Microseconds())))
}
