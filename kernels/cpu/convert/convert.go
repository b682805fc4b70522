// Package convert converts values between the types and orders that the kernels read. These are
// F32, BF16, the packed order of F32 for BF16 weights, and the types of fewer bits: float8, INT8
// with scales, packed weights.
//
// Packed order: in every block of 32 values the 16 at even places come first, then the 16 at odd
// places; the last block is filled up with zeros. A 32-bit lane of BF16 weights holds an even value
// in its lower and an odd one in its upper half, so "shift left" and "mask" widen 32 weights with
// two instructions and no shuffle, and the two results meet the two halves of a packed block.
package convert

import (
	"krater/kernels/cpu/level"
	"krater/kernels/tensor"
)

// Block is the number of values in a block of the packed order.
const Block = 32

// Padded returns the length of n values in packed order.
func Padded(n int) int { return (n + Block - 1) &^ (Block - 1) }

// Funcs are the conversions of one level. Pointers need only the alignment of their element;
// nothing is read or written beyond the stated lengths.
type Funcs struct {
	// Pack writes Padded(n) values; dst and src do not overlap.
	Pack func(dst, src *float32, n int)
	// Unpack is the inverse; it writes n values and reads Padded(n).
	Unpack func(dst, src *float32, n int)
	// Widen turns n BF16 values into F32, in natural order.
	Widen func(dst *float32, src *uint16, n int)
	// WidenPack turns n BF16 values into F32 in packed order: Padded(n) values.
	WidenPack func(dst *float32, src *uint16, n int)
	// Narrow rounds n values to BF16, to nearest, ties to even; NaN stays NaN.
	Narrow func(dst *uint16, src *float32, n int)

	// WidenF8 turns rows of n float8 values (e4m3), stride bytes apart, into BF16, which is exact.
	// Rows of dst are Padded(n) apart; the padding is undefined. The values must not be NaN;
	// NarrowF8 writes none.
	WidenF8 func(dst *uint16, src *uint8, n, rows, stride int)
	// NarrowF8 rounds n values to float8, to nearest, ties to even. Values beyond 448, also
	// infinities, become 448; NaN becomes zero.
	NarrowF8 func(dst *uint8, src *float32, n int)
	// WidenI8 turns rows of n = groups * group integers, stride bytes apart, into F32: integer *
	// scale. The scales of a row lie scaleStride bytes after those of the row before, rows of dst
	// Padded(n) values apart.
	WidenI8 func(dst *float32, src *int8, scales *float32, group, groups, rows, stride, scaleStride int)
	// QuantI8 is its inverse for one row: top = max|x| of a group, scale = top / 127, integer = x *
	// (127 / top) rounded to nearest, ties to even. Magnitudes beyond 2^127 count as 2^127, NaN as
	// zero. A group whose top is below 2^-100 is all zero.
	QuantI8 func(dst *int8, src, scales *float32, group, groups int)
	// Columns widens a band of 16 packed rows of an encoding, with groups groups of 32*steps
	// columns. Column c of the rows goes to dst + c*stride bytes; all columns are written, including
	// the padding of a block of 32.
	Columns map[*tensor.Encoding]Columns
}

// Columns widens a band of packed weights column by column.
type Columns = func(dst *float32, w, s *byte, stride, groups, steps int)

// At returns the conversions of a level that Resolve has accepted.
func At(l level.Level) *Funcs {
	if f := vector(l); f != nil {
		return f
	}
	return &pure
}
