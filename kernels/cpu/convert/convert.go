// Package convert moves values between the forms the kernels work on: F32,
// BF16, and the packed order of F32 that meets BF16 weights.
//
// Packed order: in every block of 32 values the 16 at even places come first,
// then the 16 at odd places; the last block is filled up with zeros. A 32-bit
// lane of BF16 weights holds an even value in its lower and an odd one in its
// upper half, so "shift left" and "mask" widen 32 weights with two
// instructions and no shuffle, and the two results meet the two halves of a
// packed block.
package convert

import "krater/kernels/cpu/level"

// Block is the number of values in a block of the packed order.
const Block = 32

// Padded is the length of n values in packed order.
func Padded(n int) int { return (n + Block - 1) &^ (Block - 1) }

// Funcs are the conversions of one level. Pointers need only the alignment of
// their element; nothing is read or written beyond the stated lengths.
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
}

// At gives the conversions of a level that Resolve has accepted.
func At(l level.Level) *Funcs {
	if f := vector(l); f != nil {
		return f
	}
	return &pure
}
