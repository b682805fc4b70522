package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func sorted(m map[string]uint32) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

const (
	low4  = 0x0f0f0f0f
	upper = 0x30303030
)

// blockKinds are described at their declarations in package tensor.
var blockKinds = []*blockKind{
	{
		short: "q4_0", name: "Q4_0", groups: 1, lines: 4, subs: 1, offset: 8, small: 32, fours: true,
		named:  map[string]uint32{"low4": low4},
		scale:  func(d *blockTile, _ int, v reg.VecVirtual) { d.VCVTPH2PS(d.aside(0, 2), v) },
		values: plainNibbles,
	},
	{
		short: "mxfp4", name: "MXFP4", groups: 1, lines: 4, subs: 1, offset: 16, small: 16,
		named:  map[string]uint32{"low4": low4, "leastpower": 0x00400000, "fhalf": math.Float32bits(0.5)},
		scale:  powers,
		values: func(d *blockTile, sub int, use func(reg.VecVirtual, int)) { d.codes(sub, fp4(16), use) },
	},
	nvfp4("nvfp4", "NVFP4", nil), nvfp4("nvfp4Scaled", "NVFP4 with factors", divided),
	{
		short: "fp8", name: "FP8", groups: 4, lines: 8, subs: 1, offset: 128, wideOnly: true, wideValues: true, partial: true, head: 64,
		named: map[string]uint32{"low4": low4, "fp8unit": math.Float32bits(1.0 / 512)},
		header: func(d *blockTile) {
			d.VMOVUPS(d.aside(0, 4), d.d)
			d.VMULPS(d.k("fp8unit"), d.d, d.d)
		},
		scale:  func(d *blockTile, _ int, v reg.VecVirtual) { d.VMOVAPS(d.d, v) },
		values: floats8,
	},
	{
		short: "q4_k", name: "Q4_K", groups: 8, lines: 4, subs: 1, mins: true, head: 256, fours: true,
		named:  map[string]uint32{"low4": low4, "upper": upper},
		header: scalesAndMins, scale: bytesOfScratch, values: plainNibbles,
	},
	{
		short: "q5_k", name: "Q5_K", groups: 8, lines: 5, subs: 1, mins: true, head: 256,
		named:  map[string]uint32{"low4": low4, "upper": upper, "byte16": 0x10101010},
		header: scalesAndMins, scale: bytesOfScratch, values: fifthBits,
	},
	{
		short: "q6_k", name: "Q6_K", groups: 8, lines: 6, subs: 2, offset: 32, head: 32, small: 32,
		named:  map[string]uint32{"low4": low4, "upper": upper},
		header: func(d *blockTile) { d.VCVTPH2PS(d.aside(0, 2), d.d) },
		scale: func(d *blockTile, sub int, v reg.VecVirtual) {
			d.VPMOVSXBD(d.aside(16*sub, 1), v)
			d.VCVTDQ2PS(v, v)
			d.VMULPS(d.d, v, v)
		},
		values: upperBits,
	},
	{
		short: "iq4_xs", name: "IQ4_XS", groups: 8, lines: 4, subs: 1, offset: 128, wideOnly: true, head: 128,
		named:  map[string]uint32{"low4": low4, "upper": upper},
		header: smallScales,
		scale: func(d *blockTile, _ int, v reg.VecVirtual) {
			d.VPMOVSXBD(d.inScratch(0), v)
			d.VCVTDQ2PS(v, v)
			d.VMULPS(d.d, v, v)
		},
		values: func(d *blockTile, sub int, use func(reg.VecVirtual, int)) {
			offset := 0
			if d.wide() {
				offset = d.offset
			}
			d.codes(sub, iq4(offset), use)
		},
	},
	gridKind("iq2_xxs", "IQ2_XXS", 8, false, 0.125), gridKind("iq2_xs", "IQ2_XS", 8, true, 0.125),
	gridKind("iq3_xxs", "IQ3_XXS", 4, false, 0.25), gridKind("iq3_s", "IQ3_S", 4, true, 1),
}

// panelKinds are panels that blocks were unpacked to: signed bytes in the order of use, then
// float32 scales and minima [16 rows].
var panelKinds = []*blockKind{
	panelKind("panel", "a panel", 1, false), panelKind("panelMins", "a panel with minima", 1, true),
	panelKind("panelHalves", "a panel with a scale for 16 columns", 2, false), panelKind("panelDigits", "a panel of values of several bytes", 1, false),
}

