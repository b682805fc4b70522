package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Products of AVX-VNNI keep both halves of a line at hand. The float32 sums live in Out.

// clearOut sets the results of a tile to zero.
func (d *qdotTile) clearOut() {
	zero := d.YMM()
	d.zero(zero)
	for m := range d.mr {
		out := d.outAt(m)
		d.VMOVUPS(zero, out)
		d.VMOVUPS(zero, out.Offset(32))
	}
}

// fours gives use the weights of each four columns of a step, of both halves.
func (d *qdotTile) fours(use func(n int, w []reg.VecVirtual)) {
	g := d.isa
	at := func(line, half int) operand.Mem { return operand.Mem{Base: d.q, Disp: line*qLine + 32*half} }
	for line := range d.lines() {
		d.prefetch(line)
		w := g.vecs(2)
		switch d.bits {
		case 8:
			for half := range w {
				g.VMOVDQU(at(line, half), w[half])
			}
			use(line, w)
		case 4:
			high := g.vecs(2)
			for half := range w {
				g.VMOVDQU(at(line, half), high[half])
				g.VPAND(d.low, high[half], w[half])
			}
			use(2*line, w)
			for half := range w {
				g.VPSRLW(operand.U8(4), high[half], high[half])
				g.VPAND(d.low, high[half], high[half])
			}
			use(2*line+1, high)
		case 3:
			for n, shift := range []uint8{0, 3} {
				w := g.vecs(2)
				for half := range w {
					if shift == 0 {
						g.VPAND(at(line, half), d.low, w[half])
					} else {
						g.VMOVDQU(at(line, half), w[half])
						g.VPSRLD(operand.U8(shift), w[half], w[half])
						g.VPAND(d.low, w[half], w[half])
					}
					g.VPSHUFB(w[half], d.table, w[half])
				}
				use(2*line+n, w)
			}
		}
	}
	for line := 0; d.bits == 3 && line < 2; line++ {
		w := g.vecs(2)
		for half := range w {
			top := g.YMM()
			g.VMOVDQU(at(2, half), w[half])
			g.VPSRLD(operand.U8(uint8(4+line)), w[half], w[half])
			g.VMOVDQU(at(line, half), top)
			g.VPSRLD(operand.U8(6), top, top)
			g.VPAND(d.four(), w[half], w[half])
			g.VPAND(d.two(), top, top)
			g.VPOR(top, w[half], w[half])
			g.VPSHUFB(w[half], d.table, w[half])
		}
		use(6+line, w)
	}
}

// bothScales loads the scales of a group.
func (d *qdotTile) bothScales() []reg.VecVirtual {
	scale := d.vecs(2)
	for half := range scale {
		d.scales(operand.Mem{Base: d.s, Disp: 16 * half}, scale[half])
	}
	return scale
}

// fold adds a group's integer sums of row m, one for each half, to Out.
func (d *qdotTile) fold(m int, scale []reg.VecVirtual, sums []operand.Op) {
	g := d.isa
	x := g.YMM()
	g.VBROADCASTSS(d.perGroup(qScale, m), x)
	out := d.outAt(m)
	for half, sum := range sums {
		both, acc := g.YMM(), g.YMM()
		g.VMULPS(x, scale[half], both)
		g.VCVTDQ2PS(sum, acc)
		g.VFMADD213PS(out.Offset(32*half), acc, both)
		g.VMOVUPS(both, out.Offset(32*half))
	}
}

// vnniTiles is AVX-VNNI: as AVX-512, but that a line is two registers and activations are broadcast
// by an instruction of their own.
func (d *qdotTile) vnniTiles() {
	g := d.isa
	switch d.bits {
	case 3:
		d.table, d.low = g.YMM(), g.bits("int3low", 0x07070707, g.YMM())
		g.int3Table("int3table", d.stored(), d.table)
	case 4:
		d.low = g.bits("lownibbles", 0x0f0f0f0f, g.YMM())
	}
	chains := 4 / d.mr
	acc := make([][]reg.VecVirtual, d.mr) // chains of the first half, then of the second
	for m := range acc {
		acc[m] = g.vecs(2 * chains)
	}
	start := func() {
		for m := range acc {
			first := acc[m][0]
			g.VPBROADCASTD(d.perGroup(qBias, m), first)
			if shift := d.biasShift(); shift > 0 {
				g.VPSLLD(operand.U8(shift), first, first)
			}
			g.VMOVDQA(first, acc[m][chains])
			d.zero(acc[m][1:chains]...)
			d.zero(acc[m][chains+1:]...)
		}
	}
	step := func() {
		d.fours(func(n int, w []reg.VecVirtual) {
			for m := range acc {
				x := g.YMM()
				g.VPBROADCASTD(d.activations(m, 4*n), x)
				for half := range w {
					g.dpb(x, w[half], acc[m][half*chains+n%chains])
				}
			}
		})
	}
	finish := func() {
		scale := d.bothScales()
		for m := range acc {
			var sums []operand.Op
			for half := range 2 {
				sum := acc[m][half*chains]
				for _, other := range acc[m][half*chains+1 : (half+1)*chains] {
					g.VPADDD(other, sum, sum)
				}
				sums = append(sums, sum)
			}
			d.fold(m, scale, sums)
		}
	}
	d.eachTile(func() {
		d.clearOut()
		d.eachGroup("", start, step, finish)
	})
}
