// Package moe launches the products of many rows with packed weights: experts over sorted
// assignments and, as a mixture of one expert, a matrix or a SwiGLU network. The kernels convert
// INT4 and INT8 to bfloat16 as operands of the tensor cores; activations are BF16, sums F32.
//
// A weight is its integer times its scale, rounded to bfloat16 once. With one scale for all
// columns it is not rounded: the sum is multiplied by the scale. The bits of a row's result
// depend on its own values and the weights, never on the other rows or their number, as long as
// the same kernel runs. Tiles of other sizes and the two builds may differ in the last bits.
package moe
