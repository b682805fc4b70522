package main

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func emitExp(g *isa) {
	emitMax(g)
	emitExpSum(g)
	emitSigmoid(g)
	emitSiluMul(g)
	emitSwiGLU(g, false)
	emitSwiGLU(g, true)
	emitSoftcap(g)
}

// vector is a constant with value in every lane, as a memory operand.
func (g *isa) vector(name string, value float64) operand.Mem {
	values := make([]uint32, g.lanes)
	for i := range values {
		values[i] = math.Float32bits(float32(value))
	}
	return g.table(name, values)
}

// ln2 in two parts: the first has 15 bits, so its product with the exponent is
// exact.
const (
	ln2Hi = 0.693145751953125
	ln2Lo = math.Ln2 - ln2Hi
)

// The polynomial of exp: e^r = 1 + r + r^2 * (c[0] + c[1] r + ...) for |r| <=
// ln2/2, from interpolation at the Chebyshev nodes; its own relative error is
// 1.1e-8, a sixth of a float32 rounding.
var expCoefficients = []float64{
	0.49999999999999994, 0.1666657666611994, 0.04166655421298479, 0.008363232883681036, 0.0013926250831432611,
}

// limits are the arguments beyond which the result is 0 or infinite anyway.
type limits struct{ lo, hi reg.VecVirtual }

func (g *isa) limits() limits {
	return limits{g.float("explo", -104), g.float("exphi", 89)}
}

// exp is e^x, x being overwritten: x = n ln2 + r, then 2^n times a polynomial
// in r. NaN stays NaN: MIN and MAX return their second source then.
func (g *isa) exp(x reg.VecVirtual, l limits) reg.VecVirtual {
	g.VMINPS(x, l.hi, x)
	g.VMAXPS(x, l.lo, x)
	n, p := g.vec(), g.vec()
	g.VMULPS(g.vector("log2e", math.Log2E), x, n)
	if g.wide() {
		g.VRNDSCALEPS(operand.U8(8), n, n) // to nearest
	} else {
		g.VROUNDPS(operand.U8(8), n, n)
	}
	g.VFNMADD231PS(g.vector("ln2hi", ln2Hi), n, x)
	g.VFNMADD231PS(g.vector("ln2lo", ln2Lo), n, x)
	g.VMOVUPS(g.vector("c4", expCoefficients[4]), p)
	for i := 3; i >= 0; i-- {
		g.VFMADD213PS(g.vector("c"+string(rune('0'+i)), expCoefficients[i]), x, p)
	}
	g.VFMADD213PS(g.vector("fone", 1), x, p)
	g.VFMADD213PS(g.vector("fone", 1), x, p)
	if g.wide() {
		g.VSCALEFPS(n, p, p)
		return p
	}
	// 2^n in two factors, so that neither leaves the range of exponents.
	a := g.vec()
	g.VCVTPS2DQ(n, n)
	g.VPSRAD(operand.U8(1), n, a)
	g.VPSUBD(a, n, n)
	bias := make([]uint32, g.lanes)
	for i := range bias {
		bias[i] = 127
	}
	for _, part := range []reg.VecVirtual{a, n} {
		g.VPADDD(g.table("ebias", bias), part, part)
		g.VPSLLD(operand.U8(23), part, part)
		g.VMULPS(part, p, p)
	}
	return p
}

func emitMax(g *isa) {
	g.result = " float32"
	g.function("maxOf", "x *float32, n int", "is the largest of n values.")
	g.result = ""
	x, n := g.arg("x"), g.arg("n")
	lowest := g.float("minusinf", math.Inf(-1))
	top := g.vec()
	g.VMOVAPS(lowest, top)
	g.each(n, 1, []pointer{{x, 4}}, func(i int) {
		g.VMAXPS(g.at(x, i), top, top)
	}, func(m mask) {
		v := g.vec()
		g.loadTail(g.at(x, 0), m, v)
		g.or(v, m, lowest)
		g.VMAXPS(v, top, top)
	})
	max := func(ops ...operand.Op) { g.VMAXPS(ops...) }
	g.Store(g.fold(top, max).AsX(), g.ReturnIndex(0))
	g.end()
}

func emitExpSum(g *isa) {
	g.result = " float32"
	g.function("expSum", "dst, src *float32, n int, scale, shift float32", "is dst = exp(src*scale - shift) and the sum of dst.")
	g.result = ""
	dst, src, n := g.arg("dst"), g.arg("src"), g.arg("n")
	scale, shift, l, sum := g.broadcastArg("scale"), g.broadcastArg("shift"), g.limits(), g.vec()
	g.zero(sum)
	g.each(n, 1, []pointer{{dst, 4}, {src, 4}}, func(i int) {
		v := g.vec()
		g.VMOVUPS(g.at(src, i), v)
		g.VFMSUB213PS(shift, scale, v)
		e := g.exp(v, l)
		g.VADDPS(e, sum, sum)
		g.VMOVUPS(e, g.at(dst, i))
	}, func(m mask) {
		v := g.vec()
		g.loadTail(g.at(src, 0), m, v)
		g.VFMSUB213PS(shift, scale, v)
		e := g.exp(v, l)
		g.storeTail(e, m, g.at(dst, 0))
		if g.wide() {
			g.VMOVAPS_Z(e, m.k, e)
		} else {
			g.VANDPS(m.v, e, e)
		}
		g.VADDPS(e, sum, sum)
	})
	g.Store(g.fold(sum, g.add).AsX(), g.ReturnIndex(0))
	g.end()
}

