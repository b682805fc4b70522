package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// store reduces the accumulators and writes mr x nr results.
func (d *dotTile) store(acc [][]reg.VecVirtual, nr int) {
	switch {
	case !d.wide():
		d.storeNarrow(acc, nr)
	case nr == 8:
		d.storeEight(acc[0])
	case nr == 4:
		d.storeFour(acc)
	default:
		d.storeOne(acc)
	}
}

// result is the address of this step's result of row m and the first part.
func (d *dotTile) result(m int) reg.GPVirtual {
	p := d.GP64()
	d.MOVQ(operand.Mem{Base: d.t, Disp: tileOut + 8*m}, p)
	d.ADDQ(d.out, p)
	return p
}

// gaps are one and three times the distance of the results of two parts.
func (d *dotTile) gaps() (one, three reg.GPVirtual) {
	one, three = d.GP64(), d.GP64()
	d.MOVQ(d.gap, one)
	d.LEAQ(operand.Mem{Base: one, Index: one, Scale: 2}, three)
	return one, three
}

// lane writes element i of an XMM register.
func (d *dotTile) lane(i int, x reg.VecVirtual, to operand.Mem) {
	if i == 0 {
		d.VMOVSS(x, to)
	} else {
		d.VEXTRACTPS(operand.U8(uint64(i)), x, to)
	}
}

// place is the result of part n, p being that of part 0.
func place(p, one, three reg.GPVirtual, n int) operand.Mem {
	switch n {
	case 0:
		return operand.Mem{Base: p}
	case 1:
		return operand.Mem{Base: p, Index: one, Scale: 1}
	case 2:
		return operand.Mem{Base: p, Index: one, Scale: 2}
	}
	return operand.Mem{Base: p, Index: three, Scale: 1}
}

// The sum of lanes is one tree in all shapes: i and i+8, then i+4, i+2, i+1.
// pair does the first step for two accumulators, quad the second for four:
// its 128-bit lane j holds the four partial sums of accumulator j.
func (d *dotTile) pair(a, b reg.VecVirtual) reg.VecVirtual {
	lo, hi := d.ZMM(), d.ZMM()
	d.VSHUFF64X2(operand.U8(0x44), b, a, lo)
	d.VSHUFF64X2(operand.U8(0xee), b, a, hi)
	d.VADDPS(hi, lo, lo)
	return lo
}

func (d *dotTile) quad(a []reg.VecVirtual) reg.VecVirtual {
	ab := d.pair(a[0], a[1])
	cd := d.pair(a[2], a[3])
	lo, hi := d.ZMM(), d.ZMM()
	d.VSHUFF64X2(operand.U8(0x88), cd, ab, lo)
	d.VSHUFF64X2(operand.U8(0xdd), cd, ab, hi)
	d.VADDPS(hi, lo, lo)
	return lo
}

// third does the third step for two quads: in every 128-bit lane two partial
// sums of a, then two of b.
func (d *dotTile) third(a, b reg.VecVirtual) reg.VecVirtual {
	lo, hi := d.ZMM(), d.ZMM()
	d.VUNPCKLPD(b, a, lo)
	d.VUNPCKHPD(b, a, hi)
	d.VADDPS(hi, lo, lo)
	return lo
}

// fourth does the last step: in every 128-bit lane a, a', b, b'.
func (d *dotTile) fourth(a, b reg.VecVirtual) reg.VecVirtual {
	lo, hi := d.ZMM(), d.ZMM()
	d.VSHUFPS(operand.U8(0x88), b, a, lo)
	d.VSHUFPS(operand.U8(0xdd), b, a, hi)
	d.VADDPS(hi, lo, lo)
	return lo
}

// storeEight: 128-bit lane j of the last step begins with the results of parts
// j and j+4.
func (d *dotTile) storeEight(a []reg.VecVirtual) {
	sums := d.third(d.quad(a[:4]), d.quad(a[4:]))
	sums = d.fourth(sums, sums)
	p, p4 := d.result(0), d.GP64()
	one, three := d.gaps()
	d.LEAQ(operand.Mem{Base: p, Index: one, Scale: 4}, p4)
	for j := range 4 {
		x := d.XMM()
		d.VEXTRACTF32X4(operand.U8(uint64(j)), sums, x)
		d.lane(0, x, place(p, one, three, j))
		d.lane(1, x, place(p4, one, three, j))
	}
}

