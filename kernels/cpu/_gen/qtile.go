package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in qtile.Tile; a test there holds them to the Go declaration.
const (
	tuConfig = 8 * iota
	tuA
	tuScale
	tuW
	tuS
	tuPanel
	tuProducts
	tuSums
	tuWStride
	tuSStride
	tuAStride
	tuScaleStride
	tuSliceGroups
	tuSteps
	tuBlocks
	tuRows
	tuLeft
	tuNow
	tuBlock
	tuABlock
	tuScaleBlock
)

const (
	tileBytes  = 1024          // a full tile: 16 rows of 64 bytes
	blockBytes = 4 * tileBytes // results of a block: 2 tiles of tokens by 2 of weight rows
	pairBytes  = 2 * tileBytes // two tiles of tokens or weights: 64 columns
	tokenRows  = 4 * 32        // bytes of scales of a block's tokens for a group
	lineBytes  = 64            // of packed weights: 8 columns of 16 rows, 4 of INT8
	halfBlock  = tokenRows / 2 // scales of one tile of tokens
	rowsAtOnce = 4             // rows of results scaled together
)

// emitTileUnit writes the product of the tile unit (AMX). The routine configures
// the tiles, works and releases them in one call: tiles belong to the thread, and
// Go does not preempt assembly, so nothing can be lost or seen by another
// goroutine.
//
// Tiles: 0 1 are the results of tokens 4, 5 with the first 16 weight rows, 2 3
// those with the second 16; 4 5 tokens; 6 7 weights. Four products for four loads.
//
// K goes in slices: a slice of the weights of 32 rows is unpacked to signed bytes
// once, into the first-level cache, and meets every block of tokens, whose sums
// wait in memory. A line of packed INT4 gives two rows of a weight tile, low
// nibbles and high ones, without a permutation, and three lines of INT3 give eight; a
// line of INT8 is a row but for the top bit. (The unit could take INT8 as it lies, signed by unsigned bytes, but then
// every block would have to add the 128 times the sum of its tokens that is too
// much, where the panel is made once for all blocks.)
//
// The bytes of tile instructions name their registers, so all registers are fixed:
// AX the arguments, SI tokens, DI the panel, R8 weight scales, R9 integer products,
// R10 sums, R12 token scales, R13 64, R14 from the first weight tile's scales to
// the second's, CX groups of the slice; Z29 to Z31 constants, Z16, Z17 scales.
func emitTileUnit(g *isa) {
	for _, bits := range []int{3, 4, 8} {
		g.function(fmt.Sprintf("int%dBlocks", bits), "t *byte", fmt.Sprintf("multiplies blocks of tokens with 32 rows of INT%d weights.", bits))
		u := tileUnit{isa: g, bits: bits}
		g.Load(g.Param("t"), reg.RAX)
		g.MOVQ(u.field(tuConfig), reg.RBX)
		u.configure()
		g.MOVQ(operand.U32(64), reg.R13)
		g.MOVQ(u.field(tuSStride), reg.R14)
		switch bits {
		case 3:
			g.VPBROADCASTD(g.table("int3two", []uint32{0x03030303}), reg.Z29)
			g.VPBROADCASTD(g.table("int3low", []uint32{0x07070707}), reg.Z30)
			g.int3Table("int3levels", 0, reg.Z31)
		case 4:
			g.VPBROADCASTD(g.table("lownibbles", []uint32{0x0f0f0f0f}), reg.Z30)
			g.VPBROADCASTD(g.table("byteeights", []uint32{0x08080808}), reg.Z31)
		case 8:
			g.VPBROADCASTD(g.table("bytesigns", []uint32{0x80808080}), reg.Z31)
		}
		u.clear()
		g.Label("slice")
		g.MOVQ(u.field(tuSliceGroups), reg.RCX)
		g.CMPQ(reg.RCX, u.field(tuLeft))
		g.CMOVQGT(u.field(tuLeft), reg.RCX)
		g.MOVQ(reg.RCX, u.field(tuNow))
		g.SUBQ(reg.RCX, u.field(tuLeft))
		u.unpack()
		u.blocks()
		u.advance()
		g.CMPQ(u.field(tuLeft), operand.U8(0))
		g.JNE(operand.LabelRef("slice"))
		u.release()
		g.end()
	}
}

