package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// INT3: 32 columns are three lines (kernels/tensor/int3.go). Three bits of a byte at a time are the
// index of a byte shuffle, whose table has the stored weights: the shuffle looks at the low four
// bits, and the table has its eight entries twice. Bit 7 of an index has to be zero.

// int3Levels are the integers of the codes 0, 1, ...
var int3Levels = [8]int{0, 3, 7, 12, -16, -10, -6, -3}

// int3Table is the table of a shuffle, with something added to each integer.
func (g *isa) int3Table(name string, add int, to reg.Register) {
	var words [16]uint32
	for i := range 64 {
		words[i/4] |= uint32(byte(int3Levels[i%8]+add)) << (i % 4 * 8)
	}
	g.VMOVUPS(g.table(name, words[:]), to)
}

// int3Registers are the registers of int3Wide: lines, an index that becomes weights, and half
// of one; then constants, the low two bits of every byte, the low three, and the table.
type int3Registers struct {
	line              [3]reg.Register
	index, low        reg.Register
	two, three, table reg.Register
}

// int3Wide reads the three lines of a step and calls use for n = 0..7, with the weights of columns
// 4n..4n+3 in index.
func (g *isa) int3Wide(at operand.Mem, r int3Registers, prefetch func(line int), use func(n int)) {
	for i, line := range r.line {
		g.VMOVDQU64(at.Offset(i*qLine), line)
		prefetch(i)
		g.VPANDD(r.three, line, r.index)
		g.VPSHUFB(r.index, r.table, r.index)
		use(2 * i)
		g.VPSRLD(operand.U8(3), line, r.index)
		g.VPANDD(r.three, r.index, r.index)
		g.VPSHUFB(r.index, r.table, r.index)
		use(2*i + 1)
	}
	for i, line := range r.line[:2] {
		g.VPSRLD(operand.U8(6), line, r.low)
		g.VPSRLD(operand.U8(uint8(4+i)), r.line[2], r.index)
		g.VPTERNLOGD(operand.U8(0xd8), r.two, r.low, r.index) // bits of two from low, the others from index
		g.VPANDD(r.three, r.index, r.index)
		g.VPSHUFB(r.index, r.table, r.index)
		use(6 + i)
	}
}

func (d *qdotTile) wideStep3() {
	free := d.vecs(5)
	r := int3Registers{line: [3]reg.Register{free[0], free[1], free[2]}, index: free[3], low: free[4], two: d.high, three: d.low, table: d.table}
	d.int3Wide(operand.Mem{Base: d.q}, r, d.prefetch, func(n int) {
		for m, acc := range d.accumulator {
			d.dpb(d.activations(m, 4*n), r.index, acc[n%len(acc)])
		}
	})
}

// narrowStep3: a half of the lines at a time. Two products of up to 28*127 meet in a word, and four
// such words of a row at a time: at most 28448.
func (d *qdotTile) narrowStep3() {
	g := d.isa
	for i, half := range d.halves {
		line := g.vecs(3)
		words := g.vecs(d.mr)
		use := func(n int, w reg.VecVirtual) {
			g.VPSHUFB(w, d.table, w)
			for m := range d.mr {
				p := words[m]
				if n%4 > 0 {
					p = g.YMM()
				}
				g.VPBROADCASTD(d.activations(m, 4*n), p)
				g.VPMADDUBSW(p, w, p)
				if n%4 > 0 {
					g.VPADDW(p, words[m], words[m])
				}
				if n%4 == 3 {
					g.VPMADDWD(d.ones, words[m], words[m])
					g.VPADDD(words[m], d.accumulator[m][i], d.accumulator[m][i])
				}
			}
		}
		for l := range line {
			g.VMOVDQU(operand.Mem{Base: d.q, Disp: l*qLine + 32*half}, line[l])
			if half == d.halves[0] {
				d.prefetch(l)
			}
			w := g.YMM()
			g.VPAND(d.low, line[l], w)
			use(2*l, w)
			w = g.YMM()
			g.VPSRLD(operand.U8(3), line[l], w)
			g.VPAND(d.low, w, w)
			use(2*l+1, w)
		}
		for l := range 2 {
			w := g.YMM()
			g.VPSRLD(operand.U8(uint8(4+l)), line[2], w)
			g.VPSRLD(operand.U8(6), line[l], line[l])
			g.VPAND(d.four(), w, w)
			g.VPAND(d.two(), line[l], line[l])
			g.VPOR(line[l], w, w)
			use(6+l, w)
		}
	}
}

// two and four are the low bits and the high bit of a code in every byte.
func (d *qdotTile) two() operand.Mem  { return d.everywhere("int3two8", 0x03030303) }
func (d *qdotTile) four() operand.Mem { return d.everywhere("int3four8", 0x04040404) }

// everywhere is a constant in all of 32 bytes of memory.
func (g *isa) everywhere(name string, value uint32) operand.Mem {
	return g.table(name, []uint32{value, value, value, value, value, value, value, value})
}
