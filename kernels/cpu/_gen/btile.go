package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in btile.Tile; a test there holds them to the Go declaration.
const (
	tfConfig = 8 * iota
	tfX
	tfW
	tfOut
	tfProducts
	tfWStride
	tfOutStride
	tfSteps
	tfBlocks
	tfTokens
	tfAhead
)

// Offsets in btile.Block.
const (
	bkRows  = 0 // [16]pointer
	bkOut   = 128
	bkSteps = 136
	bkNext  = 144 // bytes from a step to the next
	bkLow   = 152 // bytes from the upper halves to the lower
)

// emitTileFloats writes products of BF16 weights on the tile unit. Weights are the
// first factor, whose tile is 16 rows of 64 bytes as they lie in a matrix; the
// second one holds pairs of columns of 16 tokens, packed beforehand. So weights
// need no other order, and the results come out transposed.
//
// A token is the sum of two BF16 numbers, of its upper and its lower bits, each
// multiplied: upper first, then lower, step after step along K. Every loop below
// does that for every result, so the number of tokens is not to be seen in them.
//
// Tiles: 0 1 results of 16 weight rows with the first and the second 16 tokens, 2 3
// those of the next 16 weight rows; 4 5 tokens; 6 7 weights.
//
// Registers: AX the arguments, SI tokens, DI and R8 the two tiles of weights, R14
// the bytes from weight row to weight row, R13 those of a row of tokens or results,
// R9 products, R10 out, CX weight blocks left, DX steps left, BX R11 R12 scratch.
func emitTileFloats(g *isa) {
	u := tileUnit{isa: g}
	emitPackTokens(u)
	emitPackToken(u)
	for _, l := range []floatLoop{{name: "single", doc: "1 token", tiles: 1, tokenBytes: 64, step: 4}, {name: "one", doc: "up to 16 tokens", tiles: 1, tokenBytes: tileBytes, step: 64}, {name: "two", doc: "17 to 32 tokens", tiles: 2, tokenBytes: tileBytes, step: 64}} {
		l.tileUnit = u
		l.emit()
	}
	emitWeigh(u)
}

// floatLoop is one of the loops.
type floatLoop struct {
	tileUnit
	name, doc  string
	tiles      int // of tokens
	tokenBytes int // of a tile of tokens
	step       int // bytes of a row of a tile of tokens
}

var (
	firstWeights  = named{reg.RDI, 7}
	secondWeights = named{reg.R8, 8}
	weightStep    = named{reg.R14, 14}
	outAt         = named{reg.R10, 10}
)

func (l floatLoop) emit() {
	l.function(l.name, "t *byte", "multiplies "+l.doc+" with blocks of 32 rows of BF16 weights.")
	l.Load(l.Param("t"), reg.RAX)
	l.MOVQ(l.field(tfConfig), reg.RBX)
	l.configure()
	l.MOVQ(operand.U32(uint32(l.step)), reg.R13)
	l.MOVQ(l.field(tfWStride), reg.R14)
	l.MOVQ(l.field(tfW), reg.RDI)
	l.MOVQ(l.field(tfOut), reg.R10)
	l.MOVQ(l.field(tfProducts), reg.R9)
	l.MOVQ(l.field(tfBlocks), reg.RCX)
	l.Label("block")
	l.MOVQ(reg.R14, reg.R8)
	l.SHLQ(operand.U8(4), reg.R8)
	l.ADDQ(reg.RDI, reg.R8)
	l.MOVQ(l.field(tfX), reg.RSI)
	for tile := range byte(4) {
		if int(tile)%2 < l.tiles {
			l.zero(tile)
		}
	}
	l.MOVQ(l.field(tfSteps), reg.RDX)
	l.Label("step")
	l.along()
	l.DECQ(reg.RDX)
	l.JNZ(operand.LabelRef("step"))
	if l.step == 4 {
		// Rows of one result are 16 results in a row.
		l.store(0, outAt, 0)
		l.store(2, outAt, 64)
	} else {
		l.results()
	}
	l.ADDQ(operand.U8(128), reg.R10)
	// On to the start of the row after the second tile's last: steps have moved both
	// tiles along their rows by the same bytes, a row of K columns.
	l.MOVQ(l.field(tfW), reg.RDI)
	l.MOVQ(reg.R14, reg.RBX)
	l.SHLQ(operand.U8(5), reg.RBX)
	l.ADDQ(reg.RBX, reg.RDI)
	l.MOVQ(reg.RDI, l.field(tfW))
	l.DECQ(reg.RCX)
	l.JNZ(operand.LabelRef("block"))
	l.release()
	l.end()
}

