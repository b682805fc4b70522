package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func emitRope(g *isa) {
	emitPairs(g)
	emitHalves(g)
}

// perHead writes the loop over heads; body may change a, b and count, which
// are fresh copies of x, table and n for each head.
func (g *isa) perHead(x, table, n reg.GPVirtual, body func(a, b, count reg.GPVirtual)) {
	heads, stride := g.arg("heads"), g.arg("stride")
	g.SHLQ(operand.U8(2), stride)
	g.Label("head")
	g.TESTQ(heads, heads)
	g.JZ(operand.LabelRef("end"))
	a, b, count := g.GP64(), g.GP64(), g.GP64()
	g.MOVQ(x, a)
	g.MOVQ(table, b)
	g.MOVQ(n, count)
	body(a, b, count)
	g.ADDQ(stride, x)
	g.DECQ(heads)
	g.JMP(operand.LabelRef("head"))
	g.Label("end")
	g.end()
}

// emitPairs: with u, v a pair and c, s its angle, even lanes become u*c - v*s
// and odd lanes v*c + u*s: one product with swapped neighbours, then one fused
// multiply that subtracts in even lanes and adds in odd ones.
func emitPairs(g *isa) {
	g.function("pairs", "x, table *float32, heads, stride, dim int", "turns neighbours.")
	x, table, dim := g.arg("x"), g.arg("table"), g.arg("dim")
	g.perHead(x, table, dim, func(a, b, count reg.GPVirtual) {
		turn := func(v, angle reg.VecVirtual) reg.VecVirtual {
			c, s, w := g.vec(), g.vec(), g.vec()
			g.VMOVSLDUP(angle, c)
			g.VMOVSHDUP(angle, s)
			g.VPERMILPS(operand.U8(0xb1), v, w)
			g.VMULPS(s, w, w)
			g.VFMADDSUB231PS(c, v, w)
			return w
		}
		g.each(count, 1, []pointer{{a, 4}, {b, 4}}, func(int) {
			v, angle := g.vec(), g.vec()
			g.VMOVUPS(g.at(a, 0), v)
			g.VMOVUPS(g.at(b, 0), angle)
			g.VMOVUPS(turn(v, angle), g.at(a, 0))
		}, func(m mask) {
			v, angle := g.vec(), g.vec()
			g.loadTail(g.at(a, 0), m, v)
			g.loadTail(g.at(b, 0), m, angle)
			g.storeTail(turn(v, angle), m, g.at(a, 0))
		})
	})
}

// emitHalves: angles are split into cosines and sines with the shuffles of the
// packed order, a block of 2*lanes table values for lanes pairs; what is left
// goes pair by pair.
func emitHalves(g *isa) {
	g.function("halves", "x, table *float32, heads, stride, dim int", "turns i and i+dim/2.")
	x, table, half := g.arg("x"), g.arg("table"), g.arg("dim")
	g.SHRQ(operand.U8(1), half)
	g.perHead(x, table, half, func(a, b, count reg.GPVirtual) {
		upper := func(i int) operand.Mem { return operand.Mem{Base: a, Index: half, Scale: 4, Disp: i * g.bytes()} }
		g.loop("vector", count, g.lanes, []pointer{{a, 4}, {b, 8}}, 1, func(int) {
			t := g.vecs(2)
			g.VMOVUPS(g.at(b, 0), t[0])
			g.VMOVUPS(g.at(b, 1), t[1])
			c, s := g.cosSin(t)
			u, v, w, y := g.vec(), g.vec(), g.vec(), g.vec()
			g.VMOVUPS(g.at(a, 0), u)
			g.VMOVUPS(upper(0), v)
			g.VMULPS(v, s, w)
			g.VFMSUB231PS(u, c, w) // u*c - v*s
			g.VMULPS(u, s, y)
			g.VFMADD231PS(v, c, y) // v*c + u*s
			g.VMOVUPS(w, g.at(a, 0))
			g.VMOVUPS(y, upper(0))
		})
		g.loop("single", count, 1, []pointer{{a, 4}, {b, 8}}, 1, func(int) {
			c, s, u, v, w, y := g.XMM(), g.XMM(), g.XMM(), g.XMM(), g.XMM(), g.XMM()
			g.VMOVSS(operand.Mem{Base: b}, c)
			g.VMOVSS(operand.Mem{Base: b, Disp: 4}, s)
			g.VMOVSS(operand.Mem{Base: a}, u)
			g.VMOVSS(upper(0), v)
			g.VMULSS(v, s, w)
			g.VFMSUB231SS(u, c, w)
			g.VMULSS(u, s, y)
			g.VFMADD231SS(v, c, y)
			g.VMOVSS(w, operand.Mem{Base: a})
			g.VMOVSS(y, upper(0))
		})
	})
}

// cosSin separates two vectors of pairs.
func (g *isa) cosSin(t []reg.VecVirtual) (c, s reg.VecVirtual) {
	if g.wide() {
		v := g.split(t)
		return v[0], v[1]
	}
	c, s = g.YMM(), g.YMM()
	g.VSHUFPS(operand.U8(0x88), t[1], t[0], c)
	g.VPERMPD(operand.U8(0xd8), c, c)
	g.VSHUFPS(operand.U8(0xdd), t[1], t[0], s)
	g.VPERMPD(operand.U8(0xd8), s, s)
	return c, s
}