func panelKind(short, name string, subs int, mins bool) *blockKind {
	return &blockKind{
		short: short, name: name, groups: 1, lines: 8, subs: subs, offset: 128, wideOnly: true, mins: mins, panel: true,
		wideValues: short == "panelDigits",
		named:      map[string]uint32{"bytesign": 0x80808080},
		scale:      func(d *blockTile, sub int, v reg.VecVirtual) { d.VMOVUPS(d.aside(64*sub, 4), v) },
		values: func(d *blockTile, sub int, use func(reg.VecVirtual, int)) {
			for plane := d.width() - 1; plane >= 0; plane-- {
				for four := 8 / d.subs * sub; four < 8/d.subs*(sub+1); four++ {
					w := d.vec()
					if d.wide() { // products want them unsigned
						d.VPXORD(d.line(8*plane+four), d.k("bytesign"), w)
					} else {
						d.VMOVUPS(d.line(8*plane+four), w)
					}
					use(w, 8*plane+four)
				}
				if plane > 0 && d.wide() {
					d.horner(sub)
				}
			}
		},
	}
}

// nvfp4 is NVFP4 with or without factors.
func nvfp4(short, name string, factors func(d *blockTile)) *blockKind {
	return &blockKind{
		short: short, name: name, groups: 1, lines: 4, subs: 2, offset: 16, small: 32, factors: factors,
		named: map[string]uint32{"low4": low4, "f128": math.Float32bits(128)},
		scale: func(d *blockTile, sub int, v reg.VecVirtual) {
			half := v.AsY().(reg.VecVirtual)
			if !d.wide() {
				half = v.AsX().(reg.VecVirtual)
			}
			d.VPMOVZXBW(d.aside(16*sub, 1), half)
			d.VPSLLW(operand.U8(7), half, half)
			d.VCVTPH2PS(half, v)
			d.VMULPS(d.k("f128"), v, v)
			if factors != nil { // the quotient is corrected by what is left of v
				q := d.vec()
				d.VMULPS(d.times, v, q)
				d.VFNMADD231PS(d.over, q, v)
				d.VFMADD132PS(d.again, q, v)
			}
		},
		values: func(d *blockTile, sub int, use func(reg.VecVirtual, int)) { d.codes(sub, fp4(16), use) },
	}
}

// divided reads NVFP4's factors. A scale s times one is s*times; s over a negative one's magnitude is
// q = s*times corrected by (s - q*over)*again, which rounds as a division does (Markstein, IBM J. Res.
// Dev. 34(1), 1990).
func divided(d *blockTile) {
	f, size, over, sign := d.vec(), d.vec(), d.vec(), d.vec()
	d.times, d.over, d.again = d.vec(), size, d.vec()
	d.VMOVUPS(d.aside(0, 4), f)
	d.and(d.repeated("magnitude", 0x7fffffff), f, size)
	d.VBROADCASTSS(d.isa.table("one", []uint32{math.Float32bits(1)}), over)
	d.VDIVPS(size, over, over)
	d.VPSRAD(operand.U8(31), f, sign)
	d.and(over, sign, d.again)
	if d.wide() {
		d.VPANDND(f, sign, sign)
	} else {
		d.VPANDN(f, sign, sign)
	}
	d.or2(d.again, sign, d.times)
	d.ADDQ(operand.I32(64), d.s)
}

// floats8 unpacks FP8 to digits (see width).
func floats8(d *blockTile, sub int, use func(reg.VecVirtual, int)) {
	if !d.wide() {
		d.floats8(use)
		return
	}
	zero := d.ZMM()
	d.VPXORD(zero, zero, zero)
	for plane := unitDigits - 1; plane >= 0; plane-- {
		table := make([]uint32, 32)
		for i := range 128 {
			table[i/4] |= uint32(fp8Integer(i)>>(7*plane)&127+128) << (i % 4 * 8)
		}
		digits := d.isa.table(fmt.Sprintf("fp8digits%d", plane), table)
		first := d.loaded(digits)
		for four := range 8 {
			w, minus := d.ZMM(), d.K()
			d.VMOVDQU64(d.line(four), w)
			d.VPMOVB2M(w, minus)
			d.VPERMI2B(digits.Offset(64), first, w)
			d.VPSUBB(w, zero, minus, w)
			use(w, 8*plane+four)
		}
		if plane > 0 && !d.unpack {
			d.horner(sub)
		}
	}
}

// fp8Integer is a float of 7 bits in the unit of the type, 2^-9.
func fp8Integer(code int) int {
	if e := code >> 3; e > 0 {
		return (8 + code&7) << (e - 1)
	}
	return code
}

