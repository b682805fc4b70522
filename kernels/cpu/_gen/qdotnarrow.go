package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// narrowTiles is AVX2: a line is two registers, weight rows 0..7 and 8..15. Three
// and four rows of INT3 walk through the tile twice, for one half of the lines
// each time, since there are no registers for both; the second time the tile is
// in cache. The float32 sums live in Out.
func (d *qdotTile) narrowTiles() {
	g := d.isa
	d.ones = g.bits("wordones", 0x00010001, g.YMM())
	switch d.bits {
	case 3:
		d.table, d.low = g.YMM(), g.bits("int3low", 0x07070707, g.YMM())
		g.int3Table("int3table", d.stored(), d.table)
	case 4:
		d.low = g.bits("lownibbles", 0x0f0f0f0f, g.YMM())
	case 8:
		d.sign = g.bits("bytesigns", 0x80808080, g.YMM())
	}
	passes := [][]int{{0, 1}}
	if d.bits == 3 && d.mr > 2 {
		passes = [][]int{{0}, {1}}
	}
	d.eachTile(func() {
		for i, halves := range passes {
			d.halves = halves
			if i > 0 {
				d.rewind()
			}
			d.narrowPass([]string{"", "2"}[i])
		}
	})
}

// rewind goes back to the start of the tile.
func (d *qdotTile) rewind() {
	g := d.isa
	// A column is the bits of each of 16 rows, two bytes for each bit; g is 4 bytes a group,
	// whose scales are 32.
	g.IMUL3Q(operand.I8(int8(2*d.bits)), d.k, d.k)
	g.SUBQ(d.k, d.q)
	g.SHLQ(operand.U8(3), d.g)
	g.SUBQ(d.g, d.s)
}

func (d *qdotTile) narrowPass(suffix string) {
	g := d.isa
	d.accumulator = make([][]reg.VecVirtual, d.mr)
	zero := g.YMM()
	g.zero(zero)
	for m := range d.accumulator {
		d.accumulator[m] = g.vecs(len(d.halves))
		out := d.outAt(m)
		for _, half := range d.halves {
			g.VMOVUPS(zero, out.Offset(32*half))
		}
	}
	step := map[int]func(){3: d.narrowStep3, 4: d.narrowStep4, 8: d.narrowStep8}[d.bits]
	d.eachGroup(suffix, d.narrowStart, step, d.narrowFinish)
}

func (d *qdotTile) narrowStart() {
	for m, acc := range d.accumulator {
		if d.bits == 8 {
			d.zero(acc...)
			continue
		}
		bias := d.perGroup(qBias, m)
		for i := range acc {
			d.VPBROADCASTD(bias, acc[i])
			if d.bits == 3 {
				d.VPADDD(acc[i], acc[i], acc[i]) // -16 times the sum
			}
		}
	}
}

// narrowStep4: two products of up to 15*127 meet in a word, eight such words of
// a row in a step: at most 30480.
func (d *qdotTile) narrowStep4() {
	g := d.isa
	words := make([][]reg.VecVirtual, d.mr)
	for m := range words {
		words[m] = g.vecs(len(d.halves))
	}
	for line := range d.lines() {
		low, high := g.vecs(len(d.halves)), g.vecs(len(d.halves))
		for i, half := range d.halves {
			g.VMOVDQU(operand.Mem{Base: d.q, Disp: line*qLine + 32*half}, low[i])
			g.VPSRLW(operand.U8(4), low[i], high[i])
			g.VPAND(d.low, low[i], low[i])
			g.VPAND(d.low, high[i], high[i])
		}
		d.prefetch(line)
		for n, w := range [][]reg.VecVirtual{low, high} {
			for m := range d.mr {
				x := g.YMM()
				g.VPBROADCASTD(d.activations(m, 8*line+4*n), x)
				for i := range d.halves {
					if line == 0 && n == 0 {
						g.VPMADDUBSW(x, w[i], words[m][i])
						continue
					}
					p := g.YMM()
					g.VPMADDUBSW(x, w[i], p)
					g.VPADDW(p, words[m][i], words[m][i])
				}
			}
		}
	}
	for m, acc := range d.accumulator {
		for i := range acc {
			g.VPMADDWD(d.ones, words[m][i], words[m][i])
			g.VPADDD(words[m][i], acc[i], acc[i])
		}
	}
}

// narrowStep8: |w| as the unsigned operand and x with w's sign as the signed
// one, so that two products of a word are at most 2*128*127 = 32512 and nothing
// saturates. Words are added as 32 bits at once.
func (d *qdotTile) narrowStep8() {
	g := d.isa
	for line := range d.lines() {
		w, abs := g.vecs(2), g.vecs(2)
		for half := range 2 {
			g.VPXOR(operand.Mem{Base: d.q, Disp: line*qLine + 32*half}, d.sign, w[half])
			g.VPABSB(w[half], abs[half])
		}
		d.prefetch(line)
		for m, acc := range d.accumulator {
			x := g.YMM()
			g.VPBROADCASTD(d.activations(m, 4*line), x)
			for half := range 2 {
				p := g.YMM()
				g.VPSIGNB(w[half], x, p)
				g.VPMADDUBSW(p, abs[half], p)
				g.VPMADDWD(d.ones, p, p)
				g.VPADDD(p, acc[half], acc[half])
			}
		}
	}
}

func (d *qdotTile) narrowFinish() {
	g := d.isa
	for m, acc := range d.accumulator {
		x := g.YMM()
		g.VBROADCASTSS(d.perGroup(qScale, m), x)
		out := d.outAt(m)
		for i, half := range d.halves {
			scale, sum := g.YMM(), g.YMM()
			d.scales(operand.Mem{Base: d.s, Disp: 16 * half}, scale)
			g.VMULPS(x, scale, scale)
			g.VCVTDQ2PS(acc[i], acc[i])
			g.VMOVUPS(out.Offset(32*half), sum)
			g.VFMADD231PS(scale, acc[i], sum)
			g.VMOVUPS(sum, out.Offset(32*half))
		}
	}
}