type tileUnit struct {
	*isa
	bits int
}

func (u tileUnit) field(off int) operand.Mem { return operand.Mem{Base: reg.RAX, Disp: off} }

// code emits one instruction byte by byte; uses are the registers it reads, for
// avo's analysis.
func (u tileUnit) code(uses []operand.Op, bytes ...byte) {
	for _, b := range bytes {
		u.Instruction(&ir.Instruction{Opcode: "BYTE", Operands: []operand.Op{operand.U8(b)}, Inputs: uses})
	}
}

// named is a register with its number in an instruction.
type named struct {
	r reg.Register
	n byte
}

var (
	tokensAt   = named{reg.RSI, 6}
	panelAt    = named{reg.RDI, 7}
	productsAt = named{reg.R9, 9}
	rowStep    = named{reg.R13, 13}
)

// configure is LDTILECFG (BX): VEX.128.NP.0F38.W0 49 /0.
func (u tileUnit) configure() { u.code([]operand.Op{reg.RBX}, 0xc4, 0xe2, 0x78, 0x49, 0x03) }

// release is TILERELEASE: VEX.128.NP.0F38.W0 49 C0.
func (u tileUnit) release() { u.code(nil, 0xc4, 0xe2, 0x78, 0x49, 0xc0) }

// zero is TILEZERO: VEX.128.F2.0F38.W0 49 11:tile:000.
func (u tileUnit) zero(tile byte) { u.code(nil, 0xc4, 0xe2, 0x7b, 0x49, 0xc0|tile<<3) }

// memory is VEX.128.pp.0F38.W0 4B /r with [base + index + disp32]: the index holds
// the bytes from row to row.
func (u tileUnit) memory(pp, tile byte, base, index named, disp int) {
	b, i := base.n, index.n
	u.code([]operand.Op{base.r, index.r},
		0xc4, 0xe2^b>>3<<5^i>>3<<6, 0x78|pp, 0x4b, 0x84|tile<<3, i&7<<3|b&7,
		byte(disp), byte(disp>>8), byte(disp>>16), byte(disp>>24))
}

// load and store are TILELOADD and TILESTORED with rows R13 bytes apart.
func (u tileUnit) load(tile byte, base named, disp int)  { u.memory(3, tile, base, rowStep, disp) }
func (u tileUnit) store(tile byte, base named, disp int) { u.memory(2, tile, base, rowStep, disp) }

// multiply is TDPBSSD c, a, b: VEX.128.F2.0F38.W0 5E 11:c:a with b in vvvv;
// c[m][n] += the sum over k of signed a[m][k] * b[k/4][4n + k%4].
func (u tileUnit) multiply(c, a, b byte) {
	u.code(nil, 0xc4, 0xe2, (b^15)<<3|3, 0x5e, 0xc0|c<<3|a)
}

// clear zeroes the sums of all blocks.
func (u tileUnit) clear() {
	u.MOVQ(u.field(tuSums), reg.R10)
	u.MOVQ(u.field(tuBlocks), reg.RCX)
	u.SHLQ(operand.U8(12), reg.RCX)
	u.VPXORD(reg.Z0, reg.Z0, reg.Z0)
	u.Label("clear")
	u.VMOVUPS(reg.Z0, operand.Mem{Base: reg.R10})
	u.ADDQ(operand.U8(64), reg.R10)
	u.SUBQ(operand.U8(64), reg.RCX)
	u.JNZ(operand.LabelRef("clear"))
}

// unpackAhead is how far ahead the unpacking asks for weights: they are read from
// memory once, by two streams.
const unpackAhead = 2048

