// Package moe launches the products of many rows with packed weights: experts over
// sorted assignments, and, as a mixture of one, a matrix or a SwiGLU network. They unpack
// INT4 and INT8 to bfloat16 on the way to the tensor cores; activations are BF16, sums F32.
//
// A weight is its integer times its scale rounded to bfloat16 once (with one scale for
// all columns not at all: it is applied to the sum). What a row's result is to the bit
// depends on its own values and the weights, never on the other rows or their number,
// as long as the same kernel runs: tiles of other sizes and the two builds may differ in
// the last bits.
package moe
