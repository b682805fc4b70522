package ops

import (
	"krater/kernels/cuda/gemv"
	"krater/kernels/cuda/launch"
)

// form is a family of kernels whose rows have the same bits however many there are.
type form uint8

const (
	bySize form = iota // few or many, as is faster for so many rows
	few                // gemv: up to gemv.MaxRows
	many               // tiles of rows, however many
)

// forms has part append an operator for rows [from, to) twice, for generated rows by the
// kernels of few and for the others by those of many; false where the number of rows
// decides, or where that is what part is doing.
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

// few reports whether the kernels of few rows may have an operator, if it is all of them that
// are asked for.
func (b *Builder) few(rows int) bool {
	return !b.Plain && (b.form == few || b.form == bySize && (!b.Invariant || rows <= b.Generated))
}

// sized is m for asking whether kernels take it: in a form that must not hang on a matrix
// having but one row, which may lie anywhere.
func (b *Builder) sized(m launch.Mat) launch.Mat {
	if b.Invariant {
		m.Rows = max(m.Rows, 2)
	}
	return m
}

// canMoE is gemv.CanMoE, with Invariant for any number of rows.
func (b *Builder) canMoE(m gemv.Mixture) bool {
	if b.Invariant && m.X.Rows <= gemv.MaxRows {
		m.X.Rows = gemv.MaxRows
	}
	return gemv.CanMoE(b.GPU, &m)
}
