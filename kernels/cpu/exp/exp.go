// Package exp has the kernels around the exponential function: passes of softmax, the logistic function,
// activations of gated networks and the soft cap of logits.
package exp

import "krater/kernels/cpu/level"

// Funcs are the kernels of one level.
type Funcs struct {
	// Max is the largest of n >= 1 values.
	Max func(x *float32, n int) float32
	// ExpSum computes dst = exp(src * scale - shift) and returns the sum; dst may be src.
	ExpSum func(dst, src *float32, n int, scale, shift float32) float32
	// Sigmoid is dst = 1 / (1 + exp(-src)); dst may be src.
	Sigmoid func(dst, src *float32, n int)
	// SiluMul is dst = gate / (1 + exp(-gate)) * up; dst may be either.
	SiluMul func(dst, gate, up *float32, n int)
	// SwiGLU is dst = g / (1 + exp(-alpha*g)) * (u + shift), of g = min(gate, limit) and u = max(-limit,
	// min(up, limit)); dst may be either. NaN stays NaN.
	SwiGLU func(dst, gate, up *float32, n int, alpha, limit, shift float32)
	// Cubic is SwiGLU with the argument -alpha*(g + cubic*g^3) of exp. With alpha 2*sqrt(2/pi) and cubic 0.044715 the
	// factor of u is GELU's approximation by tanh (arXiv 1606.08415).
	Cubic func(dst, gate, up *float32, n int, alpha, cubic, limit, shift float32)
	// Softcap is x = limit * tanh(x / limit) for n values, with an error of a few roundings of limit.
	Softcap func(x *float32, n int, limit float32)
}

// At returns the kernels of a level that Resolve has accepted.
func At(l level.Level) *Funcs {
	if f := vector(l); f != nil {
		return f
	}
	return &pure
}
