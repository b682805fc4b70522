package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func emitAxpy(g *isa) {
	for _, bf16 := range []bool{false, true} {
		for mr := 1; mr <= 4; mr++ {
			emitAxpyTile(g, bf16, mr)
		}
	}
	emitAdd(g)
	emitScale(g)
}

// axpyTile: mr result rows, some vectors of columns at a time held in
// registers while the rows of W pass.
type axpyTile struct {
	*isa
	bf16   bool
	mr     int
	t      reg.GPVirtual
	p      []reg.GPVirtual
	w, s   reg.GPVirtual // first row at the current column; stride
	column reg.GPVirtual // bytes of a result row done
	width  reg.GPVirtual // columns left
	n      reg.GPVirtual // bytes of a row of factors
	odd    reg.VecVirtual
}

func emitAxpyTile(g *isa, bf16 bool, mr int) {
	name := "f32"
	if bf16 {
		name = "bf16"
	}
	g.function(fmt.Sprintf("%sRows%d", name, mr), "t *byte",
		fmt.Sprintf("adds t.N weighted rows to %d result rows.", mr))
	a := &axpyTile{isa: g, bf16: bf16, mr: mr}
	a.t = g.arg("t")
	field := func(off int) reg.GPVirtual {
		r := g.GP64()
		g.MOVQ(operand.Mem{Base: a.t, Disp: off}, r)
		return r
	}
	for m := range mr {
		a.p = append(a.p, field(tileRows+8*m))
	}
	a.w, a.s, a.width, a.n = field(tileW), field(tileStride), field(tileN), field(tileK)
	g.SHLQ(operand.U8(2), a.n)
	a.column = g.GP64()
	g.XORQ(a.column, a.column)
	if bf16 {
		a.odd = g.oddMask()
		a.blocksBF16()
	} else {
		a.blocksF32()
	}
	g.end()
}

// columnLoop runs body while at least step columns are left.
func (a *axpyTile) columnLoop(label string, step int, body func()) {
	a.Label(label)
	a.CMPQ(a.width, operand.I32(int32(step)))
	a.JLT(operand.LabelRef(label + "_end"))
	body()
	size := 4
	if a.bf16 {
		size = 2
	}
	a.ADDQ(operand.I32(int32(step*size)), a.w)
	a.ADDQ(operand.I32(int32(4*step)), a.column)
	a.SUBQ(operand.I32(int32(step)), a.width)
	a.JMP(operand.LabelRef(label))
	a.Label(label + "_end")
}

// result is the current place of result row m, in a fresh register.
func (a *axpyTile) result(m int) reg.GPVirtual {
	r := a.GP64()
	a.MOVQ(operand.Mem{Base: a.t, Disp: tileOut + 8*m}, r)
	a.ADDQ(a.column, r)
	return r
}

// rowLoop runs body for every row of W; row points at its current column, j
// counts bytes of factors.
func (a *axpyTile) rowLoop(label string, body func(row, j reg.GPVirtual)) {
	row, j := a.GP64(), a.GP64()
	a.MOVQ(a.w, row)
	a.XORQ(j, j)
	a.CMPQ(j, a.n)
	a.JGE(operand.LabelRef(label + "_rows_end"))
	a.Label(label + "_rows")
	body(row, j)
	a.ADDQ(a.s, row)
	a.ADDQ(operand.U8(4), j)
	a.CMPQ(j, a.n)
	a.JLT(operand.LabelRef(label + "_rows"))
	a.Label(label + "_rows_end")
}

// factor is P[m][j] in every lane.
func (a *axpyTile) factor(m int, j reg.GPVirtual) reg.VecVirtual {
	v := a.vec()
	a.VBROADCASTSS(operand.Mem{Base: a.p[m], Index: j, Scale: 1}, v)
	return v
}