// floats8 is the form of AVX2. The integer of a code is one of the low four bits n, t(n) = 8+n or 2n,
// moved by twice the three bits h above less one; for h = 0 it is n. Two h share a plane, whose unit is
// the lower's.
func (d *blockTile) floats8(use func(reg.VecVirtual, int)) {
	var once, four [16]int
	for n := range 16 {
		if once[n] = 8 + n; n >= 8 {
			once[n] = 2 * n
		}
		four[n] = 4 * once[n]
	}
	lookup := func(name string, table [16]int, index reg.VecVirtual) reg.VecVirtual {
		v := d.loaded(d.repeated(name, table16(table, 0)...))
		d.VPSHUFB(index, v, v)
		return v
	}
	for line := range 8 {
		code, low, odd := d.vec(), d.vec(), d.vec()
		d.VMOVUPS(d.line(line), code)
		d.and(d.k("low4"), code, low)
		d.VPSLLW(operand.U8(3), code, odd) // bit 4 of a byte on top
		high := d.shifted(code, -4)
		d.VPAND(d.repeated("low3", 0x07070707), high, high)
		value, least := lookup("fp8once", once, low), d.vec()
		d.VPADDB(value, value, least)
		d.VPBLENDVB(odd, least, low, least)
		d.VPBLENDVB(odd, lookup("fp8four", four, low), value, value)
		d.VPOR(d.repeated("byteone", 0x01010101), code, code) // its sign, never zero
		d.VPSIGNB(code, value, value)
		d.VPSIGNB(code, least, least)
		for plane := range planeUnits {
			var in [16]int
			in[2*plane], in[2*plane+1] = 255, 255
			w := lookup(fmt.Sprintf("fp8plane%d", plane), in, high)
			if plane == 0 {
				d.VPAND(least, w, w)
			} else {
				d.VPAND(value, w, w)
			}
			use(w, 8*plane+line)
		}
	}
}

// nibbles unpacks the lines of sub: the low and the high half of a line.
func (d *blockTile) nibbles(sub int, each func(w reg.VecVirtual, line int)) {
	from, to := 0, 4
	if d.subs == 2 {
		from, to = 2*sub, 2*sub+2
	}
	for line := from; line < to; line++ {
		w := d.vec()
		d.VMOVUPS(d.line(line), w)
		each(w, line)
	}
}

// halves are the low and the high nibbles of a line.
func (d *blockTile) halves(w reg.VecVirtual) [2]reg.VecVirtual {
	low := d.vec()
	d.and(d.k("low4"), w, low)
	high := d.shifted(w, -4)
	d.and(d.k("low4"), high, high)
	return [2]reg.VecVirtual{low, high}
}

func plainNibbles(d *blockTile, sub int, use func(reg.VecVirtual, int)) {
	d.nibbles(sub, func(w reg.VecVirtual, line int) {
		for i, v := range d.halves(w) {
			use(v, 2*line+i)
		}
	})
}

// codes looks nibbles up in a table of 16 bytes.
func (d *blockTile) codes(sub int, table []uint32, use func(reg.VecVirtual, int)) {
	t := d.loaded(d.repeated(d.short+"codes", table...))
	d.nibbles(sub, func(w reg.VecVirtual, line int) {
		if d.wide() { // the upper bits of an index do not matter: the table repeats
			low, high := d.vec(), d.shifted(w, -4)
			d.VPERMB(t, w, low)
			d.VPERMB(t, high, high)
			use(low, 2*line)
			use(high, 2*line+1)
			return
		}
		for i, v := range d.halves(w) {
			d.VPSHUFB(v, t, v)
			use(v, 2*line+i)
		}
	})
}

// table16 packs 16 bytes.
func table16(values [16]int, offset int) []uint32 {
	words := make([]uint32, 4)
	for i, v := range values {
		words[i/4] |= uint32(uint8(v+offset)) << (i % 4 * 8)
	}
	return words
}

func fp4(offset int) []uint32 {
	return table16([16]int{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}, offset)
}

func iq4(offset int) []uint32 {
	return table16([16]int{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}, offset)
}

// fifthBits adds 16 where a bit of the line of fifth bits is set.
func fifthBits(d *blockTile, sub int, use func(reg.VecVirtual, int)) {
	d.line(4)
	plainNibbles(d, sub, func(w reg.VecVirtual, four int) {
		word := operand.Mem{Base: d.q, Disp: 4*64 + 8*four + 4*d.half}
		if d.wide() {
			k := d.K()
			d.KMOVQ(word, k)
			d.VPADDB(d.k("byte16").(reg.VecVirtual), w, k, w)
		} else {
			set := d.spreadBits(word)
			d.VPAND(d.k("byte16"), set, set)
			d.VPOR(set, w, w)
		}
		use(w, four)
	})
}

