package main

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The orders of 32 activations: byte i of the prepared ones is activation order[i].

// inOctets: the same column of four times eight.
func inOctets() (order [32]int) {
	for i := range 32 {
		order[i] = i%4*8 + i/4
	}
	return order
}

// inPairs: two columns of two times eight, of the first 16 and then of the second.
func inPairs() (order [32]int) {
	for i := range 32 {
		pair, n := i/4, i%4
		order[i] = pair/4*16 + pair%4*2 + n%2*8 + n/2
	}
	return order
}

func emitPrepare(g *isa) {
	octets, pairs := inOctets(), inPairs()
	g.emitPrepare("prepare", "copies a row", nil, false, false)
	g.emitPrepare("prepareMins", "copies a row whose sums meet minima", nil, false, true)
	g.emitPrepare("prepareHalves", "copies a row with sums of 16", nil, true, false)
	if g.wide() {
		g.emitPrepare("prepareOctets", "reorders a row", &octets, false, false)
		g.emitPrepare("preparePairs", "reorders a row with sums of 16", &pairs, true, false)
	}
}

// emitPrepare writes a function that brings a row of quantised activations to where blockdot.Tile
// reads it, by groups of 32: step bytes lie between two groups.
func (g *isa) emitPrepare(name, doc string, order *[32]int, halves, mins bool) {
	g.function(name, "x *int8, scale *float32, bias *int32, groups, step int, toX, toScale, toBias, toSecond *byte", doc+".")
	x, scale, bias, groups, step := g.arg("x"), g.arg("scale"), g.arg("bias"), g.arg("groups"), g.arg("step")
	toX, toScale, toBias, toSecond, word := g.arg("toX"), g.arg("toScale"), g.arg("toBias"), g.arg("toSecond"), g.GP32()
	at := func(p reg.GPVirtual) operand.Mem { return operand.Mem{Base: p} }
	index, ones, zero := g.YMM(), g.YMM(), g.YMM()
	if order != nil {
		words := make([]uint32, 8)
		for i, v := range order {
			words[i/4] |= uint32(v) << (i % 4 * 8)
		}
		g.VMOVDQU(g.table("order"+name, words), index)
	}
	if halves {
		g.VMOVDQU(g.repeatedY("byteone", 0x01010101), ones)
		g.VPXOR(zero, zero, zero)
	}
	g.Label("group")
	v := g.YMM()
	g.VMOVDQU(at(x), v)
	if halves { // -8 times the sums of 16
		sum := g.YMM()
		g.VPMADDUBSW(v, ones, sum)
		g.VPMADDWD(g.repeatedY("wordone", 0x00010001), sum, sum)
		g.VPHADDD(sum, sum, sum)
		g.VPHADDD(sum, sum, sum)
		g.VPSLLD(operand.U8(3), sum, sum)
		g.VPSUBD(sum, zero, sum)
		g.VMOVD(sum.AsX(), at(toBias))
		upper := g.XMM()
		g.VEXTRACTI128(operand.U8(1), sum, upper)
		g.VMOVD(upper, at(toSecond))
	}
	if order != nil {
		g.VPERMB(v, index, v)
	}
	g.VMOVDQU(v, at(toX))
	g.MOVL(at(scale), word)
	g.MOVL(word, at(toScale))
	if !halves {
		g.MOVL(at(bias), word)
		g.MOVL(word, at(toBias))
	}
	if mins { // the negative sum as float32, times the scale
		f := g.XMM()
		g.VXORPS(f, f, f)
		g.VCVTSI2SSL(word, f, f)
		g.VMULSS(g.table("eighth", []uint32{math.Float32bits(0.125)}), f, f)
		g.VMULSS(at(scale), f, f)
		g.VMOVSS(f, at(toSecond))
	}
	g.ADDQ(operand.I32(32), x)
	g.ADDQ(operand.I32(4), scale)
	g.ADDQ(operand.I32(4), bias)
	for _, p := range []reg.GPVirtual{toX, toScale, toBias, toSecond} {
		g.ADDQ(step, p)
	}
	g.DECQ(groups)
	g.JNZ(operand.LabelRef("group"))
	g.end()
}
