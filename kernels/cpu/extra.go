package cpu

import (
	"math"

	"krater/kernels/device"
)

// extra holds the biases and the activation of a network of F middle values and H results.
type extra struct {
	gateBias, upBias    *float32 // [F]; nil: none
	downBias            *float32 // [H]; nil: none
	silu                bool     // the middle values are silu(gate) * up
	alpha, limit, shift float32
	cubic               float32
}

// newExtra checks e.
func newExtra(op string, e *device.Extra, f, h int) (x extra) {
	x.activation(op, e.Act)
	if !e.B13.Zero() {
		x.gateBias = f32(op, "the bias of gate and up", &e.B13, 1, 2*f)
		x.upBias = shift(x.gateBias, f)
	}
	if !e.B2.Zero() {
		x.downBias = f32(op, "the bias of down", &e.B2, 1, h)
	}
	return x
}

// activation checks a and takes it.
func (x *extra) activation(op string, a device.Activation) {
	x.silu = a == device.Activation{}
	x.alpha, x.limit, x.shift, x.cubic = a.Alpha, a.Limit, a.Shift, a.Cubic
	if x.alpha == 0 {
		x.alpha = 1
	}
	if x.limit == 0 {
		x.limit = float32(math.Inf(1))
	}
	if !(x.limit > 0) {
		fail(op, "activation %+v", a)
	}
}

// biased adds the biases to n values of gate and up from column at on.
func (x *extra) biased(d *Device, gate, up *float32, at, n int) {
	if x.gateBias != nil {
		d.axpy.Add(gate, shift(x.gateBias, at), n)
		d.axpy.Add(up, shift(x.upBias, at), n)
	}
}

// middle computes n middle values from column at on, of gate and up, to which it adds the biases.
// dst may be either.
func (x *extra) middle(d *Device, dst, gate, up *float32, at, n int) {
	x.biased(d, gate, up, at, n)
	x.activate(d, dst, gate, up, n)
}

// activate computes n middle values of gate and up. dst may be either.
func (x *extra) activate(d *Device, dst, gate, up *float32, n int) {
	switch {
	case x.silu:
		d.exp.SiluMul(dst, gate, up, n)
	case x.cubic != 0:
		d.exp.Cubic(dst, gate, up, n, x.alpha, x.cubic, x.limit, x.shift)
	default:
		d.exp.SwiGLU(dst, gate, up, n, x.alpha, x.limit, x.shift)
	}
}

// finish adds the bias to n results from column at on.
func (x *extra) finish(d *Device, y *float32, at, n int) {
	if x.downBias != nil && n > 0 {
		d.axpy.Add(y, shift(x.downBias, at), n)
	}
}
