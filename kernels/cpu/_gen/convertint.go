package main

import (
	"fmt"
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const (
	i8limit    = 0x7f000000 // 2^127
	i8leastTop = 0x0d800000 // 2^-100
)

// emitQuantI8 walks every group twice: for its largest magnitude, compared as
// integers as qrows does, and for its values.
func emitQuantI8(g *isa) {
	g.function("quantI8", "dst *int8, src, scales *float32, group, groups int", "quantises groups of group values each.")
	dst, src, scales, group, groups := g.arg("dst"), g.arg("src"), g.arg("scales"), g.arg("group"), g.arg("groups")
	abs, inf, limit := g.bits("quantabs", 0x7fffffff, g.vec()), g.bits("quantinf", infinityBits, g.vec()), g.bits("quantlimit", i8limit, g.vec())
	most, least := g.float("quantmost", 127), g.float("quantleast", -127)
	p, c, word := g.GP64(), g.GP64(), g.GP64()
	top, inverse := g.vec(), g.vec()
	larger := func(v reg.VecVirtual) {
		if g.wide() {
			k := g.K()
			g.VPANDD(abs, v, v)
			g.VPCMPUD(operand.U8(2), inf, v, k)
			g.VPMINUD_Z(limit, v, k, v)
		} else {
			nan := g.vec()
			g.VPAND(abs, v, v)
			g.VPCMPGTD(inf, v, nan)
			g.VPMINUD(limit, v, v)
			g.VPANDN(v, nan, v)
		}
		g.VPMAXUD(v, top, top)
	}
	value := func(v reg.VecVirtual) reg.VecVirtual {
		if g.wide() {
			k := g.K()
			g.VCMPPS(operand.U8(7), v, v, k) // ordered: a number
			g.VMULPS_Z(inverse, v, k, v)
		} else {
			number := g.vec()
			g.VCMPPS(operand.U8(7), v, v, number)
			g.VANDPS(number, v, v)
			g.VMULPS(inverse, v, v)
		}
		g.VMINPS(most, v, v)
		g.VMAXPS(least, v, v)
		g.VCVTPS2DQ(v, v)
		return v
	}
	g.Label("group")
	g.MOVQ(src, p)
	g.MOVQ(group, c)
	g.zero(top)
	g.loop("largest", c, g.lanes, []pointer{{p, 4}}, 1, func(int) {
		v := g.vec()
		g.VMOVUPS(operand.Mem{Base: p}, v)
		larger(v)
	})
	g.TESTQ(c, c)
	g.JZ(operand.LabelRef("scale"))
	m, v := g.tail(c), g.vec()
	g.loadTail(operand.Mem{Base: p}, m, v)
	larger(v)
	g.Label("scale")
	g.quantScale(g.fold(top, func(ops ...operand.Op) { g.VPMAXUD(ops...) }), inverse, scales, word)
	g.MOVQ(group, c)
	g.loop("values", c, g.lanes, []pointer{{src, 4}, {dst, 1}}, 1, func(int) {
		v := g.vec()
		g.VMOVUPS(operand.Mem{Base: src}, v)
		g.storeBytes(value(v), dst)
	})
	g.TESTQ(c, c)
	g.JZ(operand.LabelRef("next"))
	m, v = g.tail(c), g.vec()
	g.loadTail(operand.Mem{Base: src}, m, v)
	g.storeBytesTail("single", value(v), m, c, dst)
	g.ADDQ(c, dst)
	g.LEAQ(operand.Mem{Base: src, Index: c, Scale: 4}, src)
	g.Label("next")
	g.ADDQ(operand.I32(4), scales)
	g.DECQ(groups)
	g.JNZ(operand.LabelRef("group"))
	g.end()
}

// quantScale stores top / 127 and leaves 127 / top in inverse; both are zero for
// a group with next to nothing in it.
func (g *isa) quantScale(top, inverse reg.VecVirtual, scales, word reg.GPVirtual) {
	full, scale, one := g.XMM(), g.XMM(), g.XMM()
	g.VXORPS(scale, scale, scale)
	g.VXORPS(one, one, one)
	g.VMOVD(top, word.As32())
	g.CMPL(word.As32(), operand.U32(i8leastTop))
	g.JB(operand.LabelRef("nothing"))
	g.VMOVSS(g.table("quantlevels", []uint32{math.Float32bits(127)}), full)
	g.VDIVSS(full, top, scale)
	g.VDIVSS(top, full, one)
	g.Label("nothing")
	g.VMOVSS(scale, operand.Mem{Base: scales})
	g.VBROADCASTSS(one, inverse)
}

func emitWidenI8(g *isa) {
	g.function("widenI8", "dst *float32, src *int8, scales *float32, group, groups, rows, stride, scaleStride int",
		"turns rows of groups of group integers into F32.")
	dst, src, scales, group, groups, rows := g.arg("dst"), g.arg("src"), g.arg("scales"), g.arg("group"), g.arg("groups"), g.arg("rows")
	// What the pointers skip at the end of a row.
	dstSkip, srcSkip, scaleSkip, ahead := g.GP64(), g.arg("stride"), g.arg("scaleStride"), g.GP64()
	c, left, scale := g.GP64(), g.GP64(), g.vec()
	g.MOVQ(srcSkip, ahead)
	g.SHLQ(operand.U8(widenAhead), ahead)
	g.MOVQ(group, c)
	g.IMULQ(groups, c)
	g.SUBQ(c, srcSkip)
	g.LEAQ(operand.Mem{Base: c, Disp: packBlock - 1}, dstSkip)
	g.ANDQ(operand.I32(-packBlock), dstSkip)
	g.SUBQ(c, dstSkip)
	g.SHLQ(operand.U8(2), dstSkip)
	g.MOVQ(groups, c)
	g.SHLQ(operand.U8(2), c)
	g.SUBQ(c, scaleSkip)
	pointers := []pointer{{dst, 4}, {src, 1}}
	body := func(i int) {
		v := g.vec()
		g.VPMOVSXBD(operand.Mem{Base: src, Disp: i * g.lanes}, v)
		g.VCVTDQ2PS(v, v)
		g.VMULPS(scale, v, v)
		g.VMOVUPS(v, g.at(dst, i))
		if i == 0 {
			g.PREFETCHT0(operand.Mem{Base: src, Index: ahead, Scale: 1})
		}
	}
	g.Label("row")
	g.TESTQ(rows, rows)
	g.JLE(operand.LabelRef("done"))
	g.MOVQ(groups, left)
	g.Label("group")
	g.MOVQ(group, c)
	g.VBROADCASTSS(operand.Mem{Base: scales}, scale)
	g.loop("block", c, 4*g.lanes, pointers, 4, body)
	g.loop("vector", c, g.lanes, pointers, 1, body)
	if g.wide() {
		g.TESTQ(c, c)
		g.JZ(operand.LabelRef("next"))
		m, v, part := g.tail(c), g.vec(), g.XMM()
		g.VMOVDQU8_Z(operand.Mem{Base: src}, m.k, part)
		g.VPMOVSXBD(part, v)
		g.VCVTDQ2PS(v, v)
		g.VMULPS(scale, v, v)
		g.storeTail(v, m, g.at(dst, 0))
		g.ADDQ(c, src)
		g.LEAQ(operand.Mem{Base: dst, Index: c, Scale: 4}, dst)
		g.Label("next")
	} else {
		g.loop("single", c, 1, pointers, 1, func(int) {
			word, v := g.GP32(), g.XMM()
			g.MOVBLSX(operand.Mem{Base: src}, word)
			g.VCVTSI2SSL(word, scale.AsX(), v)
			g.VMULSS(scale.AsX(), v, v)
			g.VMOVSS(v, operand.Mem{Base: dst})
		})
	}
	g.ADDQ(operand.I32(4), scales)
	g.DECQ(left)
	g.JNZ(operand.LabelRef("group"))
	g.ADDQ(dstSkip, dst)
	g.ADDQ(srcSkip, src)
	g.ADDQ(scaleSkip, scales)
	g.DECQ(rows)
	g.JMP(operand.LabelRef("row"))
	g.Label("done")
	g.end()
}

// emitColumns: a line of packed weights has 4 bytes of each of 16 rows, so a vector
// shifted is one column of all rows.
func emitColumns(g *isa, bits int) {
	g.function(fmt.Sprintf("columns%d", bits), "dst *float32, w, s *byte, stride, groups, steps int",
		fmt.Sprintf("widens a packed tile of INT%d column by column.", bits))
	dst, w, s, stride, groups, steps := g.arg("dst"), g.arg("w"), g.arg("s"), g.arg("stride"), g.arg("groups"), g.arg("steps")
	signs := map[int]uint32{4: 0x88888888, 8: 0x80808080}[bits]
	sign, count := g.bits(fmt.Sprintf("columnsigns%d", bits), signs, g.vec()), g.GP64()
	scale := g.vecs(16 / g.lanes)
	g.SHLQ(operand.U8(uint8(1+bits/4)), steps) // lines of a group: 4 or 8 a step
	g.Label("group")
	for i := range scale {
		g.VPMOVZXWD(operand.Mem{Base: s, Disp: i * g.bytes() / 2}, scale[i])
		g.VPSLLD(operand.U8(16), scale[i], scale[i])
	}
	g.MOVQ(steps, count)
	g.Label("line")
	line := g.vecs(len(scale))
	for i := range line {
		if g.wide() {
			g.VPXORD(g.at(w, i), sign, line[i])
		} else {
			g.VPXOR(g.at(w, i), sign, line[i])
		}
	}
	for half := 0; half < 8; half += bits {
		for j := range 4 {
			for i := range line {
				v := g.vec()
				g.VPSLLD(operand.U8(uint8(32-bits-8*j-half)), line[i], v)
				g.VPSRAD(operand.U8(uint8(32-bits)), v, v)
				g.VCVTDQ2PS(v, v)
				g.VMULPS(scale[i], v, v)
				g.VMOVUPS(v, g.at(dst, i))
			}
			g.ADDQ(stride, dst)
		}
	}
	g.ADDQ(operand.I32(64), w)
	g.DECQ(count)
	g.JNZ(operand.LabelRef("line"))
	g.ADDQ(operand.I32(32), s)
	g.DECQ(groups)
	g.JNZ(operand.LabelRef("group"))
	g.end()
}
