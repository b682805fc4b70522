package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func emitConvert(g *isa) {
	emitPack(g)
	emitUnpack(g)
	emitWiden(g)
	emitWidenPack(g)
	emitNarrow(g)
	emitConvert8(g)
}

const packBlock = 32 // values in a block of the packed order

// blocks writes a loop over whole packed blocks and a tail of 0 < n < 32.
func (g *isa) blocks(n reg.GPVirtual, pointers []pointer, body func(), tail func()) {
	g.loop("block", n, packBlock, pointers, 1, func(int) { body() })
	g.TESTQ(n, n)
	g.JZ(operand.LabelRef("done"))
	tail()
	g.Label("done")
}

// masks returns the masks of the vectors of a block that has n values.
func (g *isa) masks(n reg.GPVirtual) []mask {
	if g.wide() {
		t, lo, hi := g.GP64(), g.K(), g.K()
		g.MOVQ(operand.I32(-1), t)
		g.BZHIQ(n, t, t)
		g.KMOVW(t.As32(), lo)
		g.SHRQ(operand.U8(16), t)
		g.KMOVW(t.As32(), hi)
		return []mask{{k: lo}, {k: hi}}
	}
	values := make([]uint32, 2*packBlock) // 32 ones, 32 zeros
	for i := range packBlock {
		values[i] = 0xffffffff
	}
	t, off := g.GP64(), g.GP64()
	g.LEAQ(g.table("blockmask", values).Offset(4*packBlock), t)
	g.MOVQ(n, off)
	g.SHLQ(operand.U8(2), off)
	g.SUBQ(off, t)
	all := make([]mask, 4)
	for i := range all {
		all[i].v = g.YMM()
		g.VMOVDQU(g.at(t, i), all[i].v)
	}
	return all
}

// split turns vectors in natural order into the halves of a packed block.
func (g *isa) split(v []reg.VecVirtual) []reg.VecVirtual {
	if g.wide() {
		even, odd := g.ZMM(), g.ZMM()
		index := func(name string, first uint32) operand.Mem {
			values := make([]uint32, 16)
			for i := range values {
				values[i] = first + 2*uint32(i)
			}
			return g.table(name, values)
		}
		g.VMOVUPS(index("evenindex", 0), even)
		g.VMOVUPS(index("oddindex", 1), odd)
		// The index is replaced by what it picked from v[0], v[1].
		g.VPERMI2PS(v[1], v[0], even)
		g.VPERMI2PS(v[1], v[0], odd)
		return []reg.VecVirtual{even, odd}
	}
	var even, odd []reg.VecVirtual
	for i := 0; i < 4; i += 2 {
		for half, imm := range []uint64{0x88, 0xdd} {
			w := g.YMM()
			g.VSHUFPS(operand.U8(imm), v[i+1], v[i], w) // 128-bit lanes still interleaved
			g.VPERMPD(operand.U8(0xd8), w, w)
			if half == 0 {
				even = append(even, w)
			} else {
				odd = append(odd, w)
			}
		}
	}
	return append(even, odd...)
}

// join is the inverse of split.
func (g *isa) join(v []reg.VecVirtual) []reg.VecVirtual {
	if g.wide() {
		lo, hi := g.ZMM(), g.ZMM()
		index := func(name string, first uint32) operand.Mem {
			values := make([]uint32, 16)
			for i := range values {
				values[i] = first + uint32(i)/2 + 16*(uint32(i)&1)
			}
			return g.table(name, values)
		}
		g.VMOVUPS(index("lowindex", 0), lo)
		g.VMOVUPS(index("highindex", 8), hi)
		g.VPERMI2PS(v[1], v[0], lo)
		g.VPERMI2PS(v[1], v[0], hi)
		return []reg.VecVirtual{lo, hi}
	}
	var all []reg.VecVirtual
	for i := range 2 { // v[i] even, v[i+2] odd
		lo, hi, a, b := g.YMM(), g.YMM(), g.YMM(), g.YMM()
		g.VUNPCKLPS(v[i+2], v[i], lo)
		g.VUNPCKHPS(v[i+2], v[i], hi)
		g.VPERM2F128(operand.U8(0x20), hi, lo, a)
		g.VPERM2F128(operand.U8(0x31), hi, lo, b)
		all = append(all, a, b)
	}
	return all
}

