package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Byte offsets of the fields of delta.Tile.
const (
	deltaS        = 0
	deltaQ        = 8
	deltaK        = 16
	deltaNext     = 24
	deltaV        = 32
	deltaKnown    = 40
	deltaOut      = 48
	deltaStride   = 56
	deltaRows     = 64
	deltaWidth    = 72
	deltaDecay    = 80
	deltaStrength = 84
	deltaDecays   = 88
	deltaDecayBy  = 96
)

func emitDelta(g *isa) {
	d := &deltaTile{isa: g}
	d.begin("known", "is t.Known = the sum of t.K[i] times row i of the state.")
	d.columns(4, d.known)
	d.begin("step", "applies a token.")
	d.columns(d.most(), func(nv int, m *mask) { d.step(nv, m, false) })
	d.begin("stepNext", "applies a token, and computes known for the token after it.")
	d.columns(d.most(), func(nv int, m *mask) { d.step(nv, m, true) })
	emitConv(g)
}

// deltaTile: some vectors of columns at a time held in registers while the rows of the state pass.
type deltaTile struct {
	*isa
	t, s, stride, n reg.GPVirtual // s at the current column; n bytes of a row of factors
	off, width      reg.GPVirtual // bytes of columns done, columns left
}

// most is how many vectors of columns a step has registers for.
func (d *deltaTile) most() int {
	if d.wide() {
		return 4
	}
	return 2
}

func (d *deltaTile) field(off int) reg.GPVirtual {
	r := d.GP64()
	d.MOVQ(operand.Mem{Base: d.t, Disp: off}, r)
	return r
}

// column is a field that is a row of columns, at the current one.
func (d *deltaTile) column(off int) reg.GPVirtual {
	r := d.field(off)
	d.ADDQ(d.off, r)
	return r
}

func (d *deltaTile) begin(name, doc string) {
	d.function(name, "t *byte", doc)
	d.t = d.arg("t")
	d.s, d.stride, d.n, d.width = d.field(deltaS), d.field(deltaStride), d.field(deltaRows), d.field(deltaWidth)
	d.SHLQ(operand.U8(2), d.n)
	d.off = d.GP64()
	d.XORQ(d.off, d.off)
}

// columns runs block for most vectors of columns at a time, then for one, then for what is left.
func (d *deltaTile) columns(most int, block func(nv int, m *mask)) {
	for _, nv := range []int{most, 1} {
		label := []string{1: "one", 2: "many", 4: "many"}[nv]
		d.Label(label)
		d.CMPQ(d.width, operand.I32(int32(nv*d.lanes)))
		d.JLT(operand.LabelRef(label + "_end"))
		block(nv, nil)
		d.ADDQ(operand.I32(int32(nv*d.bytes())), d.s)
		d.ADDQ(operand.I32(int32(nv*d.bytes())), d.off)
		d.SUBQ(operand.I32(int32(nv*d.lanes)), d.width)
		d.JMP(operand.LabelRef(label))
		d.Label(label + "_end")
	}
	d.TESTQ(d.width, d.width)
	d.JZ(operand.LabelRef("done"))
	left := d.tail(d.width)
	block(1, &left)
	d.Label("done")
	d.end()
}

func (d *deltaTile) load(at operand.Mem, m *mask, v reg.VecVirtual) {
	if m != nil {
		d.loadTail(at, *m, v)
	} else {
		d.VMOVUPS(at, v)
	}
}

func (d *deltaTile) store(v reg.VecVirtual, m *mask, at operand.Mem) {
	if m != nil {
		d.storeTail(v, *m, at)
	} else {
		d.VMOVUPS(v, at)
	}
}

// rows runs body for every row of the state; j counts bytes of factors.
func (d *deltaTile) rows(nv int, m *mask, body func(row, j reg.GPVirtual)) {
	label := []string{1: "one", 2: "many", 4: "many"}[nv] + "_rows"
	if m != nil {
		label = "left_rows"
	}
	row, j := d.GP64(), d.GP64()
	d.MOVQ(d.s, row)
	d.XORQ(j, j)
	d.Label(label)
	body(row, j)
	d.ADDQ(d.stride, row)
	d.ADDQ(operand.U8(4), j)
	d.CMPQ(j, d.n)
	d.JLT(operand.LabelRef(label))
}

// factor is element j of a row of factors in every lane.
func (d *deltaTile) factor(p, j reg.GPVirtual) reg.VecVirtual {
	v := d.vec()
	d.VBROADCASTSS(operand.Mem{Base: p, Index: j, Scale: 1}, v)
	return v
}

func (d *deltaTile) known(nv int, m *mask) {
	sums, k := d.vecs(nv), d.field(deltaK)
	d.zero(sums...)
	d.rows(nv, m, func(row, j reg.GPVirtual) {
		f := d.factor(k, j)
		for i := range sums {
			s := d.vec()
			d.load(d.at(row, i), m, s)
			d.VFMADD231PS(s, f, sums[i])
		}
	})
	out := d.column(deltaKnown)
	for i := range sums {
		d.store(sums[i], m, d.at(out, i))
	}
}