// along is one step of 32 columns.
func (l floatLoop) along() {
	l.memory(3, 6, firstWeights, weightStep, 0)
	l.memory(3, 7, secondWeights, weightStep, 0)
	for half := range 2 {
		for t := range l.tiles {
			l.load(byte(4+t), tokensAt, (half*l.tiles+t)*l.tokenBytes)
		}
		if l.tiles == 1 {
			l.multiplyFloats(0, 6, 4)
			l.multiplyFloats(2, 7, 4)
		} else {
			l.multiplyFloats(0, 6, 4)
			l.multiplyFloats(1, 6, 5)
			l.multiplyFloats(2, 7, 4)
			l.multiplyFloats(3, 7, 5)
		}
	}
	l.ADDQ(operand.U32(uint32(2*l.tiles*l.tokenBytes)), reg.RSI)
	l.CMPQ(l.field(tfAhead), operand.U8(0))
	l.JE(operand.LabelRef("fetched"))
	for _, tile := range []reg.Register{reg.RDI, reg.R8} {
		l.MOVQ(tile, reg.RBX)
		l.ADDQ(l.field(tfAhead), reg.RBX)
		for range 16 {
			l.PREFETCHT0(operand.Mem{Base: reg.RBX})
			l.ADDQ(reg.R14, reg.RBX)
		}
	}
	l.Label("fetched")
	for _, tile := range []reg.Register{reg.RDI, reg.R8} {
		l.ADDQ(operand.U8(64), tile)
	}
}

// multiplyFloats is TDPBF16PS c, a, b: VEX.128.F3.0F38.W0 5C 11:c:a with b in vvvv;
// c[m][n] += the sum over pairs k of a[m][2k] * b[k][2n] + a[m][2k+1] * b[k][2n+1].
func (u tileUnit) multiplyFloats(c, a, b byte) {
	u.code(nil, 0xc4, 0xe2, (b^15)<<3|2, 0x5c, 0xc0|c<<3|a)
}

// results stores the tiles, turned over, as rows of a token.
func (l floatLoop) results() {
	for t := range l.tiles {
		for w := range 2 {
			l.store(byte(2*w+t), productsAt, 0)
			for i := range zmm {
				if i < 16 {
					l.VMOVUPS(operand.Mem{Base: reg.R9, Disp: 64 * i}, zmm[i])
				}
			}
			l.transpose()
			l.MOVQ(l.field(tfTokens), reg.R12)
			l.SUBQ(operand.U8(uint8(16*t)), reg.R12)
			l.MOVQ(reg.R10, reg.R11)
			if t > 0 {
				l.MOVQ(l.field(tfOutStride), reg.RBX)
				l.SHLQ(operand.U8(4), reg.RBX)
				l.ADDQ(reg.RBX, reg.R11)
			}
			end := fmt.Sprintf("stored%d%d", t, w)
			for i := range 16 {
				l.VMOVUPS(zmm[i], operand.Mem{Base: reg.R11, Disp: 64 * w})
				if i == 15 {
					break
				}
				l.ADDQ(l.field(tfOutStride), reg.R11)
				l.CMPQ(reg.R12, operand.U8(uint8(i+1)))
				l.JE(operand.LabelRef(end))
			}
			l.Label(end)
		}
	}
}

var zmm = []reg.VecPhysical{
	reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7, reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15,
	reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23, reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31,
}

// transpose turns over the 16 by 16 values of 32 bits in Z0..Z15; Z16..Z31 are lost.
// After two interleavings lane l of register 4i+c has column 4l+c of rows 4i..4i+3;
// two shuffles of lanes collect the columns.
func (u tileUnit) transpose() {
	r, t := zmm[:16], zmm[16:]
	for i := range 8 {
		u.VUNPCKLPS(r[2*i+1], r[2*i], t[2*i])
		u.VUNPCKHPS(r[2*i+1], r[2*i], t[2*i+1])
	}
	for i := range 4 {
		for half := range 2 {
			u.VUNPCKLPD(t[4*i+2+half], t[4*i+half], r[4*i+2*half])
			u.VUNPCKHPD(t[4*i+2+half], t[4*i+half], r[4*i+2*half+1])
		}
	}
	const even, odd = 0x88, 0xdd
	for c := range 4 {
		for half := range 2 {
			u.VSHUFF32X4(operand.U8(even), r[8*half+4+c], r[8*half+c], t[8*half+c])
			u.VSHUFF32X4(operand.U8(odd), r[8*half+4+c], r[8*half+c], t[8*half+4+c])
		}
	}
	for c := range 4 {
		for half := range 2 {
			u.VSHUFF32X4(operand.U8(even), t[8+4*half+c], t[4*half+c], r[4*half+c])
			u.VSHUFF32X4(operand.U8(odd), t[8+4*half+c], t[4*half+c], r[8+4*half+c])
		}
	}
}