// spreadBits makes 32 bytes of 32 bits: all ones where a bit is set.
func (g *isa) spreadBits(word operand.Mem) reg.VecVirtual {
	v := g.YMM()
	one := g.table("bitofbyte", []uint32{0x08040201, 0x80402010, 0x08040201, 0x80402010, 0x08040201, 0x80402010, 0x08040201, 0x80402010})
	g.VPBROADCASTD(word, v)
	g.VPSHUFB(g.table("byteofbit", []uint32{0, 0, 0x01010101, 0x01010101, 0x02020202, 0x02020202, 0x03030303, 0x03030303}), v, v)
	g.VPAND(one, v, v)
	g.VPCMPEQB(one, v, v)
	return v
}

// upperBits adds two bits from two more lines.
func upperBits(d *blockTile, sub int, use func(reg.VecVirtual, int)) {
	more := d.vec()
	d.VMOVUPS(d.line(4+sub), more)
	plainNibbles(d, sub, func(w reg.VecVirtual, four int) {
		left := 4 - 2*(four%4)
		bits := d.shifted(more, left)
		if left == 0 {
			bits = d.vec()
			d.VMOVUPS(more, bits)
		}
		d.andOr(bits, d.k("upper"), w)
		use(w, four)
	})
}

// bytesOfScratch are unsigned scales that the header unpacked.
func bytesOfScratch(d *blockTile, _ int, v reg.VecVirtual) {
	d.VPMOVZXBD(d.inScratch(0), v)
	d.VCVTDQ2PS(v, v)
	d.VMULPS(d.d, v, v)
}

// scalesAndMins unpacks the eight scales and minima of a block: tensor's scalesAndMins.
func scalesAndMins(d *blockTile) {
	g := d.isa
	g.VCVTPH2PS(d.aside(0, 2), d.d)
	g.VCVTPH2PS(d.aside(32, 2), d.dmin)
	for at := 0; at < 64; at += g.bytes() {
		more := g.loaded(operand.Mem{Base: d.s, Disp: 192 + at})
		for i, from := range []int{64, 128} {
			part := g.loaded(operand.Mem{Base: d.s, Disp: from + at})
			for high, v := range d.halves(part) {
				left := 4 - 4*i - 2*high
				bits := g.shifted(more, left)
				if left == 0 {
					bits = g.vec()
					g.VMOVUPS(more, bits)
				}
				g.andOr(bits, d.k("upper"), v)
				g.VMOVUPS(v, d.scratch.Offset(128*i+64*high+at))
			}
		}
	}
}

// smallScales unpacks the scales of IQ4_XS, 32 bytes (two groups) at a time.
func smallScales(d *blockTile) {
	g := d.isa
	g.VCVTPH2PS(d.aside(0, 2), d.d)
	nibble, two, less := g.repeatedY("low4", low4), g.repeatedY("upper", upper), g.repeatedY("less32", 0x20202020)
	more := g.YMM()
	g.VMOVDQU(operand.Mem{Base: d.s, Disp: 96}, more)
	for pair := range 4 {
		v, bits := g.YMM(), g.YMM()
		g.VMOVDQU(operand.Mem{Base: d.s, Disp: 32 + pair%2*32}, v)
		if pair >= 2 {
			g.VPSRLW(operand.U8(4), v, v)
		}
		g.VPAND(nibble, v, v)
		switch left := 4 - 2*pair; {
		case left > 0:
			g.VPSLLW(operand.U8(uint8(left)), more, bits)
		case left < 0:
			g.VPSRLW(operand.U8(uint8(-left)), more, bits)
		default:
			g.VMOVDQA(more, bits)
		}
		g.VPAND(two, bits, bits)
		g.VPOR(bits, v, v)
		g.VPSUBB(less, v, v)
		g.VMOVDQU(v, d.scratch.Offset(32*pair))
	}
}

// repeatedY is a constant of 32 bytes.
func (g *isa) repeatedY(name string, value uint32) operand.Mem {
	return g.table("y"+name, []uint32{value, value, value, value, value, value, value, value})
}

// powers are the scales of MXFP4, half of 2^(e-127). Exponent bits e are that power, but for e = 0,
// whose power is subnormal.
func powers(d *blockTile, _ int, v reg.VecVirtual) {
	g := d.isa
	g.VPMOVZXBD(d.aside(0, 1), v)
	g.VPSLLD(operand.U8(23), v, v)
	g.VPMAXUD(d.k("leastpower"), v, v)
	g.VMULPS(d.k("fhalf"), v, v)
}

// skips reports whether AVX-VNNI leaves the products of a kind to AVX2: those with tables of many columns and
// with values of several bytes would gain little.
func (g *isa) skips(kind *blockKind) bool { return g.vnni() && (kind.lines < 4 || kind.wideValues) }

// floats is the number of scales and minima of a group.
func (d *blockKind) floats() int {
	if d.mins {
		return d.subs + 1
	}
	return d.subs
}
