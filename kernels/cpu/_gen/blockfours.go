package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Products with panels of values of four bits, 0 to 15, on AVX2 and AVX-VNNI. Such a panel keeps values
// as they are stored, without the offset taken away.
//
// On AVX2 two products of up to 15*127 meet in a word, and eight such words of a group are added: at most
// 8*2*15*127 = 30480, so that words need not be widened before the group ends. The offset is undone once a
// group, by a multiple of the sum of the activations.
//
// Both halves of the 16 weight rows are at hand, so that a broadcast of activations meets two registers.
// The sums of results do not fit into registers then: they are in Out.

// fourTile is the state while one tile is written.
type fourTile struct {
	*isa
	mr   int
	mins bool

	t, p, q, s, left, tiles, q0, s0, small, step reg.GPVirtual
	out                                          []reg.GPVirtual
	ones                                         operand.Mem
}

func emitFours(g *isa) {
	for _, mins := range []bool{false, true} {
		name, doc := "fours", "a panel of four bits"
		if mins {
			name, doc = "foursMins", doc+" with minima"
		}
		for mr := 2; mr <= 4; mr++ {
			g.function(fmt.Sprintf("%sRows%d", name, mr), "t *byte", fmt.Sprintf("multiplies %d rows of activations with t.Tiles tiles of %s.", mr, doc))
			d := &fourTile{isa: g, mr: mr, mins: mins}
			d.load()
			d.loops()
			g.end()
		}
	}
}

func (d *fourTile) load() {
	g := d.isa
	d.t = g.arg("t")
	field := func(off int) reg.GPVirtual {
		r := g.GP64()
		g.MOVQ(operand.Mem{Base: d.t, Disp: off}, r)
		return r
	}
	d.q0, d.s0, d.tiles = field(bW), field(bS), field(bTiles)
	d.step, d.small = field(bStep), field(bSmall)
	d.p, d.q, d.s, d.left = g.GP64(), g.GP64(), g.GP64(), g.GP64()
	for m := range d.mr {
		d.out = append(d.out, field(bOut+8*m))
	}
	d.ones = g.repeated("words1", 0x00010001)
}

// floats is the number of scales and minima of a group.
func (d *fourTile) floats() int {
	if d.mins {
		return 2
	}
	return 1
}

// Where the parts of a group of prepared activations lie; as blockTile has them, of one scale for a group.
func (d *fourTile) after(bytes, m int) operand.Mem {
	return operand.Mem{Base: d.p, Disp: bytes*d.mr + 4*m}
}

func (d *fourTile) preparedRow() int {
	if d.mins {
		return 44
	}
	return 40
}

func (d *fourTile) loops() {
	g := d.isa
	g.Label("tile")
	g.MOVQ(d.q0, d.q)
	g.MOVQ(d.s0, d.s)
	g.MOVQ(operand.Mem{Base: d.t, Disp: bP}, d.p)
	g.MOVQ(operand.Mem{Base: d.t, Disp: bGroups}, d.left)
	g.Label("group")
	d.group()
	g.ADDQ(d.step, d.q)
	g.ADDQ(d.small, d.s)
	g.ADDQ(operand.I32(int32(d.preparedRow()*d.mr)), d.p)
	g.DECQ(d.left)
	g.JNZ(operand.LabelRef("group"))
	g.ADDQ(operand.I32(panelBytes), d.q0)
	g.ADDQ(operand.I32(int32(64*d.floats())), d.s0)
	for _, out := range d.out {
		g.ADDQ(operand.I32(64), out)
	}
	g.DECQ(d.tiles)
	g.JNZ(operand.LabelRef("tile"))
}

// group adds the products of a group.
func (d *fourTile) group() {
	g := d.isa
	sums := make([][]reg.VecVirtual, d.mr)
	for m := range sums {
		sums[m] = g.vecs(2)
		switch {
		case g.vnni() && d.mins: // there is no offset
			g.zero(sums[m]...)
		case g.vnni():
			g.VPBROADCASTD(d.after(36, m), sums[m][0])
			g.VMOVDQA(sums[m][0], sums[m][1])
		}
	}
	for four := range 8 {
		w := g.vecs(2)
		for half, v := range w {
			g.VMOVDQU(operand.Mem{Base: d.q, Disp: 64*four + 32*half}, v)
		}
		for m := range sums {
			x := g.YMM()
			g.VPBROADCASTD(operand.Mem{Base: d.p, Disp: 32*m + 4*four}, x)
			for half, v := range w {
				d.add(x, v, sums[m][half], four == 0)
			}
		}
	}
	d.finish(sums)
}

// add adds products to a sum.
func (d *fourTile) add(x, w, sum reg.VecVirtual, first bool) {
	g := d.isa
	switch {
	case g.vnni():
		g.dpb(x, w, sum)
	case first:
		g.VPMADDUBSW(x, w, sum)
	default:
		p := g.YMM()
		g.VPMADDUBSW(x, w, p)
		g.VPADDW(p, sum, sum)
	}
}

// finish scales the sums of a group and adds them to the results.
func (d *fourTile) finish(sums [][]reg.VecVirtual) {
	g := d.isa
	vectors := func(at int) (v [2]reg.VecVirtual) {
		for half := range v {
			v[half] = g.loaded(operand.Mem{Base: d.s, Disp: at + 32*half})
		}
		return v
	}
	var low [2]reg.VecVirtual
	scale := vectors(0)
	if d.mins {
		low = vectors(64)
	}
	for m := range sums {
		x, bias := g.YMM(), g.YMM()
		g.VBROADCASTSS(d.after(32, m), x)
		if !d.mins && !g.vnni() {
			g.VPBROADCASTD(d.after(36, m), bias)
		}
		for half, sum := range sums[m] {
			both, out := g.YMM(), operand.Mem{Base: d.out[m], Disp: 32 * half}
			if !g.vnni() {
				g.VPMADDWD(d.ones, sum, sum)
			}
			if !d.mins && !g.vnni() {
				g.VPADDD(bias, sum, sum)
			}
			g.VMULPS(scale[half], x, both)
			g.VCVTDQ2PS(sum, sum)
			g.VFMADD213PS(out, sum, both)
			if d.mins {
				times := g.YMM()
				g.VBROADCASTSS(d.after(40, m), times)
				g.VFMADD231PS(times, low[half], both)
			}
			g.VMOVUPS(both, out)
		}
	}
}