// splitter are constants of the cut of a number in two: what rounds to BF16, and
// bounds that keep what is not a number one.
type splitter struct{ sign, half, nan, upper reg.VecPhysical }

func (u tileUnit) splitter() splitter {
	s := splitter{reg.Z28, reg.Z29, reg.Z30, reg.Z31}
	u.constants(s)
	return s
}

func (u tileUnit) constants(s splitter) {
	u.VPBROADCASTD(u.table("signs", []uint32{0x80000000}), s.sign)
	u.VPBROADCASTD(u.table("halves", []uint32{0x8000}), s.half)
	u.VPBROADCASTD(u.table("nans", []uint32{nanBits}), s.nan)
	u.VPBROADCASTD(u.table("uppers", []uint32{0xffff0000}), s.upper)
}

// round leaves x rounded to BF16, ties away from zero, in the upper half of to; x
// that is infinite or nearly so becomes infinite, NaN becomes NaN or infinite.
func (u tileUnit) round(s splitter, x, to, tmp reg.VecPhysical) {
	u.VPANDND(x, s.sign, to)
	u.VPADDD(s.half, to, to)
	u.VPMINUD(s.nan, to, to)
	u.VPANDD(x, s.sign, tmp)
	u.VPANDD(s.upper, to, to)
	u.VPORD(tmp, to, to)
}

// pair leaves 16 pairs of BF16 in to, from 16 even and 16 odd values at at: their
// upper parts, or (low) what these leave, which is NaN for what is not finite.
func (u tileUnit) pair(s splitter, at operand.Mem, low bool, to reg.VecPhysical) {
	parts := []reg.VecPhysical{reg.Z24, reg.Z25}
	x, tmp := reg.VecPhysical(reg.Z26), reg.VecPhysical(reg.Z27)
	for i, part := range parts {
		u.VMOVUPS(at.Offset(64*i), x)
		u.round(s, x, part, tmp)
		if low {
			u.VSUBPS(part, x, x)
			u.round(s, x, part, tmp)
		}
	}
	u.VPSRLD(operand.U8(16), parts[0], parts[0])
	u.VPORD(parts[1], parts[0], to)
}

// emitPackTokens: for each step and half, 16 tokens are 16 registers of pairs,
// turned over. AX the arguments, SI bytes along the rows, DI the step's place, R8 the
// half's place, DX steps left.
func emitPackTokens(u tileUnit) {
	u.function("packTokens", "b *byte", "packs 16 rows for the unit.")
	u.Load(u.Param("b"), reg.RAX)
	u.XORQ(reg.RSI, reg.RSI)
	u.MOVQ(operand.Mem{Base: reg.RAX, Disp: bkOut}, reg.RDI)
	u.MOVQ(operand.Mem{Base: reg.RAX, Disp: bkSteps}, reg.RDX)
	u.Label("step")
	u.MOVQ(reg.RDI, reg.R8)
	for half := range 2 {
		s := u.splitter()
		for row := range 16 {
			u.MOVQ(operand.Mem{Base: reg.RAX, Disp: bkRows + 8*row}, reg.RBX)
			u.pair(s, operand.Mem{Base: reg.RBX, Index: reg.RSI, Scale: 1}, half == 1, zmm[row])
		}
		u.transpose()
		for row := range 16 {
			u.VMOVUPS(zmm[row], operand.Mem{Base: reg.R8, Disp: 64 * row})
		}
		if half == 0 {
			u.ADDQ(operand.Mem{Base: reg.RAX, Disp: bkLow}, reg.R8)
		}
	}
	u.ADDQ(operand.U32(128), reg.RSI)
	u.ADDQ(operand.Mem{Base: reg.RAX, Disp: bkNext}, reg.RDI)
	u.DECQ(reg.RDX)
	u.JNZ(operand.LabelRef("step"))
	u.end()
}

// emitPackToken: one token needs no turning over.
func emitPackToken(u tileUnit) {
	u.function("packToken", "row, out *float32, steps int", "packs one row for the unit.")
	u.Load(u.Param("row"), reg.RSI)
	u.Load(u.Param("out"), reg.RDI)
	u.Load(u.Param("steps"), reg.RDX)
	s := u.splitter()
	u.Label("step")
	for half := range 2 {
		u.pair(s, operand.Mem{Base: reg.RSI}, half == 1, reg.Z0)
		u.VMOVUPS(reg.Z0, operand.Mem{Base: reg.RDI, Disp: 64 * half})
	}
	u.ADDQ(operand.U32(128), reg.RSI)
	u.ADDQ(operand.U32(128), reg.RDI)
	u.DECQ(reg.RDX)
	u.JNZ(operand.LabelRef("step"))
	u.end()
}
