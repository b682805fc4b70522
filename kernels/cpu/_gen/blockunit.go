package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// More offsets in blockdot.Tile, for the tile unit.
const (
	bRowStep  = 136
	bCount    = 144
	bConfig   = 152
	bProducts = 160
	bLeft     = 168

	unitRows = 16 // rows of activations of a call
)

// emitBlockUnit writes the product of up to 16 rows with a panel on the tile unit (AMX). As in
// emitTileUnit, tiles are configured and released in the call, and all registers are fixed: AX the
// arguments, SI activations, DI values, R8 scales, R9 integer products, R10 sums, R11 and BX the
// values and scales of a tile, R12 from row to row of sums, R13 64, R14 32, CX groups; Z0 to Z15 the
// sums.
//
// Four products of 32 columns, which share a scale, are in flight in tiles 0 to 3; tiles 4 and
// 5 are activations, 6 and 7 weights. A product takes as long as one of 64 columns, and scaling it
// takes longer, so the unit is used at half of its rate. With a scale for 16 columns it would be a
// quarter, slower than AVX-512: such panels are not for it.
func emitBlockUnit(g *isa) {
	for _, kind := range panelKinds {
		if kind.subs == 2 {
			continue
		}
		u := blockUnit{tileUnit: tileUnit{isa: g}, d: &blockTile{isa: g, blockKind: kind}}
		g.function(kind.short, "t *byte", fmt.Sprintf("multiplies up to %d rows of activations with t.Tiles tiles of %s.", unitRows, kind.name))
		u.emit()
	}
}

type blockUnit struct {
	tileUnit
	d *blockTile
}

func (u blockUnit) emit() {
	u.Load(u.Param("t"), reg.RAX)
	u.MOVQ(u.field(bConfig), reg.RBX)
	u.configure()
	for _, x := range []struct {
		from int
		to   reg.Register
	}{{bProducts, reg.R9}, {bOut, reg.R10}, {bW, reg.R11}, {bS, reg.RBX}, {bRowStep, reg.R12}, {bTiles, reg.RDX}} {
		u.MOVQ(u.field(x.from), x.to)
	}
	u.MOVQ(reg.RDX, u.field(bLeft))
	u.MOVQ(operand.U32(64), reg.R13)
	u.MOVQ(operand.U32(32), reg.R14)
	u.Label("tile")
	u.MOVQ(u.field(bP), reg.RSI)
	u.MOVQ(reg.R11, reg.RDI)
	u.MOVQ(reg.RBX, reg.R8)
	u.MOVQ(u.field(bGroups), reg.RCX)
	u.sums(func(at operand.Mem, sum reg.Register) { u.VMOVUPS(at, sum) })
	some := 4 / u.d.width()
	if some > 1 {
		u.Label("groups")
		u.CMPQ(reg.RCX, operand.U8(some))
		u.JLT(operand.LabelRef("rest"))
		u.step(some)
		u.JMP(operand.LabelRef("groups"))
		u.Label("rest")
		u.TESTQ(reg.RCX, reg.RCX)
		u.JZ(operand.LabelRef("last"))
	}
	u.Label("group")
	u.step(1)
	u.JNZ(operand.LabelRef("group"))
	u.Label("last")
	u.sums(func(at operand.Mem, sum reg.Register) { u.VMOVUPS(sum, at) })
	u.ADDQ(operand.U8(64), reg.R10)
	u.ADDQ(operand.U32(uint32(panelBytes*u.d.width())), reg.R11)
	u.ADDQ(operand.U32(uint32(64*u.d.floats())), reg.RBX)
	u.DECQ(u.field(bLeft))
	u.JNZ(operand.LabelRef("tile"))
	u.release()
	u.end()
}

// zs are registers Z(from) to Z(from+n-1).
func zs(from, n int) []reg.Register {
	all := []reg.Register{
		reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7, reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15,
		reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23, reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31,
	}
	return all[from : from+n]
}

// sums goes over the rows of sums of a tile.
func (u blockUnit) sums(each func(at operand.Mem, sum reg.Register)) {
	u.MOVQ(reg.R10, reg.RDX)
	for _, sum := range zs(0, unitRows) {
		each(operand.Mem{Base: reg.RDX}, sum)
		u.ADDQ(reg.R12, reg.RDX)
	}
}

// step adds a number of groups to the sums; its last instruction counts them.
func (u blockUnit) step(groups int) {
	panelValues, tokens := named{reg.RDI, 7}, named{reg.R14, 14}
	per := u.d.width() // products of a group
	for i := range groups {
		for p := range per {
			c, next := byte(i*per+p), byte(i*per+p)%2
			u.zero(c)
			u.memory(3, 4+next, tokensAt, tokens, i*u.prepared())
			u.load(6+next, panelValues, p*panelBytes)
			u.multiply(c, 4+next, 6+next)
		}
		u.ADDQ(u.field(bStep), reg.RDI)
	}
	for c := range groups * per {
		u.store(byte(c), productsAt, c*tileBytes)
	}
	scales, mins := zs(16, 4), zs(20, 4)
	for i := range groups {
		u.VMOVUPS(operand.Mem{Base: reg.R8}, scales[i])
		if u.d.mins {
			u.VMOVUPS(operand.Mem{Base: reg.R8, Disp: 64}, mins[i])
		}
		u.ADDQ(u.field(bSmall), reg.R8)
	}
	label := fmt.Sprintf("scaled%d", groups)
	for row := 0; row < unitRows; row += rowsAtOnce {
		if row > 0 {
			u.CMPQ(u.field(bCount), operand.U8(row))
			u.JLE(operand.LabelRef(label))
		}
		for i := range groups {
			u.scale(i, row, scales[i])
			for r := row; u.d.mins && r < row+rowsAtOnce; r++ {
				u.VFMADD231PS_BCST(operand.Mem{Base: reg.RSI, Disp: i*u.prepared() + 40*unitRows + 4*r}, mins[i], zs(r, 1)[0])
			}
		}
	}
	u.Label(label)
	u.ADDQ(operand.U32(uint32(groups*u.prepared())), reg.RSI)
	u.SUBQ(operand.U8(groups), reg.RCX)
}

// prepared is the size of a group of activations.
func (u blockUnit) prepared() int { return unitRows * u.d.preparedRow() }

// scale adds some rows of a group's product to the sums.
func (u blockUnit) scale(group, row int, scale reg.Register) {
	product, both := zs(24, rowsAtOnce), zs(28, rowsAtOnce)
	for r := range rowsAtOnce {
		at := func(plane int) operand.Mem {
			return operand.Mem{Base: reg.R9, Disp: (group*u.d.width()+plane)*tileBytes + 64*(row+r)}
		}
		if u.d.width() == 1 {
			u.VCVTDQ2PS(at(0), product[r])
			continue
		}
		u.VMOVDQU32(at(u.d.width()-1), product[r])
		for plane := u.d.width() - 2; plane >= 0; plane-- {
			u.VPSLLD(operand.U8(7), product[r], product[r])
			u.VPADDD(at(plane), product[r], product[r])
		}
		u.VCVTDQ2PS(product[r], product[r])
	}
	for r := range rowsAtOnce {
		u.VMULPS_BCST(operand.Mem{Base: reg.RSI, Disp: group*u.prepared() + 32*unitRows + 4*(row+r)}, scale, both[r])
	}
	for r := range rowsAtOnce {
		u.VFMADD231PS(both[r], product[r], zs(row+r, 1)[0])
	}
}