func (d *deltaTile) step(nv int, m *mask, next bool) {
	decay, change := d.vec(), d.vecs(nv)
	d.VBROADCASTSS(operand.Mem{Base: d.t, Disp: deltaDecay}, decay)
	strength, v, known := d.vec(), d.column(deltaV), d.column(deltaKnown)
	d.VBROADCASTSS(operand.Mem{Base: d.t, Disp: deltaStrength}, strength)
	for i := range change {
		x := d.vec()
		d.load(d.at(v, i), m, change[i])
		d.load(d.at(known, i), m, x)
		d.VFNMADD231PS(x, decay, change[i])
		d.VMULPS(strength, change[i], change[i])
	}
	q, k, decays := d.field(deltaQ), d.field(deltaK), d.field(deltaDecays)
	out, later, after := d.vecs(nv), []reg.VecVirtual(nil), reg.GPVirtual(nil)
	d.zero(out...)
	if next {
		later, after = d.vecs(nv), d.field(deltaNext)
		d.zero(later...)
	}
	d.rows(nv, m, func(row, j reg.GPVirtual) {
		s := d.vecs(nv)
		fk, decay := d.factor(k, j), d.vec()
		d.VBROADCASTSS(operand.Mem{Base: decays}, decay)
		d.ADDQ(operand.Mem{Base: d.t, Disp: deltaDecayBy}, decays)
		for i := range s {
			d.load(d.at(row, i), m, s[i])
			d.VMULPS(decay, s[i], s[i])
			d.VFMADD231PS(change[i], fk, s[i])
			d.store(s[i], m, d.at(row, i))
		}
		fq := d.factor(q, j)
		for i := range s {
			d.VFMADD231PS(s[i], fq, out[i])
		}
		if next {
			fn := d.factor(after, j)
			for i := range s {
				d.VFMADD231PS(s[i], fn, later[i])
			}
		}
	})
	to := d.column(deltaOut)
	for i := range out {
		d.store(out[i], m, d.at(to, i))
	}
	for i := range later {
		d.store(later[i], m, d.at(known, i))
	}
}

func emitConv(g *isa) {
	g.function("conv", "out *float32, x **float32, w *float32, stride, taps, n int", "is out = the sum of row i of w times x[i], element by element.")
	out, x, w, stride, taps, n := g.arg("out"), g.arg("x"), g.arg("w"), g.arg("stride"), g.arg("taps"), g.arg("n")
	off := g.GP64()
	g.XORQ(off, off)
	g.SHLQ(operand.U8(3), taps)
	block := func(label string, nv int, m *mask) {
		sums := g.vecs(nv)
		g.zero(sums...)
		row, j, from := g.GP64(), g.GP64(), g.GP64()
		g.MOVQ(w, row)
		g.XORQ(j, j)
		g.Label(label)
		g.MOVQ(operand.Mem{Base: x, Index: j, Scale: 1}, from)
		g.ADDQ(off, from)
		for i := range sums {
			v := g.vec()
			if m == nil {
				g.VMOVUPS(g.at(from, i), v)
				g.VFMADD231PS(g.at(row, i), v, sums[i])
			} else {
				f := g.vec()
				g.loadTail(g.at(from, i), *m, v)
				g.loadTail(g.at(row, i), *m, f)
				g.VFMADD231PS(f, v, sums[i])
			}
		}
		g.ADDQ(stride, row)
		g.ADDQ(operand.U8(8), j)
		g.CMPQ(j, taps)
		g.JLT(operand.LabelRef(label))
		for i := range sums {
			if m == nil {
				g.VMOVUPS(sums[i], g.at(out, i))
			} else {
				g.storeTail(sums[i], *m, g.at(out, i))
			}
		}
	}
	pointers := []pointer{{out, 4}, {w, 4}, {off, 4}}
	for _, nv := range []int{4, 1} {
		label := []string{1: "one", 4: "many"}[nv]
		g.Label(label)
		g.CMPQ(n, operand.I32(int32(nv*g.lanes)))
		g.JLT(operand.LabelRef(label + "_end"))
		block(label+"_taps", nv, nil)
		for _, p := range pointers {
			g.ADDQ(operand.I32(int32(nv*g.bytes())), p.r)
		}
		g.SUBQ(operand.I32(int32(nv*g.lanes)), n)
		g.JMP(operand.LabelRef(label))
		g.Label(label + "_end")
	}
	g.TESTQ(n, n)
	g.JZ(operand.LabelRef("done"))
	left := g.tail(n)
	block("left_taps", 1, &left)
	g.Label("done")
	g.end()
}
