package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in btile.Weigh; a test there holds them to the Go declaration.
const (
	wgConfig = 8 * iota
	wgUpper
	wgLower
	wgW
	wgAcc
	wgPairs
	wgTurn
	wgPStride
	wgWStride
	wgAccStride
	wgSteps
	wgBlocks
)

// emitWeigh writes sums of weighted rows on the tile unit. Factors are the first factor of the product, in two parts; the second one is
// pairs of rows, interleaved here. A vector of 32 columns of two rows gives a row of two tiles: the low halves of its lanes
// and the high ones, so the columns of the results are in that order.
//
// Tiles: 0 to 3 results of 64 columns; 4 5 rows; 6 7 the upper and the lower bits of factors.
//
// Registers: AX the arguments, SI and R8 factors, DI rows, R9 pairs, of two places in turn, R10 results, R11 R12 R13 R14 the
// bytes from row to row of results, factors, pairs and rows, CX blocks left, DX steps left, BX scratch.
func emitWeigh(u tileUnit) {
	u.function("weigh", "sum *byte", "adds weighted rows to up to 16 result rows.")
	upper, lower := tokensAt, named{reg.R8, 8}
	results, accStep, factorStep := outAt, named{reg.R11, 11}, named{reg.R12, 12}
	u.Load(u.Param("sum"), reg.RAX)
	u.MOVQ(u.field(wgConfig), reg.RBX)
	u.configure()
	u.MOVQ(operand.U32(64), reg.R13)
	u.MOVQ(u.field(wgW), reg.RDI)
	u.MOVQ(u.field(wgAcc), reg.R10)
	u.MOVQ(u.field(wgPairs), reg.R9)
	u.MOVQ(u.field(wgPStride), reg.R12)
	u.MOVQ(u.field(wgWStride), reg.R14)
	u.MOVQ(u.field(wgAccStride), reg.R11)
	u.MOVQ(u.field(wgBlocks), reg.RCX)
	u.Label("block")
	for t := range 4 {
		u.memory(3, byte(t), results, accStep, 64*t)
	}
	u.MOVQ(u.field(wgUpper), reg.RSI)
	u.MOVQ(u.field(wgLower), reg.R8)
	u.MOVQ(u.field(wgSteps), reg.RDX)
	u.MOVQ(reg.RDI, reg.RBX)
	u.Label("step")
	for pair := range 16 {
		for half := range 2 {
			even, odd := operand.Mem{Base: reg.RBX, Disp: 64 * half}, operand.Mem{Base: reg.RBX, Index: reg.R14, Scale: 1, Disp: 64 * half}
			z := zmm[4*(2*(pair%2)+half):][:4]
			u.VMOVUPS(even, z[0])
			u.VMOVUPS(odd, z[1])
			u.VPUNPCKLWD(z[1], z[0], z[2])
			u.VPUNPCKHWD(z[1], z[0], z[3])
			u.VMOVUPS(z[2], operand.Mem{Base: reg.R9, Disp: 2*half*tileBytes + 64*pair})
			u.VMOVUPS(z[3], operand.Mem{Base: reg.R9, Disp: (2*half+1)*tileBytes + 64*pair})
		}
		u.LEAQ(operand.Mem{Base: reg.RBX, Index: reg.R14, Scale: 2}, reg.RBX)
	}
	u.memory(3, 6, upper, factorStep, 0)
	u.memory(3, 7, lower, factorStep, 0)
	for t := range byte(4) {
		u.load(4+t%2, productsAt, int(t)*tileBytes)
		u.multiplyFloats(t, 6, 4+t%2)
		u.multiplyFloats(t, 7, 4+t%2)
	}
	u.NEGQ(reg.R9)
	u.ADDQ(u.field(wgTurn), reg.R9)
	u.ADDQ(operand.U8(64), reg.RSI)
	u.ADDQ(operand.U8(64), reg.R8)
	u.DECQ(reg.RDX)
	u.JNZ(operand.LabelRef("step"))
	for t := range 4 {
		u.memory(2, byte(t), results, accStep, 64*t)
	}
	u.ADDQ(operand.U32(128), reg.RDI)
	u.ADDQ(operand.U32(256), reg.R10)
	u.DECQ(reg.RCX)
	u.JNZ(operand.LabelRef("block"))
	u.release()
	u.end()
}
