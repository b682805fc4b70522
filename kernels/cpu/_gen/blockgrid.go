package main

import (
	"fmt"
	"math"

	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// gridKind is an encoding whose columns are rows of a table of 256 (or 512, chosen by a ninth bit),
// eight or four columns wide.
//
// AVX-512 looks 64 rows up at a time. The table is in planes of a byte for each row: codes of two
// columns (of three bits) or of four (of two bits), which a second look-up turns into values. What
// comes out has, for row r of the matrix, the same column of four times eight: activations are
// prepared in that order. A sign turns value+offset into offset-value.
//
// AVX2 loads the rows of the table one by one, or gathers them where a ninth bit chooses.
func gridKind(function, name string, width int, ninth bool, scale float32) *blockKind {
	k := &blockKind{
		short: function, name: name, groups: 8, lines: 2, subs: 1, offset: 64, head: 32,
		named: map[string]uint32{"intone": 1},
	}
	if width == 4 {
		k.lines = 3
	}
	k.header = func(d *blockTile) {
		d.VCVTPH2PS(d.aside(0, 2), d.d)
		d.VMULPS(d.repeated(function+"scale", math.Float32bits(scale)), d.d, d.d)
	}
	k.scale = wordScales
	switch {
	case ninth && width == 8: // IQ2_XS
		k.subs, k.small, k.scale = 2, 16, nibbleScales
		k.named["scalebits"] = 0x1e
	case ninth: // IQ3_S
		k.offset, k.small, k.head = 16, 16, 96
		k.named = map[string]uint32{}
		k.header, k.scale = oddScales, bytesOfScratch
	}
	k.named[fmt.Sprintf("turn%d", k.offset)] = uint32(2*k.offset) * 0x01010101
	k.values = func(d *blockTile, sub int, use func(reg.VecVirtual, int)) {
		if !d.wide() {
			d.tableRows(sub, width, ninth, use)
			return
		}
		d.planes(sub, width, ninth, use)
	}
	return k
}

// wordScales: the upper four bits s of a word of signs, as 2s+1.
func wordScales(d *blockTile, _ int, v reg.VecVirtual) {
	d.VMOVUPS(operand.Mem{Base: d.q, Disp: 64*(d.lines-1) + 32*d.half}, v)
	d.VPSRLD(operand.U8(27), v, v)
	d.or2(d.k("intone"), v, v)
	d.VCVTDQ2PS(v, v)
	d.VMULPS(d.d, v, v)
}

// nibbleScales: four bits s of a byte for each row, as 2s+1.
func nibbleScales(d *blockTile, sub int, v reg.VecVirtual) {
	d.VPMOVZXBD(d.aside(0, 1), v)
	if sub == 0 {
		d.VPSLLD(operand.U8(1), v, v)
	} else {
		d.VPSRLD(operand.U8(3), v, v)
	}
	d.and(d.k("scalebits"), v, v)
	d.or2(d.k("intone"), v, v)
	d.VCVTDQ2PS(v, v)
	d.VMULPS(d.d, v, v)
}

// oddScales unpacks the scales of IQ3_S, 2s+1.
func oddScales(d *blockTile) {
	g := d.isa
	g.VCVTPH2PS(d.aside(0, 2), d.d)
	for at := 0; at < 64; at += g.bytes() {
		part := g.loaded(operand.Mem{Base: d.s, Disp: 32 + at})
		for high, left := range []int{1, -3} {
			v := g.shifted(part, left)
			g.and(g.repeated("bytescale", 0x1e1e1e1e), v, v)
			g.or2(g.repeated("byteodd", 0x01010101), v, v)
			g.VMOVUPS(v, d.scratch.Offset(64*high+at))
		}
	}
}

// planes is the form of AVX-512.
func (d *blockTile) planes(sub, width int, ninth bool, use func(reg.VecVirtual, int)) {
	if sub == 1 { // what the first columns left
		for pair, w := range d.kept {
			use(w, 4+pair)
		}
		return
	}
	g := d.isa
	signs, ninths := d.signBits(width, ninth)
	rows := 256
	if ninth {
		rows = 512
	}
	odd := g.K() // words
	if d.subs == 2 {
		g.KMOVD(d.tmp32(0xaaaaaaaa), odd)
	}
	column := func(w reg.VecVirtual, i int) {
		k := g.K()
		g.VPTESTMB(g.repeated(fmt.Sprintf("sign%d", i), 0x01010101<<i), signs, k)
		g.VPSUBB(w, d.fixed[fmt.Sprintf("turn%d", d.offset)], k, w)
	}
	var before reg.VecVirtual
	d.kept = nil
	give := func(w reg.VecVirtual, i int) {
		column(w, i)
		switch {
		case d.subs == 1:
			use(w, i)
		case i%2 == 0:
			before = w
		default: // columns of two rows of the table, of two: to first and second 16 columns
			first, second := g.ZMM(), g.ZMM()
			g.VPSLLD(operand.U8(16), w, first)
			g.VPBLENDMW(first, before, odd, first)
			g.VPSRLD(operand.U8(16), before, second)
			g.VPBLENDMW(w, second, odd, second)
			use(first, i/2)
			d.kept = append(d.kept, second)
		}
	}
	last := 2 * rows // of the planes: the tables of codes follow
	code := func(n int) operand.Mem { return operand.Mem{Base: d.table, Disp: last + 64*n} }
	for line := range d.lines - 1 {
		index := g.ZMM()
		g.VMOVDQU64(d.line(line), index)
		var k9 reg.OpmaskVirtual
		if ninth {
			k9 = ninths[line]
		}
		for plane := range 2 {
			codes := d.lookup(index, k9, plane*rows, ninth)
			for i := range width / 2 {
				v := g.ZMM()
				if i < 3 {
					g.VPERMB(code(i), codes, v)
				} else {
					g.VPSRLW(operand.U8(6), codes, v)
					g.VPERMB(code(0), v, v)
				}
				give(v, 4*line+width/2*plane+i)
			}
		}
	}
}

// signBits are a byte of signs for each eight columns, and the ninth bits of the rows of each line.
func (d *blockTile) signBits(width int, ninth bool) (signs reg.VecVirtual, ninths []reg.OpmaskVirtual) {
	g := d.isa
	signs = g.ZMM()
	g.VMOVDQU64(d.line(d.lines-1), signs)
	if ninth && width == 8 {
		bits, k := g.ZMM(), g.K()
		g.VPMULTISHIFTQB(signs, g.loaded(g.repeated("ninthshift", 0x1c1c1c1c, 0x3c3c3c3c)), bits)
		g.VPTESTMB(g.repeated("ninthbit", 0x08040201), bits, k)
		ninths = append(ninths, k)
	} else if ninth {
		for i := range 2 {
			k := g.K()
			g.KMOVQ(operand.Mem{Base: d.s, Disp: 8 * i}, k)
			ninths = append(ninths, k)
		}
	}
	if d.short != "iq3_s" { // seven bits, and the eighth makes their number even
		g.VPMULTISHIFTQB(signs, g.loaded(g.repeated("signshift", 0x150e0700, 0x352e2720)), signs)
		g.affine(g.repeated("parity", 0x1020407f, 0x01020408), signs, signs)
	}
	return signs, ninths
}

// lookup finds 64 bytes in a table of 256 or 512.
func (d *blockTile) lookup(index reg.VecVirtual, k9 reg.OpmaskVirtual, at int, ninth bool) reg.VecVirtual {
	g := d.isa
	k := g.K()
	g.VPMOVB2M(index, k)
	quarter := func(at int) reg.VecVirtual {
		v := g.ZMM()
		g.VMOVDQU64(operand.Mem{Base: d.table, Disp: at}, v)
		g.VPERMT2B(operand.Mem{Base: d.table, Disp: at + 64}, index, v)
		return v
	}
	half := func(at int) reg.VecVirtual {
		v, w := quarter(at), quarter(at+128)
		g.VPBLENDMB(w, v, k, v)
		return v
	}
	v := half(at)
	if ninth {
		g.VPBLENDMB(half(at+256), v, k9, v)
	}
	return v
}

// tableRows is the form of AVX2.
func (d *blockTile) tableRows(sub, width int, ninth bool, use func(reg.VecVirtual, int)) {
	g := d.isa
	raw, signs := g.YMM(), g.YMM()
	g.VMOVDQU(d.line(d.lines-1), raw)
	if d.short == "iq3_s" {
		g.VMOVDQA(raw, signs)
	} else {
		d.evenSigns(raw, signs)
	}
	from, to := 0, 4
	if d.subs == 2 {
		from, to = 2*sub, 2*sub+2
	}
	rows := d.loadedRows
	if ninth {
		rows = d.gatheredRows
	}
	for line := range d.lines - 1 {
		d.line(line) // asks for the one ahead
		for c := from; c < to; c++ {
			for part, w := range rows(raw, c, line, width) {
				d.turn(w, signs, c, line+part)
				use(w, 2*c+line+part)
			}
		}
	}
}

// gatheredRows looks up the rows of the table for byte c of a line: vectors of four columns of eight rows
// of the matrix.
func (d *blockTile) gatheredRows(raw reg.VecVirtual, c, line, width int) (list []reg.VecVirtual) {
	g := d.isa
	index := d.index(raw, c, line, width)
	for part := range width / 4 {
		w, all := g.YMM(), g.YMM()
		g.zero(w, all)
		g.VPCMPEQD(all, all, all)
		g.VPGATHERDD(all, operand.Mem{Base: d.table, Index: index, Scale: uint8(width), Disp: 4 * part}, w)
		list = append(list, w)
	}
	return list
}

// loadedRows does so by a load for each row: 1.3 to 1.8 times as fast where a byte is the whole index.
func (d *blockTile) loadedRows(_ reg.VecVirtual, c, line, width int) []reg.VecVirtual {
	g := d.isa
	row := func(r int) operand.Mem {
		g.MOVBLZX(operand.Mem{Base: d.q, Disp: 64*line + 32*d.half + 4*r + c}, d.tmp.As32())
		return operand.Mem{Base: d.table, Index: d.tmp, Scale: uint8(width)}
	}
	some := func(first int) reg.VecVirtual { // 16 bytes of rows
		x := g.XMM()
		if width == 8 {
			g.VMOVQ(row(first), x)
			g.VMOVHPS(row(first+1), x, x)
			return x
		}
		g.VMOVD(row(first), x)
		for i := range 3 {
			g.VPINSRD(operand.U8(uint8(i+1)), row(first+i+1), x, x)
		}
		return x
	}
	pair := func(low, high int) reg.VecVirtual {
		v := some(low)
		g.insertUpper(some(high), v)
		return v.AsY().(reg.VecVirtual)
	}
	if width == 4 {
		return []reg.VecVirtual{pair(0, 4)}
	}
	even, odd := pair(0, 4), pair(2, 6)
	first, second := g.YMM(), g.YMM()
	g.VSHUFPS(operand.U8(0x88), odd, even, first)
	g.VSHUFPS(operand.U8(0xdd), odd, even, second)
	return []reg.VecVirtual{first, second}
}

// index is a row of the table for each row of the matrix: byte c of a line, and a ninth bit.
func (d *blockTile) index(raw reg.VecVirtual, c, line, width int) reg.VecVirtual {
	g := d.isa
	v, bit := g.YMM(), g.YMM()
	g.VMOVDQU(operand.Mem{Base: d.q, Disp: 64*line + 32*d.half}, v)
	g.VPSRLD(operand.U8(uint8(8*c)), v, v)
	g.VPAND(g.repeated("lowbyte", 0xff), v, v)
	if width == 8 {
		g.VPSRLD(operand.U8(uint8(20+c)), raw, bit)
	} else {
		g.VPBROADCASTD(operand.Mem{Base: d.s, Disp: 8*line + 4*d.half}, bit)
		g.VPSRLVD(g.table("nibbleofrow", []uint32{0, 4, 8, 12, 16, 20, 24, 28}), bit, bit)
		g.VPSLLD(operand.U8(uint8(8-c)), bit, bit)
	}
	g.VPAND(g.repeated("ninth", 0x100), bit, bit)
	g.VPOR(bit, v, v)
	return v
}

// turn gives four columns their signs, columns 0 to 3 or (part 1) 4 to 7 of byte c, and the offset.
func (d *blockTile) turn(w, signs reg.VecVirtual, c, part int) {
	g := d.isa
	minus := g.YMM()
	at := uint32(c) * 0x01010101
	g.VPSHUFB(g.repeated(fmt.Sprintf("byte%d", c), at, at+0x04040404, at+0x08080808, at+0x0c0c0c0c), signs, minus)
	bits := g.repeated(fmt.Sprintf("bits%d", part), 0x08040201<<(4*part))
	g.VPAND(bits, minus, minus)
	g.VPCMPEQB(bits, minus, minus)
	g.VPXOR(minus, w, w)
	g.VPSUBB(minus, w, w)
	g.VPADDB(g.repeated(d.short+"offset", uint32(d.offset)*0x01010101), w, w)
}

// evenSigns makes four bytes of four times seven bits: the eighth makes their number even.
func (d *blockTile) evenSigns(raw, signs reg.VecVirtual) {
	g := d.isa
	g.VPAND(g.repeated("seven0", 0x7f), raw, signs)
	for i := 1; i < 4; i++ {
		v := g.YMM()
		g.VPSLLD(operand.U8(uint8(i)), raw, v)
		g.VPAND(g.repeated(fmt.Sprintf("seven%d", i), 0x7f<<(8*i)), v, v)
		g.VPOR(v, signs, signs)
	}
	table := g.loaded(g.repeated("oddones", 0x00808000, 0x80000080, 0x80000080, 0x00808000))
	for _, shift := range []uint8{0, 4} {
		v := g.YMM()
		g.VPSRLW(operand.U8(shift), signs, v)
		g.VPAND(g.repeated("low4", low4), v, v)
		if shift == 4 { // without the bit that was just added
			g.VPAND(g.repeated("low3", 0x07070707), v, v)
		}
		g.VPSHUFB(v, table, v)
		g.VPXOR(v, signs, signs)
	}
}

// tmp32 is a constant in a general register.
func (d *blockTile) tmp32(v uint32) reg.Register {
	r := d.tmp.As32()
	d.MOVL(operand.U32(v), r)
	return r
}

// insertUpper is VINSERTI128 that reads the lower half of v alone: avo would keep the upper half for it.
func (g *isa) insertUpper(upper, v reg.VecVirtual) {
	g.Instruction(&ir.Instruction{
		Opcode: "VINSERTI128", Operands: []operand.Op{operand.U8(1), upper, v.AsY(), v.AsY()},
		Inputs: []operand.Op{upper, v}, Outputs: []operand.Op{v.AsY()},
	})
}

// affine is VGF2P8AFFINEQB, which avo does not know: every byte of x times a matrix of bits.
func (g *isa) affine(matrix operand.Mem, x, to reg.Register) {
	g.Instruction(&ir.Instruction{
		Opcode: "VGF2P8AFFINEQB", Operands: []operand.Op{operand.U8(0), matrix, x, to},
		Inputs: []operand.Op{matrix, x}, Outputs: []operand.Op{to},
	})
}