// blocksF32: vectors of columns at a time, then one, then what is left.
func (a *axpyTile) blocksF32() {
	wide := 4
	if !a.wide() && a.mr > 2 {
		wide = 2
	}
	for nv := wide; nv >= 1; nv /= 2 {
		label := fmt.Sprintf("by%d", nv)
		a.columnLoop(label, nv*a.lanes, func() {
			a.withAcc(nv, nil, func(acc [][]reg.VecVirtual) {
				a.rowLoop(label, func(row, j reg.GPVirtual) {
					w := a.vecs(nv)
					for i := range w {
						a.VMOVUPS(a.at(row, i), w[i])
					}
					for m := range a.mr {
						f := a.factor(m, j)
						for i := range w {
							a.VFMADD231PS(w[i], f, acc[m][i])
						}
					}
				})
			})
		})
	}
	a.TESTQ(a.width, a.width)
	a.JZ(operand.LabelRef("done"))
	left := a.tail(a.width)
	a.withAcc(1, &left, func(acc [][]reg.VecVirtual) {
		a.rowLoop("rest", func(row, j reg.GPVirtual) {
			w := a.vec()
			a.loadTail(a.at(row, 0), left, w)
			for m := range a.mr {
				a.VFMADD231PS(w, a.factor(m, j), acc[m][0])
			}
		})
	})
	a.Label("done")
}

// withAcc loads nv vectors of every result row, runs body and stores them.
func (a *axpyTile) withAcc(nv int, left *mask, body func(acc [][]reg.VecVirtual)) {
	acc := make([][]reg.VecVirtual, a.mr)
	for m := range acc {
		acc[m] = a.vecs(nv)
		from := a.result(m)
		for i, v := range acc[m] {
			if left != nil {
				a.loadTail(a.at(from, i), *left, v)
			} else {
				a.VMOVUPS(a.at(from, i), v)
			}
		}
	}
	body(acc)
	for m := range acc {
		to := a.result(m)
		for i, v := range acc[m] {
			if left != nil {
				a.storeTail(v, *left, a.at(to, i))
			} else {
				a.VMOVUPS(v, a.at(to, i))
			}
		}
	}
}

// unit is one vector of BF16 columns: at is its offset in bytes in the rows of
// W, even and odd the offsets of its two halves in the packed result rows.
type unit struct{ at, even, odd int }

// units returns the units of n blocks of 32 columns.
func (a *axpyTile) units(n int) []unit {
	var all []unit
	for block := range n {
		for sub := 0; sub < 64; sub += a.bytes() {
			all = append(all, unit{64*block + sub, 128*block + sub, 128*block + 64 + sub})
		}
	}
	return all
}

func (a *axpyTile) blocksBF16() {
	if a.wide() {
		a.columnLoop("by64", 64, func() { a.passBF16("by64", a.units(2), a.load) })
	}
	// AVX2 has registers for a whole block of one or two rows only.
	a.columnLoop("by32", 32, func() {
		units := a.units(1)
		if a.wide() || a.mr <= 2 {
			a.passBF16("by32", units, a.load)
			return
		}
		for i, u := range units {
			a.passBF16(fmt.Sprintf("by32_%d", i), []unit{u}, a.load)
		}
	})
	a.TESTQ(a.width, a.width)
	a.JZ(operand.LabelRef("done"))
	a.tailBF16()
	a.Label("done")
}

func (a *axpyTile) load(row reg.GPVirtual, u unit, dst reg.VecVirtual) {
	src := operand.Mem{Base: row, Disp: u.at}
	if a.wide() {
		a.VMOVDQU16(src, dst)
	} else {
		a.VMOVDQU(src, dst)
	}
}

