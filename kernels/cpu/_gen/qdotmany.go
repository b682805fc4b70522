package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in the scratch of a tile of many rows, and the sizes of its parts; tests of package qdot use all of it.
const (
	manyX    = 0                             // for each row: 8 times 4 columns, and its scale, 32 bytes each
	manyRow  = 32 * 9                        //
	manyBias = manyX + qMost*manyRow         // 32 bytes a row
	manyOut  = manyBias + qMost*32           // float32 sums, [tiles][2][rows][8]
	manySums = manyOut + qManyTiles*qMost*64 // integer sums of groups of several steps, as manyOut
	manySize = manySums + qManyTiles*qMost*64

	qManyTiles = 16
)

// manyTile is AVX2 with INT4 and more rows than have registers. For each step of 32 columns, each four bytes
// of activations are written to scratch eight times over. Then half a tile after the other is unpacked into
// eight registers, and the rows meet it one by one: a product is one instruction with an operand in the
// first-level cache, and unpacking costs little for each row.
type manyTile struct {
	*qdotTile
	m             reg.GPVirtual // the row, counted down to 1
	scratch       reg.GPVirtual
	from, bias    reg.GPVirtual // walk through the scratch
	to, add       reg.GPVirtual
	weights, fine reg.GPVirtual // of the tile at hand, and its scales
	left          operand.Mem   // tiles
}

func (g *isa) emitQdotMany() {
	g.function("int4Many", "t *byte", "multiplies t.Rows rows of activations with t.Tiles tiles of INT4 weights, at most 16.")
	d := &manyTile{qdotTile: &qdotTile{isa: g, bits: 4}}
	d.t = g.arg("t")
	for _, r := range []struct {
		to  *reg.GPVirtual
		off int
	}{{&d.q, qW}, {&d.s, qS}, {&d.scratch, qScratch}} {
		*r.to = g.GP64()
		g.MOVQ(operand.Mem{Base: d.t, Disp: r.off}, *r.to)
	}
	d.k, d.g, d.it, d.m, d.from, d.to, d.add = g.GP64(), g.GP64(), g.GP64(), g.GP64(), g.GP64(), g.GP64(), g.GP64()
	d.weights, d.fine, d.bias = g.GP64(), g.GP64(), d.add
	d.left = g.AllocLocal(8)
	d.ones = g.bits("wordones", 0x00010001, g.YMM())
	d.low = g.bits("lownibbles", 0x0f0f0f0f, g.YMM())
	d.clear()
	d.eachGroup("", func() {}, func() {
		d.spread()
		g.MOVQ(d.q, d.weights)
		g.MOVQ(d.s, d.fine)
		g.LEAQ(operand.Mem{Base: d.scratch, Disp: manyOut}, d.to)
		d.tiles("", func() {
			d.half(0)
			d.half(1)
			g.ADDQ(operand.Mem{Base: d.t, Disp: qTileBytes}, d.weights)
			g.ADDQ(operand.Mem{Base: d.t, Disp: qScaleBytes}, d.fine)
		})
	}, func() {})
	d.store()
	g.end()
}

// rows writes the loop over the rows.
func (d *manyTile) rows(label string, body func()) {
	d.MOVQ(operand.Mem{Base: d.t, Disp: qRows}, d.m)
	d.Label(label)
	body()
	d.DECQ(d.m)
	d.JNZ(operand.LabelRef(label))
}

// tiles writes the loop over the tiles.
func (d *manyTile) tiles(suffix string, body func()) {
	d.MOVQ(operand.Mem{Base: d.t, Disp: qTiles}, d.m)
	d.MOVQ(d.m, d.left)
	d.Label("tile" + suffix)
	body()
	d.DECQ(d.left)
	d.JNZ(operand.LabelRef("tile" + suffix))
}

// field is a pointer of the row.
func (d *manyTile) field(off int) reg.GPVirtual {
	p := d.GP64()
	d.MOVQ(operand.Mem{Base: d.t, Index: d.m, Scale: 8, Disp: off - 8}, p)
	return p
}

// clear sets the float32 sums to zero.
func (d *manyTile) clear() {
	zero := d.YMM()
	d.zero(zero)
	d.LEAQ(operand.Mem{Base: d.scratch, Disp: manyOut}, d.to)
	d.tiles("clear", func() {
		d.rows("clear", func() {
			d.VMOVUPS(zero, operand.Mem{Base: d.to})
			d.VMOVUPS(zero, operand.Mem{Base: d.to, Disp: 32})
			d.ADDQ(operand.I8(64), d.to)
		})
	})
}

