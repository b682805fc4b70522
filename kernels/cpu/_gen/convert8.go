package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// emitConvert8 writes what moves values to and from 8 bits and fewer.
func emitConvert8(g *isa) {
	emitWidenF8(g)
	emitNarrowF8(g)
	emitQuantI8(g)
	emitWidenI8(g)
	for _, bits := range []int{4, 8} {
		emitColumns(g, bits)
	}
}

// f8small are the magnitudes 0..7 (subnormals m * 2^-9) as BF16.
var f8small = [8]uint32{0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60}

// f8bf16 is a float8 as BF16; the two codes of NaN come out as 480.
func f8bf16(b uint32) uint32 {
	sign, m := b&0x80<<8, b&0x7f
	if m < 8 {
		return sign | f8small[m]
	}
	return sign | m<<4 + 0x3c00 // exponents have biases of 7 and 127
}

// halves is a table of 16-bit values.
func (g *isa) halves(name string, n int, value func(i uint32) uint32) operand.Mem {
	all := make([]uint32, n/2)
	for i := range all {
		all[i] = value(uint32(2*i)) | value(uint32(2*i+1))<<16
	}
	return g.table(name, all)
}

// words is a 16-bit constant in every lane.
func (g *isa) words(name string, value uint32) reg.VecVirtual {
	return g.bits(name, value|value<<16, g.vec())
}

// widenAhead is how many rows ahead memory is asked for, as a power of two.
const widenAhead = 4

// emitWidenF8: a normal number keeps its bits, moved to BF16's place, and gets
// BF16's bias; the eight subnormal magnitudes come from a table.
func emitWidenF8(g *isa) {
	g.function("widenF8", "dst *uint16, src *uint8, n, rows, stride int", "turns rows of n float8 values into BF16.")
	dst, src, n, rows, stride := g.arg("dst"), g.arg("src"), g.arg("n"), g.arg("rows"), g.arg("stride")
	next := g.GP64()
	// Rows lie apart, where the processor sees no stream: those to come are asked for.
	ahead := g.GP64()
	g.MOVQ(stride, ahead)
	g.SHLQ(operand.U8(widenAhead), ahead)
	g.LEAQ(operand.Mem{Base: n, Disp: packBlock - 1}, next)
	g.ANDQ(operand.I32(-packBlock), next)
	g.SHLQ(operand.U8(1), next)
	magnitude, bias, sign := g.words("f8magnitude", 0x7f), g.words("f8bias", 0x3c00), g.words("f8sign", 0x8000)
	body := g.widenF8(magnitude, bias, sign)
	d, s, c := g.GP64(), g.GP64(), g.GP64()
	g.Label("row")
	g.TESTQ(rows, rows)
	g.JLE(operand.LabelRef("done"))
	g.MOVQ(dst, d)
	g.MOVQ(src, s)
	g.MOVQ(n, c)
	half := g.bytes() / 2
	g.loop("vector", c, half, []pointer{{d, 2}, {s, 1}}, 1, func(int) {
		w := g.vec()
		g.PREFETCHT0(operand.Mem{Base: s, Index: ahead, Scale: 1})
		g.VPMOVZXBW(operand.Mem{Base: s}, w)
		g.VMOVUPS(body(w), operand.Mem{Base: d})
	})
	g.TESTQ(c, c)
	g.JZ(operand.LabelRef("next"))
	if g.wide() {
		t, k, part, w := g.GP64(), g.K(), g.YMM(), g.ZMM()
		g.MOVQ(operand.I32(-1), t)
		g.BZHIQ(c, t, t)
		g.KMOVD(t.As32(), k)
		g.VMOVDQU8_Z(operand.Mem{Base: s}, k, part)
		g.VPMOVZXBW(part, w)
		g.VMOVUPS(body(w), operand.Mem{Base: d})
	} else {
		t, i := g.GP64(), g.GP64()
		g.LEAQ(g.halves("f8all", 256, f8bf16), t)
		g.XORQ(i, i)
		g.Label("single")
		code := g.GP64()
		g.MOVBQZX(operand.Mem{Base: s, Index: i, Scale: 1}, code)
		g.MOVWLZX(operand.Mem{Base: t, Index: code, Scale: 2}, code.As32())
		g.MOVW(code.As16(), operand.Mem{Base: d, Index: i, Scale: 2})
		g.INCQ(i)
		g.CMPQ(i, c)
		g.JLT(operand.LabelRef("single"))
	}
	g.Label("next")
	g.ADDQ(next, dst)
	g.ADDQ(stride, src)
	g.DECQ(rows)
	g.JMP(operand.LabelRef("row"))
	g.Label("done")
	g.end()
}

