package ops

import (
	"krater/kernels/cuda/gemv"
	"krater/kernels/cuda/launch"
)

// form is a numerics class: a family of kernels whose rows have the same bits whatever their
// number.
type form uint8

const (
	bySize form = iota // few or many, whichever is faster for the number of rows
	few                // gemv: up to gemv.MaxRows
	many               // tiles of rows, for any number
)

// forms calls part twice to append an operator for rows [from, to): for generated rows with the
// kernels for few rows, and for the others with those for many. It returns false if the number of
// rows decides, or if it is called by part.
func (b *Builder) forms(op string, rows int, part func(from, to int)) bool {
	if !b.Invariant || b.Plain || b.form != bySize {
		return false
	}
	n := min(b.Generated, rows)
	if n > gemv.MaxRows {
		refuse(op, "%d generated rows, the kernels of few rows take %d", n, gemv.MaxRows)
	}
	if n > 0 {
		b.form = few
		part(0, n)
	}
	if n < rows {
		b.form = many
		part(n, rows)
	}
	b.form = bySize
	return true
}

// few reports whether the kernels for few rows may run an operator with that many rows.
func (b *Builder) few(rows int) bool {
	return !b.Plain && (b.form == few || b.form == bySize && (!b.Invariant || rows <= b.Generated))
}

// sized returns m for the question whether kernels take it. In a numerics class the answer must
// not depend on a matrix having a single row, which may be at any address.
func (b *Builder) sized(m launch.Mat) launch.Mat {
	if b.Invariant {
		m.Rows = max(m.Rows, 2)
	}
	return m
}

// canMoE is gemv.CanMoE; with Invariant, for any number of rows.
func (b *Builder) canMoE(m gemv.Mixture) bool {
	if b.Invariant && m.X.Rows <= gemv.MaxRows {
		m.X.Rows = gemv.MaxRows
	}
	return gemv.CanMoE(b.GPU, &m)
}