// unpack makes the panel: for each 64 columns, a tile of the first 16 weight
// rows, then one of the second.
func (u tileUnit) unpack() {
	u.MOVQ(u.field(tuW), reg.RSI)
	u.MOVQ(reg.RSI, reg.R8)
	u.ADDQ(u.field(tuWStride), reg.R8)
	u.MOVQ(u.field(tuPanel), reg.RDI)
	u.IMULQ(u.field(tuSteps), reg.RCX)
	u.Label("unpack")
	lines := 2 * u.bits // of a tile of weights
	for line := range lines {
		for i, from := range []reg.Register{reg.RSI, reg.R8} {
			at := operand.Mem{Base: from, Disp: line * lineBytes}
			if u.bits == 3 {
				if line%3 == 0 {
					u.unpack3(at, operand.Mem{Base: reg.RDI, Disp: i*tileBytes + line/3*(tileBytes/2)})
				}
				continue
			}
			to := operand.Mem{Base: reg.RDI, Disp: i*tileBytes + line*tileBytes/lines}
			u.PREFETCHT0(at.Offset(unpackAhead))
			if u.bits == 8 {
				u.VPXORD(at, reg.Z31, reg.Z0)
				u.VMOVDQU64(reg.Z0, to)
				continue
			}
			u.VMOVDQU64(at, reg.Z0)
			u.VPANDD(reg.Z30, reg.Z0, reg.Z1)
			u.VPSRLD(operand.U8(4), reg.Z0, reg.Z0)
			u.VPANDD(reg.Z30, reg.Z0, reg.Z0)
			u.VPSUBB(reg.Z31, reg.Z1, reg.Z1)
			u.VPSUBB(reg.Z31, reg.Z0, reg.Z0)
			u.VMOVDQU64(reg.Z1, to)
			u.VMOVDQU64(reg.Z0, to.Offset(64))
		}
	}
	u.ADDQ(operand.U32(uint32(lines*lineBytes)), reg.RSI)
	u.ADDQ(operand.U32(uint32(lines*lineBytes)), reg.R8)
	u.ADDQ(operand.U32(pairBytes), reg.RDI)
	u.DECQ(reg.RCX)
	u.JNZ(operand.LabelRef("unpack"))
	u.MOVQ(reg.RSI, u.field(tuW))
}

// unpack3 makes half of a tile, 32 columns, of three lines of INT3.
func (u tileUnit) unpack3(at, to operand.Mem) {
	free := []reg.Register{reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4}
	r := int3Registers{line: [3]reg.Register(free[:3]), index: free[3], low: free[4], two: reg.Z29, three: reg.Z30, table: reg.Z31}
	u.int3Wide(at, r, func(line int) { u.PREFETCHT0(at.Offset(line*lineBytes + unpackAhead)) }, func(n int) {
		u.VMOVDQU64(r.index, to.Offset(n*lineBytes))
	})
}

// blocks multiplies the slice with every block of tokens.
func (u tileUnit) blocks() {
	u.MOVQ(u.field(tuSums), reg.R10)
	for _, copied := range [][2]int{{tuBlocks, tuBlock}, {tuA, tuABlock}, {tuScale, tuScaleBlock}} {
		u.MOVQ(u.field(copied[0]), reg.RBX)
		u.MOVQ(reg.RBX, u.field(copied[1]))
	}
	u.MOVQ(u.field(tuProducts), reg.R9)
	u.Label("block")
	u.MOVQ(u.field(tuABlock), reg.RSI)
	u.MOVQ(u.field(tuPanel), reg.RDI)
	u.MOVQ(u.field(tuS), reg.R8)
	u.MOVQ(u.field(tuScaleBlock), reg.R12)
	u.MOVQ(u.field(tuNow), reg.RCX)
	u.Label("group")
	u.products()
	u.scale()
	u.ADDQ(operand.U8(32), reg.R8)
	u.ADDQ(operand.U32(tokenRows), reg.R12)
	u.DECQ(reg.RCX)
	u.JNZ(operand.LabelRef("group"))
	u.ADDQ(operand.U32(blockBytes), reg.R10)
	for _, step := range [][2]int{{tuAStride, tuABlock}, {tuScaleStride, tuScaleBlock}} {
		u.MOVQ(u.field(step[0]), reg.RBX)
		u.ADDQ(reg.RBX, u.field(step[1]))
	}
	u.DECQ(u.field(tuBlock))
	u.JNZ(operand.LabelRef("block"))
	u.MOVQ(reg.R8, u.field(tuS))
}

