package ops

import (
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

// Networks whose activation is a launch of its own (launch.Extra.Apart): two products with the
// activation between them. What gate and up give is rounded to the type of the rows, as it is in a
// model that runs in bfloat16.

// kept returns how many values a row of experts keeps between its products: the hidden ones and, with an
// activation apart, those of gate and up.
func kept(bank *launch.Bank) int {
	if bank.Apart() {
		return 3 * bank.W2.Cols()
	}
	return bank.W2.Cols()
}

// apart is FFN of a network with another activation than SiLU, if there are fast kernels for its products.
func (b *Builder) apart(out, x launch.Mat, n *Network) bool {
	if b.Plain || n.Extra.Zero() || n.B13 != 0 || n.B2 != 0 || x.DType != tensor.BF16 || out.DType != tensor.BF16 {
		return false
	}
	rows, width := x.Rows, n.W2.Cols()
	w13 := n.W13
	w13.A.Joined = false // its rows are taken as they are stored
	both := launch.Mat{DType: tensor.BF16, Rows: rows, Cols: 2 * width, Stride: 2 * width}
	hidden := launch.Mat{DType: tensor.BF16, Rows: rows, Cols: width, Stride: width}
	parts := max(b.partsOf(rows, &w13), b.partsOf(rows, &n.W2))
	b.inside(2*rows*2*width, 2*rows*width, parts, func(one, two launch.Ptr) {
		both.At, hidden.At = one, two
		b.MatMul(both, x, w13)
		if n.W13.A.Joined {
			elem.ActivateJoined(b.List, hidden, both, &n.Extra)
		} else {
			elem.Activate(b.List, hidden, both.ColRange(0, width), both.ColRange(width, 2*width), &n.Extra)
		}
		b.MatMul(out, hidden, n.W2)
	})
	return true
}

// rounded is a product of rows of float32 with kernels for bfloat16, to which they are rounded first.
// It returns false where the product needs no such rows or has no such kernels.
func (b *Builder) rounded(out, x launch.Mat, w *launch.Weight) bool {
	if b.Plain || x.DType != tensor.F32 || out.DType != tensor.BF16 {
		return false
	}
	half := launch.Mat{DType: tensor.BF16, Rows: x.Rows, Cols: x.Cols, Stride: x.Cols}
	b.inside(2*x.Rows*x.Cols, 0, b.partsOf(x.Rows, w), func(one, _ launch.Ptr) {
		half.At = one
		elem.Scale(b.List, half, x, 1)
		b.MatMul(out, half, *w)
	})
	return true
}

// partsOf is partsBytes of a product with w.
func (b *Builder) partsOf(rows int, w *launch.Weight) int {
	if !w.A.Zero() {
		return 0
	}
	return b.partsBytes(rows, w.Rows(), w.Cols())
}

// inside calls part with two pieces of scratch memory. Operators that part appends have the third.
func (b *Builder) inside(one, two, three int, part func(one, two launch.Ptr)) {
	var at [3]launch.Ptr
	b.lay(func(a *arena) { at = [3]launch.Ptr{a.cut(one), a.cut(two), a.cut(three)} })
	scratch := b.Scratch
	defer func() { b.Scratch = scratch }()
	b.Scratch = func(n int) launch.Ptr {
		if n > three {
			refuse("scratch", "%d bytes within an operator that left %d", n, three)
		}
		return at[2]
	}
	part(at[0], at[1])
}