// widenF8 gives what turns a vector of float8 in 16-bit lanes into BF16.
func (g *isa) widenF8(magnitude, bias, sign reg.VecVirtual) func(w reg.VecVirtual) reg.VecVirtual {
	if g.wide() {
		exponent, small := g.words("f8exponent", 0x78), g.ZMM()
		g.VMOVUPS(g.halves("f8smallwords", 32, func(i uint32) uint32 { return f8small[i%8] }), small)
		return func(w reg.VecVirtual) reg.VecVirtual {
			m, v, k := g.ZMM(), g.ZMM(), g.K()
			g.VPANDD(magnitude, w, m)
			g.VPTESTNMW(exponent, w, k)
			g.VPSLLW(operand.U8(4), m, v)
			g.VPADDW(bias, v, v)
			g.VPERMW(small, m, k, v)
			g.VPSLLW(operand.U8(8), w, w)
			g.VPTERNLOGD(operand.U8(0xf8), sign, w, v) // v | w & sign
			return v
		}
	}
	// Bytes m and m+8 of the table are the two of magnitude m.
	eight, both, high, small := g.words("f8eight", 8), g.words("f8both", 0x0101), g.words("f8high", 0x0800), g.YMM()
	g.VMOVUPS(g.table("f8smallbytes", append(smallBytes(), smallBytes()...)), small)
	return func(w reg.VecVirtual) reg.VecVirtual {
		m, v, isSmall, index := g.YMM(), g.YMM(), g.YMM(), g.YMM()
		g.VPAND(magnitude, w, m)
		g.VPCMPGTW(m, eight, isSmall)
		g.VPSLLW(operand.U8(4), m, v)
		g.VPADDW(bias, v, v)
		g.VPMULLW(both, m, index)
		g.VPADDW(high, index, index)
		g.VPSHUFB(index, small, index)
		g.VPBLENDVB(isSmall, index, v, v)
		g.VPSLLW(operand.U8(8), w, w)
		g.VPAND(sign, w, w)
		g.VPOR(w, v, v)
		return v
	}
}

// smallBytes are the lower bytes of f8small, then the upper ones.
func smallBytes() []uint32 {
	all := make([]uint32, 4)
	for m, v := range f8small {
		all[m/4] |= v & 0xff << (m % 4 * 8)
		all[2+m/4] |= v >> 8 << (m % 4 * 8)
	}
	return all
}

const (
	f8top    = 0x43e00000 // 448
	f8normal = 0x3c800000 // 2^-6
	f8half   = 0x7ffff    // of what is cut, less the lowest bit
	f8rebias = (127 - 7) << 3
	f8magic  = 0x46800000 // 2^14, whose last bit is 2^-9
)

// emitNarrowF8: a normal number is rounded by adding half of what is cut and its
// lowest bit; a subnormal one by adding 2^14, which leaves multiples of 2^-9.
func emitNarrowF8(g *isa) {
	g.function("narrowF8", "dst *uint8, src *float32, n int", "rounds n values to float8.")
	dst, src, n := g.arg("dst"), g.arg("src"), g.arg("n")
	c := map[string]reg.VecVirtual{}
	for _, x := range []struct {
		name string
		bits uint32
	}{{"abs", 0x7fffffff}, {"inf", infinityBits}, {"top", f8top}, {"normal", f8normal}, {"half", f8half}, {"rebias", f8rebias},
		{"magic", f8magic}, {"one", 1}, {"sign", 0x80}} {
		c[x.name] = g.bits("narrow8"+x.name, x.bits, g.vec())
	}
	round := func(v reg.VecVirtual) reg.VecVirtual { return g.roundF8(v, c) }
	g.loop("vector", n, g.lanes, []pointer{{dst, 1}, {src, 4}}, 1, func(int) {
		v := g.vec()
		g.VMOVUPS(operand.Mem{Base: src}, v)
		g.storeBytes(round(v), dst)
	})
	g.TESTQ(n, n)
	g.JZ(operand.LabelRef("done"))
	m, v := g.tail(n), g.vec()
	g.loadTail(operand.Mem{Base: src}, m, v)
	g.storeBytesTail("single", round(v), m, n, dst)
	g.Label("done")
	g.end()
}