func (g *isa) storeAll(v []reg.VecVirtual, dst reg.GPVirtual) {
	for i := range v {
		g.VMOVUPS(v[i], g.at(dst, i))
	}
}

func emitPack(g *isa) {
	g.function("pack", "dst, src *float32, n int", "brings n values into packed order.")
	dst, src, n := g.arg("dst"), g.arg("src"), g.arg("n")
	count := packBlock / g.lanes
	g.blocks(n, []pointer{{dst, 4}, {src, 4}}, func() {
		v := g.vecs(count)
		for i := range v {
			g.VMOVUPS(g.at(src, i), v[i])
		}
		g.storeAll(g.split(v), dst)
	}, func() {
		masks, v := g.masks(n), g.vecs(count)
		for i := range v {
			g.loadTail(g.at(src, i), masks[i], v[i])
		}
		g.storeAll(g.split(v), dst)
	})
	g.end()
}

func emitUnpack(g *isa) {
	g.function("unpack", "dst, src *float32, n int", "brings n values from packed into natural order.")
	dst, src, n := g.arg("dst"), g.arg("src"), g.arg("n")
	count := packBlock / g.lanes
	joined := func() []reg.VecVirtual {
		v := g.vecs(count)
		for i := range v {
			g.VMOVUPS(g.at(src, i), v[i])
		}
		return g.join(v)
	}
	g.blocks(n, []pointer{{dst, 4}, {src, 4}}, func() { g.storeAll(joined(), dst) }, func() {
		masks, v := g.masks(n), joined()
		for i := range v {
			g.storeTail(v[i], masks[i], g.at(dst, i))
		}
	})
	g.end()
}

func emitWiden(g *isa) {
	g.function("widen", "dst *float32, src *uint16, n int", "turns n BF16 values into F32.")
	dst, src, n := g.arg("dst"), g.arg("src"), g.arg("n")
	half := g.bytes() / 2
	pointers := []pointer{{dst, 4}, {src, 2}}
	body := func(i int) {
		v := g.vec()
		g.VPMOVZXWD(operand.Mem{Base: src, Disp: i * half}, v)
		g.VPSLLD(operand.U8(16), v, v)
		g.VMOVUPS(v, g.at(dst, i))
	}
	g.loop("block", n, 4*g.lanes, pointers, 4, body)
	g.loop("vector", n, g.lanes, pointers, 1, body)
	if g.wide() {
		g.TESTQ(n, n)
		g.JZ(operand.LabelRef("done"))
		m, v := g.tail(n), g.vec()
		g.VPMOVZXWD_Z(operand.Mem{Base: src}, m.k, v)
		g.VPSLLD(operand.U8(16), v, v)
		g.storeTail(v, m, g.at(dst, 0))
		g.Label("done")
	} else {
		g.loop("single", n, 1, pointers, 1, func(int) {
			word := g.GP32()
			g.MOVWLZX(operand.Mem{Base: src}, word)
			g.SHLL(operand.U8(16), word)
			g.MOVL(word, operand.Mem{Base: dst})
		})
	}
	g.end()
}

func emitWidenPack(g *isa) {
	g.function("widenPack", "dst *float32, src *uint16, n int", "turns n BF16 values into F32 in packed order.")
	dst, src, n := g.arg("dst"), g.arg("src"), g.arg("n")
	odd := g.oddMask()
	halves := func(sub int, wo reg.VecVirtual) {
		we := g.vec()
		g.VPSLLD(operand.U8(16), wo, we)
		g.oddHalf(wo, odd)
		g.VMOVUPS(we, operand.Mem{Base: dst, Disp: sub})
		g.VMOVUPS(wo, operand.Mem{Base: dst, Disp: 64 + sub})
	}
	g.blocks(n, []pointer{{dst, 4}, {src, 2}}, func() {
		for sub := 0; sub < 64; sub += g.bytes() {
			v := g.vec()
			if g.wide() {
				g.VMOVDQU16(operand.Mem{Base: src, Disp: sub}, v)
			} else {
				g.VMOVDQU(operand.Mem{Base: src, Disp: sub}, v)
			}
			halves(sub, v)
		}
	}, func() { g.widenPackTail(src, dst, n, halves) })
	g.end()
}