// spread writes the activations of a step for the products.
func (d *manyTile) spread() {
	g := d.isa
	g.MOVQ(d.scratch, d.from)
	g.LEAQ(operand.Mem{Base: d.scratch, Disp: manyBias}, d.bias)
	d.rows("spread", func() {
		put := func(from operand.Mem, to operand.Mem) {
			v := g.YMM()
			g.VPBROADCASTD(from, v)
			g.VMOVDQU(v, to)
		}
		x := d.field(qX)
		for n := range 8 {
			put(operand.Mem{Base: x, Index: d.k, Scale: 1, Disp: 4 * n}, operand.Mem{Base: d.from, Disp: 32 * n})
		}
		put(operand.Mem{Base: d.field(qScale), Index: d.g, Scale: 1}, operand.Mem{Base: d.from, Disp: 32 * 8})
		put(operand.Mem{Base: d.field(qBias), Index: d.g, Scale: 1}, operand.Mem{Base: d.bias})
		g.ADDQ(operand.I32(manyRow), d.from)
		g.ADDQ(operand.I8(32), d.bias)
	})
}

// half computes one half of a tile, eight weight rows. Two products of up to 15*127 meet in a word, and eight
// such words are added: at most 30480. The sums of a group begin with Bias; after its last step they are added
// to the float32 sums.
func (d *manyTile) half(half int) {
	g := d.isa
	name := []string{"low", "high"}[half]
	w := g.vecs(2 * d.lines())
	for line := range d.lines() {
		low, high := w[2*line], w[2*line+1]
		g.VMOVDQU(operand.Mem{Base: d.weights, Disp: line*qLine + 32*half}, high)
		g.VPAND(d.low, high, low)
		g.VPSRLW(operand.U8(4), high, high)
		g.VPAND(d.low, high, high)
	}
	scale := g.YMM()
	d.scales(operand.Mem{Base: d.fine, Disp: 16 * half}, scale)
	next := operand.Mem{Base: d.weights, Disp: d.stepBytes()} // the next step of the tile, and then this one of the next tile
	if half == 1 {
		g.MOVQ(operand.Mem{Base: d.t, Disp: qTileBytes}, d.from)
		next = operand.Mem{Base: d.weights, Index: d.from, Scale: 1}
	}
	for line := range d.lines() {
		g.PREFETCHT0(next.Offset(line * qLine))
	}
	g.MOVQ(d.scratch, d.from)
	g.LEAQ(operand.Mem{Base: d.to, Disp: manySums - manyOut}, d.add)
	g.CMPQ(d.it, operand.Mem{Base: d.t, Disp: qSteps})
	g.JNE(operand.LabelRef("sums" + name))
	g.LEAQ(operand.Mem{Base: d.scratch, Disp: manyBias}, d.add)
	g.Label("sums" + name)
	g.CMPQ(d.it, operand.I8(1))
	g.JNE(operand.LabelRef("part" + name))
	d.meet("last"+name, w, func(sum reg.VecVirtual) {
		g.VCVTDQ2PS(sum, sum)
		both := g.YMM()
		g.VMULPS(operand.Mem{Base: d.from, Disp: 32 * 8}, scale, both)
		g.VFMADD213PS(operand.Mem{Base: d.to}, sum, both)
		g.VMOVUPS(both, operand.Mem{Base: d.to})
	})
	g.JMP(operand.LabelRef("done" + name))
	d.meet("part"+name, w, func(sum reg.VecVirtual) {
		g.VMOVDQU(sum, operand.Mem{Base: d.to, Disp: manySums - manyOut})
	})
	g.Label("done" + name)
}

// meet multiplies all rows with the weights w, and gives use the integer sums of each.
func (d *manyTile) meet(label string, w []reg.VecVirtual, use func(sum reg.VecVirtual)) {
	g := d.isa
	if label[:4] == "part" {
		g.Label(label)
	}
	d.rows(label+"row", func() {
		sums := g.vecs(2)
		for n, w := range w {
			at := operand.Mem{Base: d.from, Disp: 32 * n}
			if n < 2 {
				g.VPMADDUBSW(at, w, sums[n])
				continue
			}
			p := g.YMM()
			g.VPMADDUBSW(at, w, p)
			g.VPADDW(p, sums[n%2], sums[n%2])
		}
		sum := sums[0]
		g.VPADDW(sums[1], sum, sum)
		g.VPMADDWD(d.ones, sum, sum)
		g.VPADDD(operand.Mem{Base: d.add}, sum, sum)
		use(sum)
		g.ADDQ(operand.I32(manyRow), d.from)
		g.ADDQ(operand.I8(32), d.add)
		g.ADDQ(operand.I8(32), d.to)
	})
}

// store writes the results to Out.
func (d *manyTile) store() {
	g := d.isa
	g.XORQ(d.k, d.k)
	g.LEAQ(operand.Mem{Base: d.scratch, Disp: manyOut}, d.to)
	d.tiles("out", func() {
		for half, name := range []string{"outlow", "outhigh"} {
			d.rows(name, func() {
				v := g.YMM()
				g.VMOVUPS(operand.Mem{Base: d.to}, v)
				g.VMOVUPS(v, operand.Mem{Base: d.field(qOut), Index: d.k, Scale: 1, Disp: 32 * half})
				g.ADDQ(operand.I8(32), d.to)
			})
		}
		g.ADDQ(operand.I8(64), d.k)
	})
}