// products are the integer sums of a group.
func (u tileUnit) products() {
	for tile := range byte(4) {
		u.zero(tile)
	}
	u.MOVQ(u.field(tuSteps), reg.RDX)
	u.Label("step")
	u.load(4, tokensAt, 0)
	u.load(6, panelAt, 0)
	u.load(5, tokensAt, tileBytes)
	u.load(7, panelAt, tileBytes)
	u.multiply(0, 4, 6)
	u.multiply(1, 5, 6)
	u.multiply(2, 4, 7)
	u.multiply(3, 5, 7)
	u.ADDQ(operand.U32(pairBytes), reg.RSI)
	u.ADDQ(operand.U32(pairBytes), reg.RDI)
	u.DECQ(reg.RDX)
	u.JNZ(operand.LabelRef("step"))
	for tile := range byte(4) {
		u.store(tile, productsAt, int(tile)*tileBytes)
	}
}

// scale adds a group's products to the sums: FMA(product, weight scale * token
// scale, sum), as everywhere.
func (u tileUnit) scale() {
	u.VPMOVZXWD(operand.Mem{Base: reg.R8}, reg.Z16)
	u.VPMOVZXWD(operand.Mem{Base: reg.R8, Index: reg.R14, Scale: 1}, reg.Z17)
	u.VPSLLD(operand.U8(16), reg.Z16, reg.Z16)
	u.VPSLLD(operand.U8(16), reg.Z17, reg.Z17)
	z := []reg.Register{reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7, reg.Z8, reg.Z9, reg.Z10, reg.Z11}
	for tile := range 4 {
		weight := []reg.Register{reg.Z16, reg.Z17}[tile/2]
		label := fmt.Sprintf("scale%d", tile)
		u.MOVQ(u.field(tuRows), reg.RDX)
		u.LEAQ(operand.Mem{Base: reg.R12, Disp: tile % 2 * halfBlock}, reg.R11)
		u.XORQ(reg.RBX, reg.RBX)
		u.Label(label)
		for i := range rowsAtOnce {
			at := func(base reg.Register) operand.Mem {
				return operand.Mem{Base: base, Index: reg.RBX, Scale: 1, Disp: tile*tileBytes + 64*i}
			}
			product, both, sum := z[i], z[4+i], z[8+i]
			u.VCVTDQ2PS(at(reg.R9), product)
			u.VMULPS_BCST(operand.Mem{Base: reg.R11, Disp: 4 * i}, weight, both)
			u.VMOVUPS(at(reg.R10), sum)
			u.VFMADD231PS(both, product, sum)
			u.VMOVUPS(sum, at(reg.R10))
		}
		u.ADDQ(operand.U8(4*rowsAtOnce), reg.R11)
		u.ADDQ(operand.U32(64*rowsAtOnce), reg.RBX)
		u.SUBQ(operand.U8(rowsAtOnce), reg.RDX)
		u.JNZ(operand.LabelRef(label))
	}
}

// advance goes on to the next slice.
func (u tileUnit) advance() {
	u.MOVQ(u.field(tuNow), reg.RCX)
	u.MOVQ(reg.RCX, reg.RBX)
	u.IMULQ(u.field(tuSteps), reg.RBX)
	u.SHLQ(operand.U8(11), reg.RBX) // pairBytes
	u.ADDQ(reg.RBX, u.field(tuA))
	u.SHLQ(operand.U8(7), reg.RCX) // tokenRows
	u.ADDQ(reg.RCX, u.field(tuScale))
}