func (g *isa) widenPackTail(src, dst, n reg.GPVirtual, halves func(sub int, v reg.VecVirtual)) {
	if g.wide() {
		t, k, v := g.GP64(), g.K(), g.ZMM()
		g.MOVQ(operand.I32(-1), t)
		g.BZHIQ(n, t, t)
		g.KMOVD(t.As32(), k)
		g.VMOVDQU16_Z(operand.Mem{Base: src}, k, v)
		halves(0, v)
		return
	}
	zero := g.YMM()
	g.VXORPS(zero, zero, zero)
	for i := range 4 {
		g.VMOVUPS(zero, g.at(dst, i))
	}
	// Value i goes to i/2, in the second half when i is odd.
	i, at, word := g.GP64(), g.GP64(), g.GP32()
	g.XORQ(i, i)
	g.Label("single")
	g.MOVWLZX(operand.Mem{Base: src, Index: i, Scale: 2}, word)
	g.SHLL(operand.U8(16), word)
	g.MOVQ(i, at)
	g.SHLQ(operand.U8(63), at) // odd: 16 values on
	g.SHRQ(operand.U8(59), at)
	half := g.GP64()
	g.MOVQ(i, half)
	g.SHRQ(operand.U8(1), half)
	g.ADDQ(half, at)
	g.MOVL(word, operand.Mem{Base: dst, Index: at, Scale: 4})
	g.INCQ(i)
	g.CMPQ(i, n)
	g.JLT(operand.LabelRef("single"))
}

// emitNarrow rounds to nearest, ties to even: add 0x7fff plus the lowest bit
// that stays, then cut. NaN is cut and made quiet instead.
func emitNarrow(g *isa) {
	g.function("narrow", "dst *uint16, src *float32, n int", "rounds n values to BF16.")
	dst, src, n := g.arg("dst"), g.arg("src"), g.arg("n")
	one := g.bits("one", 1, g.vec())
	bias := g.bits("bias", 0x7fff, g.vec())
	quiet := g.bits("quiet", 0x40, g.vec())
	half := g.bytes() / 2
	round := func(v reg.VecVirtual) reg.VecVirtual {
		cut, r := g.vec(), g.vec()
		g.VPSRLD(operand.U8(16), v, cut)
		if g.wide() {
			k := g.K()
			g.VPANDD(one, cut, r)
			g.VPADDD(bias, r, r)
			g.VPADDD(v, r, r)
			g.VPSRLD(operand.U8(16), r, r)
			g.VCMPPS(operand.U8(3), v, v, k) // unordered
			g.VPORD(quiet, cut, k, r)
			return r
		}
		g.VPAND(one, cut, r)
		g.VPADDD(bias, r, r)
		g.VPADDD(v, r, r)
		g.VPSRLD(operand.U8(16), r, r)
		nan := g.vec()
		g.VCMPPS(operand.U8(3), v, v, nan)
		g.VPOR(quiet, cut, cut)
		g.VBLENDVPS(nan, cut, r, r)
		// 8 words in the low half.
		g.VPACKUSDW(r, r, r)
		g.VPERMQ(operand.U8(0xd8), r, r)
		return r
	}
	g.loop("vector", n, g.lanes, []pointer{{dst, 2}, {src, 4}}, 1, func(i int) {
		v := g.vec()
		g.VMOVUPS(g.at(src, i), v)
		to := operand.Mem{Base: dst, Disp: i * half}
		if g.wide() {
			g.VPMOVDW(round(v), to)
		} else {
			g.VMOVDQU(round(v).AsX(), to)
		}
	})
	g.TESTQ(n, n)
	g.JZ(operand.LabelRef("done"))
	m, v := g.tail(n), g.vec()
	g.loadTail(g.at(src, 0), m, v)
	if g.wide() {
		g.VPMOVDW(round(v), m.k, operand.Mem{Base: dst})
	} else {
		buffer, i, word := g.AllocLocal(16), g.GP64(), g.GP32()
		g.VMOVDQU(round(v).AsX(), buffer)
		g.XORQ(i, i)
		g.Label("single")
		from := buffer
		from.Index, from.Scale = i, 2
		g.MOVWLZX(from, word)
		g.MOVW(word.As16(), operand.Mem{Base: dst, Index: i, Scale: 2})
		g.INCQ(i)
		g.CMPQ(i, n)
		g.JLT(operand.LabelRef("single"))
	}
	g.Label("done")
	g.end()
}
