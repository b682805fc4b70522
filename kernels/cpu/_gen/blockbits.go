package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// and is dst = a & b.
func (g *isa) and(a operand.Op, b, dst reg.VecVirtual) {
	if g.wide() {
		g.VPANDD(a, b, dst)
	} else {
		g.VPAND(a, b, dst)
	}
}

// or2 is dst = a | b.
func (g *isa) or2(a operand.Op, b, dst reg.VecVirtual) {
	if g.wide() {
		g.VPORD(a, b, dst)
	} else {
		g.VPOR(a, b, dst)
	}
}

// andOr is into |= a & mask; a is lost.
func (g *isa) andOr(a reg.VecVirtual, mask operand.Op, into reg.VecVirtual) {
	if g.wide() {
		g.VPTERNLOGD(operand.U8(0xf8), mask, a, into)
		return
	}
	g.VPAND(mask, a, a)
	g.VPOR(a, into, into)
}

// shifted is w moved by a number of bits, to the left if it is positive.
func (g *isa) shifted(w reg.VecVirtual, left int) reg.VecVirtual {
	if left == 0 {
		return w
	}
	v := g.vec()
	if left > 0 {
		g.VPSLLW(operand.U8(uint8(left)), w, v)
	} else {
		g.VPSRLW(operand.U8(uint8(-left)), w, v)
	}
	return v
}