// passBF16 accumulates the units over all rows of W.
func (a *axpyTile) passBF16(label string, units []unit, load func(row reg.GPVirtual, u unit, dst reg.VecVirtual)) {
	even, odd := make([][]reg.VecVirtual, a.mr), make([][]reg.VecVirtual, a.mr)
	for m := range a.mr {
		even[m], odd[m] = a.vecs(len(units)), a.vecs(len(units))
		from := a.result(m)
		for i, u := range units {
			a.VMOVUPS(operand.Mem{Base: from, Disp: u.even}, even[m][i])
			a.VMOVUPS(operand.Mem{Base: from, Disp: u.odd}, odd[m][i])
		}
	}
	a.rowLoop(label, func(row, j reg.GPVirtual) {
		we, wo := a.vecs(len(units)), a.vecs(len(units))
		for i, u := range units {
			load(row, u, wo[i])
			a.VPSLLD(operand.U8(16), wo[i], we[i])
			a.oddHalf(wo[i], a.odd)
		}
		for m := range a.mr {
			f := a.factor(m, j)
			for i := range units {
				a.VFMADD231PS(we[i], f, even[m][i])
				a.VFMADD231PS(wo[i], f, odd[m][i])
			}
		}
	})
	for m := range a.mr {
		to := a.result(m)
		for i, u := range units {
			a.VMOVUPS(even[m][i], operand.Mem{Base: to, Disp: u.even})
			a.VMOVUPS(odd[m][i], operand.Mem{Base: to, Disp: u.odd})
		}
	}
}

// tailBF16 takes the last block, of fewer than 32 columns; the result rows are
// padded, the rows of W are not.
func (a *axpyTile) tailBF16() {
	if a.wide() {
		t, k := a.GP64(), a.K()
		a.MOVQ(operand.I32(-1), t)
		a.BZHIQ(a.width, t, t)
		a.KMOVD(t.As32(), k)
		a.passBF16("rest", a.units(1), func(row reg.GPVirtual, u unit, dst reg.VecVirtual) {
			a.VMOVDQU16_Z(operand.Mem{Base: row, Disp: u.at}, k, dst)
		})
		return
	}
	// AVX2 cannot mask 16-bit values: each row is copied behind zeros. The
	// second half is all zeros unless more than 16 columns are left; adding
	// zeros there keeps the padding as it was.
	buffer := a.AllocLocal(64)
	for i, u := range a.units(1) {
		label := fmt.Sprintf("rest%d", i)
		a.passBF16(label, []unit{u}, func(row reg.GPVirtual, u unit, dst reg.VecVirtual) {
			zero := a.YMM()
			a.VXORPS(zero, zero, zero)
			a.VMOVUPS(zero, buffer)
			a.VMOVUPS(zero, buffer.Offset(32))
			c, word := a.GP64(), a.GP32()
			a.XORQ(c, c)
			a.Label(label + "_copy")
			a.MOVWLZX(operand.Mem{Base: row, Index: c, Scale: 2}, word)
			to := buffer
			to.Index, to.Scale = c, 2
			a.MOVW(word.As16(), to)
			a.INCQ(c)
			a.CMPQ(c, a.width)
			a.JLT(operand.LabelRef(label + "_copy"))
			a.VMOVDQU(buffer.Offset(u.at), dst)
		})
	}
}

func emitAdd(g *isa) {
	g.function("add", "dst, src *float32, n int", "is dst += src.")
	dst, src, n := g.arg("dst"), g.arg("src"), g.arg("n")
	g.each(n, 4, []pointer{{dst, 4}, {src, 4}}, func(i int) {
		v := g.vec()
		g.VMOVUPS(g.at(dst, i), v)
		g.VADDPS(g.at(src, i), v, v)
		g.VMOVUPS(v, g.at(dst, i))
	}, func(m mask) {
		v, w := g.vec(), g.vec()
		g.loadTail(g.at(dst, 0), m, v)
		g.loadTail(g.at(src, 0), m, w)
		g.VADDPS(w, v, v)
		g.storeTail(v, m, g.at(dst, 0))
	})
	g.end()
}

func emitScale(g *isa) {
	g.function("scale", "dst *float32, n int, factor float32", "is dst *= factor.")
	dst, n, f := g.arg("dst"), g.arg("n"), g.broadcastArg("factor")
	g.each(n, 4, []pointer{{dst, 4}}, func(i int) {
		v := g.vec()
		g.VMULPS(g.at(dst, i), f, v)
		g.VMOVUPS(v, g.at(dst, i))
	}, func(m mask) {
		v := g.vec()
		g.loadTail(g.at(dst, 0), m, v)
		g.VMULPS(v, f, v)
		g.storeTail(v, m, g.at(dst, 0))
	})
	g.end()
}
