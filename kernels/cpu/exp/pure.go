package exp

import (
	"math"
	"unsafe"
)

var pure = Funcs{Max: pureMax, ExpSum: pureExpSum, Sigmoid: pureSigmoid, SiluMul: pureSiluMul, SwiGLU: pureSwiGLU, Cubic: pureCubic, Softcap: pureSoftcap}

func pureMax(x *float32, n int) float32 {
	top := *x
	for _, v := range unsafe.Slice(x, n) {
		top = max(top, v)
	}
	return top
}

func pureExpSum(dst, src *float32, n int, scale, shift float32) float32 {
	d, s := unsafe.Slice(dst, n), unsafe.Slice(src, n)
	var sum float32
	for i, v := range s {
		e := float32(math.Exp(float64(v*scale - shift)))
		d[i] = e
		sum += e
	}
	return sum
}

func pureSigmoid(dst, src *float32, n int) {
	d, s := unsafe.Slice(dst, n), unsafe.Slice(src, n)
	for i, v := range s {
		d[i] = sigmoidOf(v)
	}
}

func pureSiluMul(dst, gate, up *float32, n int) {
	d, g, u := unsafe.Slice(dst, n), unsafe.Slice(gate, n), unsafe.Slice(up, n)
	for i, v := range g {
		d[i] = float32(float64(v)/(1+math.Exp(-float64(v)))) * u[i]
	}
}

func pureSwiGLU(dst, gate, up *float32, n int, alpha, limit, shift float32) {
	d, gates, ups := unsafe.Slice(dst, n), unsafe.Slice(gate, n), unsafe.Slice(up, n)
	for i := range d {
		g, u := min(gates[i], limit), max(-limit, min(ups[i], limit))
		d[i] = float32(float64(g)/(1+math.Exp(-float64(alpha*g)))) * (u + shift)
	}
}

func pureCubic(dst, gate, up *float32, n int, alpha, cubic, limit, shift float32) {
	d, gates, ups := unsafe.Slice(dst, n), unsafe.Slice(gate, n), unsafe.Slice(up, n)
	for i := range d {
		g, u := min(gates[i], limit), min(max(ups[i], -limit), limit)
		d[i] = g * sigmoidOf(alpha*(g+cubic*g*g*g)) * (u + shift)
	}
}

func pureSoftcap(x *float32, n int, limit float32) {
	values := unsafe.Slice(x, n)
	for i, v := range values {
		values[i] = 2*limit*sigmoidOf(v*(2/limit)) - limit
	}
}

func sigmoidOf(v float32) float32 { return float32(1 / (1 + math.Exp(-float64(v)))) }