// storeFour: 128-bit lane m of the last step holds the four results of row m.
func (d *dotTile) storeFour(acc [][]reg.VecVirtual) {
	var columns []reg.VecVirtual
	for n := range 4 {
		columns = append(columns, d.quad(d.column(acc, n)))
	}
	sums := d.fourth(d.third(columns[0], columns[1]), d.third(columns[2], columns[3]))
	if d.near {
		for m := range d.mr {
			d.VEXTRACTF32X4(operand.U8(uint64(m)), sums, operand.Mem{Base: d.result(m)})
		}
		return
	}
	one, three := d.gaps()
	for m := range d.mr {
		p, x := d.result(m), d.XMM()
		d.VEXTRACTF32X4(operand.U8(uint64(m)), sums, x)
		for n := range 4 {
			d.lane(n, x, place(p, one, three, n))
		}
	}
}

func (d *dotTile) storeOne(acc [][]reg.VecVirtual) {
	sums := d.quad(d.column(acc, 0))
	sums = d.third(sums, sums)
	sums = d.fourth(sums, sums)
	for m := range d.mr {
		x := d.XMM()
		d.VEXTRACTF32X4(operand.U8(uint64(m)), sums, x)
		d.lane(0, x, operand.Mem{Base: d.result(m)})
	}
}

// column is accumulator n of four rows; rows that the tile lacks repeat row 0.
func (d *dotTile) column(acc [][]reg.VecVirtual, n int) []reg.VecVirtual {
	four := make([]reg.VecVirtual, 4)
	for m := range four {
		four[m] = acc[0][n]
		if m < d.mr {
			four[m] = acc[m][n]
		}
	}
	return four
}

// storeNarrow is the AVX2 form: four accumulators at a time become four
// results in one XMM register, in the order given.
func (d *dotTile) storeNarrow(acc [][]reg.VecVirtual, nr int) {
	type result struct{ m, n int }
	var all []reg.VecVirtual
	var results []result
	for m := range d.mr {
		for n := range nr {
			all, results = append(all, acc[m][n]), append(results, result{m, n})
		}
	}
	var one, three reg.GPVirtual
	if !d.near {
		one, three = d.gaps()
	}
	for i := 0; i < len(all); i += 4 {
		four := append([]reg.VecVirtual(nil), all[i:min(i+4, len(all))]...)
		have := len(four)
		for len(four) < 4 {
			four = append(four, four[0])
		}
		sums := d.sumNarrow(four)
		if d.near {
			d.storeNear(sums, results[i].m, have, nr)
			continue
		}
		var p reg.GPVirtual
		for j, r := range results[i : i+have] {
			if j == 0 || r.n == 0 {
				p = d.result(r.m)
			}
			if j == 0 && r.n == 4 {
				d.LEAQ(operand.Mem{Base: p, Index: one, Scale: 4}, p)
			}
			d.lane(j, sums, place(p, one, three, r.n%4))
		}
	}
}

// storeNear writes four results of row m, or two of m and two of the next row.
func (d *dotTile) storeNear(sums reg.VecVirtual, m, have, nr int) {
	if nr == 4 {
		d.VMOVUPS(sums, operand.Mem{Base: d.result(m)})
		return
	}
	d.VMOVLPS(sums, operand.Mem{Base: d.result(m)})
	if have > 2 {
		d.VMOVHPS(sums, operand.Mem{Base: d.result(m + 1)})
	}
}

// sumNarrow: lanes i and i+4, then i+2, then i+1, of four accumulators.
func (d *dotTile) sumNarrow(a []reg.VecVirtual) reg.VecVirtual {
	pair := func(p, q reg.VecVirtual) reg.VecVirtual { // [p p p p | q q q q]
		lo, hi := d.YMM(), d.YMM()
		d.VPERM2F128(operand.U8(0x20), q, p, lo)
		d.VPERM2F128(operand.U8(0x31), q, p, hi)
		d.VADDPS(hi, lo, lo)
		return lo
	}
	ac, bd := pair(a[0], a[1]), pair(a[2], a[3])
	lo, hi := d.YMM(), d.YMM()
	d.VUNPCKLPD(bd, ac, lo)
	d.VUNPCKHPD(bd, ac, hi)
	d.VADDPS(hi, lo, lo) // [a a c c | b b d d]
	even, odd := d.YMM(), d.YMM()
	d.VSHUFPS(operand.U8(0x88), lo, lo, even)
	d.VSHUFPS(operand.U8(0xdd), lo, lo, odd)
	d.VADDPS(odd, even, even) // [a c a c | b d b d]
	upper, sums := d.XMM(), d.XMM()
	d.VEXTRACTF128(operand.U8(1), even, upper)
	d.VUNPCKLPS(upper, even.AsX(), sums) // a b c d
	return sums
}
