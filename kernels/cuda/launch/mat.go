package launch

import (
	"fmt"
	"math"

	"krater/kernels/tensor"
)

// Mat is a row-major matrix in the GPU's memory. The zero Mat means "absent".
type Mat struct {
	At     Ptr // of the first element
	DType  tensor.DType
	Rows   int
	Cols   int
	Stride int // elements between the starts of two rows
}

// Zero reports whether m is absent.
func (m Mat) Zero() bool { return m.At == 0 }

// Dense reports whether rows follow one another without a gap.
func (m Mat) Dense() bool { return m.Stride == m.Cols || m.Rows <= 1 }

// RowRange views rows [from, to).
func (m Mat) RowRange(from, to int) Mat {
	m.At += Ptr(from * m.Stride * m.DType.Size())
	m.Rows = to - from
	return m
}

// ColRange views columns [from, to) of every row.
func (m Mat) ColRange(from, to int) Mat {
	m.At += Ptr(from * m.DType.Size())
	m.Cols = to - from
	return m
}

// String describes shape and type, for errors.
func (m Mat) String() string {
	if m.Zero() {
		return "absent"
	}
	return fmt.Sprintf("%s [%d, %d]", m.DType, m.Rows, m.Cols)
}

// Tiles is a packed weight matrix.
type Tiles struct {
	tensor.Layout
	Values Ptr // ValueBytes, aligned to 128
	Scales Ptr // ScaleBytes
}

// Zero reports whether t is absent.
func (t *Tiles) Zero() bool { return t.Values == 0 }

// Weight is the matrix [N, K] of a linear layer: plain rows (BF16 or F32), or tiles. Bias F32 [N]
// is added to the layer's result; 0: none.
type Weight struct {
	F    Mat
	A    Tiles
	Bias Ptr
}

// Rows returns N.
func (w *Weight) Rows() int {
	if !w.A.Zero() {
		return w.A.Rows
	}
	return w.F.Rows
}

// Cols returns K.
func (w *Weight) Cols() int {
	if !w.A.Zero() {
		return w.A.Cols
	}
	return w.F.Cols
}

// Bank is the routed experts of a layer, one after the other at equal distances. W13 and W2
// describe expert 0: W13 [2F, H] joined (gate and up), W2 [H, F]. In plain rows W13 holds gate's
// F rows, then up's. Step is the distance between two experts' values (in bytes), ScaleStep that
// between their scales.
// experts' values (in bytes), ScaleStep of their scales.
type Bank struct {
	Experts           int
	W13, W2           Weight
	Step, ScaleStep   int64 // of W13
	Step2, ScaleStep2 int64 // of W2
	// Map I32 [Experts] is the slot of every expert in the bank, below 0 if it has none; 0: slot
	// e is expert e. Kernels may read it before they wait for earlier launches, because nothing
	// writes it during a step.
	Map Ptr
	// Coming has a word for each slot: not 0 while a launch right before copies the slot's expert. 0: none does.
	Coming Ptr
	Extra
}

// Extra holds the biases and the activation of networks: see device.Extra. The biases F32 are of
// the first expert; 0: none.
type Extra struct {
	B13, B2             Ptr   // [2F], gate's then up's, and [H]
	BiasStep            int64 // bytes from one expert's to the next
	Alpha, Limit, Shift float32
	Cubic               float32 // if it is not 0, only the plain kernels have the activation in them
}

// Zero reports whether there are no biases and the activation is SiLU.
func (e *Extra) Zero() bool { return *e == Extra{} }

// Apart reports whether the activation is a launch of its own (elem.Activate) but for the plain kernels.
func (e *Extra) Apart() bool { return e.Cubic != 0 }

// Act are the activation's arguments in the kernels' order: alpha, limit, shift.
func (e *Extra) Act() [3]Arg {
	alpha, limit := e.Alpha, e.Limit
	if alpha == 0 {
		alpha = 1
	}
	if limit == 0 {
		limit = float32(math.Inf(1))
	}
	return [3]Arg{F32(alpha), F32(limit), F32(e.Shift)}
}

// KV is a layer's cache of keys and values: one row per slot. Scales [slots, width/Group] F32
// belong to I8.
type KV struct {
	Mat
	Scales Mat
	Group  int
	Marks  Mat // see device.KV
	Mark   int
	Far    bool // it lies in host memory
}