// logistic is v / (1 + exp(-x)).
func (g *isa) logistic(v operand.Op, x reg.VecVirtual, l limits) reg.VecVirtual {
	t := g.vec()
	g.zero(t)
	g.VSUBPS(x, t, t)
	e := g.exp(t, l)
	g.VADDPS(g.vector("fone", 1), e, e)
	g.VDIVPS(e, v, e)
	return e
}

func emitSigmoid(g *isa) {
	g.function("sigmoid", "dst, src *float32, n int", "is dst = 1 / (1 + exp(-src)).")
	dst, src, n := g.arg("dst"), g.arg("src"), g.arg("n")
	l, one := g.limits(), g.float("one", 1)
	g.each(n, 1, []pointer{{dst, 4}, {src, 4}}, func(i int) {
		v := g.vec()
		g.VMOVUPS(g.at(src, i), v)
		g.VMOVUPS(g.logistic(one, v, l), g.at(dst, i))
	}, func(m mask) {
		v := g.vec()
		g.loadTail(g.at(src, 0), m, v)
		g.storeTail(g.logistic(one, v, l), m, g.at(dst, 0))
	})
	g.end()
}

func emitSiluMul(g *isa) {
	g.function("siluMul", "dst, gate, up *float32, n int", "is dst = gate / (1 + exp(-gate)) * up.")
	dst, gate, up, n := g.arg("dst"), g.arg("gate"), g.arg("up"), g.arg("n")
	l := g.limits()
	g.each(n, 1, []pointer{{dst, 4}, {gate, 4}, {up, 4}}, func(i int) {
		v := g.vec()
		g.VMOVUPS(g.at(gate, i), v)
		e := g.logistic(v, v, l)
		g.VMULPS(g.at(up, i), e, e)
		g.VMOVUPS(e, g.at(dst, i))
	}, func(m mask) {
		v, u := g.vec(), g.vec()
		g.loadTail(g.at(gate, 0), m, v)
		g.loadTail(g.at(up, 0), m, u)
		e := g.logistic(v, v, l)
		g.VMULPS(u, e, e)
		g.storeTail(e, m, g.at(dst, 0))
	})
	g.end()
}

func emitSwiGLU(g *isa, cubic bool) {
	if cubic {
		g.function("cubic", "dst, gate, up *float32, n int, alpha, cubic, limit, shift float32",
			"is swiGLU with exp(-alpha*(g + cubic*g^3)).")
	} else {
		g.function("swiGLU", "dst, gate, up *float32, n int, alpha, limit, shift float32",
			"is dst = g / (1 + exp(-alpha*g)) * (u + shift), of g = min(gate, limit) and u = max(-limit, min(up, limit)).")
	}
	dst, gate, up, n := g.arg("dst"), g.arg("gate"), g.arg("up"), g.arg("n")
	alpha, limit, shift, l, low := g.broadcastArg("alpha"), g.broadcastArg("limit"), g.broadcastArg("shift"), g.limits(), g.vec()
	var third reg.VecVirtual
	if cubic {
		third = g.broadcastArg("cubic")
	}
	g.zero(low)
	g.VSUBPS(limit, low, low)
	// NaN stays NaN, as in exp.
	value := func(v, u reg.VecVirtual) reg.VecVirtual {
		g.VMINPS(v, limit, v)
		g.VMINPS(u, limit, u)
		g.VMAXPS(u, low, u)
		g.VADDPS(shift, u, u)
		t := g.vec()
		if cubic {
			g.VMULPS(v, v, t)
			g.VMULPS(third, t, t)
			g.VFMADD213PS(v, v, t)
			g.VMULPS(alpha, t, t)
		} else {
			g.VMULPS(alpha, v, t)
		}
		e := g.logistic(v, t, l)
		g.VMULPS(u, e, e)
		return e
	}
	g.each(n, 1, []pointer{{dst, 4}, {gate, 4}, {up, 4}}, func(i int) {
		v, u := g.vec(), g.vec()
		g.VMOVUPS(g.at(gate, i), v)
		g.VMOVUPS(g.at(up, i), u)
		g.VMOVUPS(value(v, u), g.at(dst, i))
	}, func(m mask) {
		v, u := g.vec(), g.vec()
		g.loadTail(g.at(gate, 0), m, v)
		g.loadTail(g.at(up, 0), m, u)
		g.storeTail(value(v, u), m, g.at(dst, 0))
	})
	g.end()
}

// emitSoftcap: limit * tanh(x / limit) is 2 * limit / (1 + exp(-2 / limit * x)) - limit.
func emitSoftcap(g *isa) {
	g.function("softcap", "x *float32, n int, limit float32", "is x = limit * tanh(x / limit).")
	x, n := g.arg("x"), g.arg("n")
	limit, l, two, scale := g.broadcastArg("limit"), g.limits(), g.vec(), g.float("two", 2)
	g.VMULPS(scale, limit, two)
	g.VDIVPS(limit, scale, scale)
	value := func(v reg.VecVirtual) reg.VecVirtual {
		g.VMULPS(scale, v, v)
		e := g.logistic(two, v, l)
		g.VSUBPS(limit, e, e)
		return e
	}
	g.each(n, 1, []pointer{{x, 4}}, func(i int) {
		v := g.vec()
		g.VMOVUPS(g.at(x, i), v)
		g.VMOVUPS(value(v), g.at(x, i))
	}, func(m mask) {
		v := g.vec()
		g.loadTail(g.at(x, 0), m, v)
		g.storeTail(value(v), m, g.at(x, 0))
	})
	g.end()
}
