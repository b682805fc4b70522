// Package qrows quantises rows of activations to INT8, alone or together with SwiGLU's silu(gate) *
// up. What it computes is laid down to the bit in kernels/device (QuantizeRows); only the logistic
// function differs between levels, by roundings.
package qrows

import "krater/kernels/cpu/level"

// Block is the unit of rows and groups: both are multiples of it.
const Block = 32

// Funcs are the kernels of one level. A row has groups >= 1 groups of 32*steps values, steps >= 1.
type Funcs struct {
	// Quantize writes the integers of x, one scale and one bias a group.
	Quantize func(x *float32, q *int8, scale *float32, bias *int32, groups, steps int)
	// SiluQuantize does so for silu(gate) * up, with which it overwrites gate.
	SiluQuantize func(gate, up *float32, q *int8, scale *float32, bias *int32, groups, steps int)
}

// At returns the kernels of a level that Resolve has accepted.
func At(l level.Level) *Funcs {
	if f := vector(l); f != nil {
		return f
	}
	return &pure
}
