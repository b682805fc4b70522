package main

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func emitQRows(g *isa) {
	emitQuantize(g, false)
	emitQuantize(g, true)
}

const (
	infinityBits = 0x7f800000
	nanBits      = 0x7fc00000
	leastTop     = 0x1p-100 // groups of less are zero
)

// quantizer is the state while one row is quantised. Each group is walked
// twice: p looks for the largest magnitude (and, for silu, writes the values
// that are then quantised over gate), x follows and writes the integers.
//
// Magnitudes are compared as integers, sign cleared: floating-point values of
// one sign rise with their bits, infinity and NaN above all.
type quantizer struct {
	*isa
	silu           bool
	x, up, q       reg.GPVirtual
	scale, bias    reg.GPVirtual
	groups, steps  reg.GPVirtual
	p, it, word    reg.GPVirtual
	abs, top, full reg.VecVirtual // full: 127 in lane 0
	limits         limits
}

func emitQuantize(g *isa, silu bool) {
	z := &quantizer{isa: g, silu: silu}
	if silu {
		g.function("siluQuantize", "gate, up *float32, q *int8, scale *float32, bias *int32, groups, steps int",
			"quantises silu(gate) * up, which it leaves in gate.")
		z.x, z.up = g.arg("gate"), g.arg("up")
		z.limits = g.limits()
	} else {
		g.function("quantize", "x *float32, q *int8, scale *float32, bias *int32, groups, steps int",
			"quantises a row by groups of 32*steps values.")
		z.x = g.arg("x")
	}
	z.q, z.scale, z.bias = g.arg("q"), g.arg("scale"), g.arg("bias")
	z.groups, z.steps = g.arg("groups"), g.arg("steps")
	z.p, z.it, z.word = g.GP64(), g.GP64(), g.GP64()
	z.abs = g.bits("absmask", 0x7fffffff, g.vec())
	z.full, z.top = g.XMM(), g.vec()
	g.VMOVSS(g.table("levels", []uint32{math.Float32bits(127)}), z.full)
	g.Label("group")
	z.largest()
	top := g.fold(z.top, func(ops ...operand.Op) { g.VPMAXUD(ops...) })
	word := z.word.As32()
	g.VMOVD(top, word)
	g.CMPL(word, operand.U32(infinityBits))
	g.JAE(operand.LabelRef("infinite"))
	g.CMPL(word, operand.U32(math.Float32bits(leastTop)))
	g.JB(operand.LabelRef("nothing"))
	z.values(top)
	g.JMP(operand.LabelRef("next"))
	z.empty()
	g.Label("next")
	g.ADDQ(operand.I32(4), z.scale)
	g.ADDQ(operand.I32(4), z.bias)
	g.DECQ(z.groups)
	g.JNZ(operand.LabelRef("group"))
	g.end()
}

func (z *quantizer) and(a, b, dst reg.VecVirtual) {
	if z.wide() {
		z.VPANDD(a, b, dst)
	} else {
		z.VPAND(a, b, dst)
	}
}

// loop32 is a loop over the blocks of 32 values of a group.
func (z *quantizer) loop32(label string, body func()) {
	z.MOVQ(z.steps, z.it)
	z.Label(label)
	body()
	z.DECQ(z.it)
	z.JNZ(operand.LabelRef(label))
}

// largest leaves the bits of the largest magnitude in the lanes of top.
func (z *quantizer) largest() {
	g := z.isa
	g.MOVQ(z.x, z.p)
	g.zero(z.top)
	z.loop32("largest", func() {
		for i := range 32 / g.lanes {
			v := g.vec()
			g.VMOVUPS(g.at(z.p, i), v)
			if z.silu {
				e := g.logistic(v, v, z.limits)
				g.VMULPS(g.at(z.up, i), e, e)
				g.VMOVUPS(e, g.at(z.p, i))
				v = e
			}
			z.and(z.abs, v, v)
			g.VPMAXUD(v, z.top, z.top)
		}
		g.ADDQ(operand.I32(128), z.p)
		if z.silu {
			g.ADDQ(operand.I32(128), z.up)
		}
	})
}

// values writes the integers, their scale and their sum.
func (z *quantizer) values(top reg.VecVirtual) {
	g := z.isa
	one, scale, inverse, sum := g.XMM(), g.XMM(), g.vec(), g.vec()
	g.VDIVSS(z.full, top, scale)
	g.VMOVSS(scale, operand.Mem{Base: z.scale})
	g.VDIVSS(top, z.full, one)
	g.VBROADCASTSS(one, inverse)
	g.zero(sum)
	z.loop32("values", func() {
		v := g.vecs(32 / g.lanes)
		for i := range v {
			g.VMULPS(g.at(z.x, i), inverse, v[i])
			g.VCVTPS2DQ(v[i], v[i])
			g.VPADDD(v[i], sum, sum)
		}
		if g.wide() {
			for i := range v {
				g.VPMOVDB(v[i], operand.Mem{Base: z.q, Disp: 16 * i})
			}
		} else {
			// The packs work within 128 bits; the permutation repairs the order.
			order, ab, cd := g.YMM(), g.YMM(), g.YMM()
			g.VPACKSSDW(v[1], v[0], ab)
			g.VPACKSSDW(v[3], v[2], cd)
			g.VPACKSSWB(cd, ab, ab)
			g.VMOVUPS(g.table("packorder", []uint32{0, 4, 1, 5, 2, 6, 3, 7}), order)
			g.VPERMD(ab, order, ab)
			g.VMOVDQU(ab, operand.Mem{Base: z.q})
		}
		g.ADDQ(operand.I32(128), z.x)
		g.ADDQ(operand.I32(32), z.q)
	})
	total := g.fold(sum, func(ops ...operand.Op) { g.VPADDD(ops...) })
	word := z.word.As32()
	g.VMOVD(total, word)
	g.NEGL(word)
	g.SHLL(operand.U8(3), word)
	g.MOVL(word, operand.Mem{Base: z.bias})
}

// empty writes a group of zeros, its scale 0 or NaN.
func (z *quantizer) empty() {
	g := z.isa
	word := z.word.As32()
	g.Label("infinite")
	g.MOVL(operand.U32(nanBits), word)
	g.JMP(operand.LabelRef("empty"))
	g.Label("nothing")
	g.XORL(word, word)
	g.Label("empty")
	g.MOVL(word, operand.Mem{Base: z.scale})
	g.MOVL(operand.U32(0), operand.Mem{Base: z.bias})
	zero := g.YMM()
	g.VXORPS(zero, zero, zero)
	z.loop32("zeros", func() {
		g.VMOVUPS(zero, operand.Mem{Base: z.q})
		g.ADDQ(operand.I32(32), z.q)
	})
	g.MOVQ(z.p, z.x)
}