// roundF8 leaves the float8 of every lane in its low byte.
func (g *isa) roundF8(v reg.VecVirtual, c map[string]reg.VecVirtual) reg.VecVirtual {
	a, r, sub := g.vec(), g.vec(), g.vec()
	if g.wide() {
		number, small := g.K(), g.K()
		g.VPANDD(c["abs"], v, a)
		g.VPCMPUD(operand.U8(2), c["inf"], a, number) // a <= infinity
		g.VPMINUD(c["top"], a, a)
		g.VPCMPUD(operand.U8(1), c["normal"], a, small)
		g.VADDPS(c["magic"], a, sub)
		g.VPSRLD(operand.U8(20), a, r)
		g.VPANDD(c["one"], r, r)
		g.VPADDD(c["half"], r, r)
		g.VPADDD(a, r, r)
		g.VPSRLD(operand.U8(20), r, r)
		g.VPSUBD(c["rebias"], r, r)
		g.VPSUBD(c["magic"], sub, small, r)
		g.VPSRLD(operand.U8(24), v, v)
		g.VPANDD(c["sign"], v, v)
		g.VPORD_Z(v, r, number, r)
		return r
	}
	nan, small := g.vec(), g.vec()
	g.VPAND(c["abs"], v, a)
	g.VPCMPGTD(c["inf"], a, nan)
	g.VPMINUD(c["top"], a, a)
	g.VPCMPGTD(a, c["normal"], small)
	g.VADDPS(c["magic"], a, sub)
	g.VPSRLD(operand.U8(20), a, r)
	g.VPAND(c["one"], r, r)
	g.VPADDD(c["half"], r, r)
	g.VPADDD(a, r, r)
	g.VPSRLD(operand.U8(20), r, r)
	g.VPSUBD(c["rebias"], r, r)
	g.VPSUBD(c["magic"], sub, sub)
	g.VPBLENDVB(small, sub, r, r)
	g.VPSRLD(operand.U8(24), v, v)
	g.VPAND(c["sign"], v, v)
	g.VPOR(v, r, r)
	g.VPANDN(r, nan, r)
	return r
}

// storeBytes stores the low bytes of all lanes.
func (g *isa) storeBytes(v reg.VecVirtual, dst reg.GPVirtual) {
	if g.wide() {
		g.VPMOVDB(v, operand.Mem{Base: dst})
		return
	}
	g.VMOVQ(g.lowBytes(v), operand.Mem{Base: dst})
}

// lowBytes gathers the low bytes of eight lanes.
func (g *isa) lowBytes(v reg.VecVirtual) reg.VecVirtual {
	pick := make([]uint32, 8) // bytes 0, 4, 8, 12 of each half, the rest zero
	for i := range pick {
		pick[i] = 0x80808080
	}
	pick[0], pick[4] = 0x0c080400, 0x0c080400
	order, all := g.YMM(), g.YMM()
	g.VPSHUFB(g.table("lowbytes", pick), v, all)
	g.VMOVUPS(g.table("lowdwords", []uint32{0, 4, 1, 1, 1, 1, 1, 1}), order)
	g.VPERMD(all, order, all)
	return all.AsX().(reg.VecVirtual)
}

// storeBytesTail stores the low bytes of the first n lanes.
func (g *isa) storeBytesTail(label string, v reg.VecVirtual, m mask, n, dst reg.GPVirtual) {
	if g.wide() {
		g.VPMOVDB(v, m.k, operand.Mem{Base: dst})
		return
	}
	word, i := g.GP64(), g.GP64()
	g.VMOVQ(g.lowBytes(v), word)
	g.XORQ(i, i)
	g.Label(label)
	g.MOVB(word.As8(), operand.Mem{Base: dst, Index: i, Scale: 1})
	g.SHRQ(operand.U8(8), word)
	g.INCQ(i)
	g.CMPQ(i, n)
	g.JLT(operand.LabelRef(label))
}
