package main

import (
	"fmt"
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Byte offsets of the fields of index.Tile.
const (
	indexPanel  = 0
	indexQ      = 8
	indexW      = 16
	indexOut    = 24
	indexStride = 32
	indexDim    = 40
	indexHeads  = 48
)

// indexKeys is index.Keys: the keys of a panel, a row of which has a value of each.
const indexKeys = 32

func emitIndex(g *isa) {
	emitTurn(g, false)
	emitTurn(g, true)
	emitIndexScore(g)
	emitRank(g)
	emitCount(g)
	emitMark(g)
}

// emitTurn writes the columns of as many rows as a vector has lanes, then of the next ones. Two BF16 values are turned
// as one of 32 bits and then told apart.
func emitTurn(g *isa, bf16 bool) {
	name, perWord := "turnF32", 1
	if bf16 {
		name, perWord = "turnBF16", 2
	}
	g.function(name, "panel *float32, rows *byte, dim int", "turns rows of dim values, a multiple of 32.")
	panel, rows, end, group := g.arg("panel"), g.arg("rows"), g.arg("dim"), g.GP64()
	g.SHLQ(operand.U8(uint64(3-perWord)), end) // bytes of a row
	g.MOVQ(operand.U32(uint32(indexKeys/g.lanes)), group)
	g.Label("rows")
	k, to := g.GP64(), g.GP64()
	g.XORQ(k, k)
	g.MOVQ(panel, to)
	g.Label("columns")
	words := g.vecs(g.lanes)
	for i, v := range words {
		row := g.GP64()
		g.MOVQ(operand.Mem{Base: rows, Disp: 8 * i}, row)
		g.VMOVUPS(operand.Mem{Base: row, Index: k, Scale: 1}, v)
	}
	words = g.turned(words)
	const row = 4 * indexKeys
	for i, v := range words {
		if bf16 {
			even := g.vec()
			g.VPSLLD(operand.U8(16), v, even)
			g.VMOVUPS(even, operand.Mem{Base: to, Disp: 2 * i * row})
			g.VPSRLD(operand.U8(16), v, v)
			g.VPSLLD(operand.U8(16), v, v)
		}
		g.VMOVUPS(v, operand.Mem{Base: to, Disp: ((i+1)*perWord - 1) * row})
	}
	g.ADDQ(operand.I32(int32(g.lanes*perWord*row)), to)
	g.ADDQ(operand.I32(int32(g.bytes())), k)
	g.CMPQ(k, end)
	g.JLT(operand.LabelRef("columns"))
	g.ADDQ(operand.I32(int32(8*g.lanes)), rows)
	g.ADDQ(operand.I32(int32(4*g.lanes)), panel)
	g.DECQ(group)
	g.JNZ(operand.LabelRef("rows"))
	g.end()
}

// turned is a square of 32-bit values with rows and columns exchanged.
func (g *isa) turned(rows []reg.VecVirtual) []reg.VecVirtual {
	n := len(rows)
	pairs, fours := g.vecs(n), g.vecs(n)
	for i := 0; i < n; i += 2 {
		g.VUNPCKLPS(rows[i+1], rows[i], pairs[i])
		g.VUNPCKHPS(rows[i+1], rows[i], pairs[i+1])
	}
	for i := 0; i < n; i += 4 { // of fours[i+c] quarter q has column 4q+c of rows i to i+3
		for c := range 2 {
			g.VUNPCKLPD(pairs[i+2+c], pairs[i+c], fours[i+2*c])
			g.VUNPCKHPD(pairs[i+2+c], pairs[i+c], fours[i+2*c+1])
		}
	}
	columns := g.vecs(n)
	for c := range 4 {
		if !g.wide() {
			g.VPERM2F128(operand.U8(0x20), fours[4+c], fours[c], columns[c])
			g.VPERM2F128(operand.U8(0x31), fours[4+c], fours[c], columns[4+c])
			continue
		}
		const even, odd = 0x88, 0xdd // quarters 0 and 2, 1 and 3, of both
		for half, quarters := range []uint64{even, odd} {
			low, high := g.vec(), g.vec()
			g.VSHUFF32X4(operand.U8(quarters), fours[4+c], fours[c], low)
			g.VSHUFF32X4(operand.U8(quarters), fours[12+c], fours[8+c], high)
			g.VSHUFF32X4(operand.U8(even), high, low, columns[4*half+c])
			g.VSHUFF32X4(operand.U8(odd), high, low, columns[8+4*half+c])
		}
	}
	return columns
}

// indexScore: two vectors of keys at a time, and products of some heads with them held in registers while the rows of
// the panel pass.
type indexScore struct {
	*isa
	panel, q, w, stride, heads reg.GPVirtual // q and w at the current head
	t                          reg.GPVirtual
	sums                       []reg.VecVirtual
}

func emitIndexScore(g *isa) {
	g.function("score", "t *byte", "scores the keys of a panel.")
	s := &indexScore{isa: g, t: g.arg("t"), sums: g.vecs(2)}
	field := func(off int) reg.GPVirtual {
		r := g.GP64()
		g.MOVQ(operand.Mem{Base: s.t, Disp: off}, r)
		return r
	}
	s.panel, s.stride = field(indexPanel), field(indexStride)
	out, parts := field(indexOut), g.GP64()
	g.MOVQ(operand.U32(uint32(indexKeys/2/g.lanes)), parts)
	g.Label("keys")
	s.q, s.w, s.heads = field(indexQ), field(indexW), field(indexHeads)
	g.zero(s.sums...)
	most := 4
	if g.wide() {
		most = 8
	}
	for n := most; n >= 1; n /= 2 {
		s.group(n)
	}
	for i, v := range s.sums {
		g.VMOVUPS(v, g.at(out, i))
	}
	g.ADDQ(operand.I32(int32(2*g.bytes())), out)
	g.ADDQ(operand.I32(int32(2*g.bytes())), s.panel)
	g.DECQ(parts)
	g.JNZ(operand.LabelRef("keys"))
	g.end()
}

// group takes n heads at a time while at least n are left.
func (s *indexScore) group(n int) {
	label := fmt.Sprintf("by%d", n)
	s.Label(label)
	s.CMPQ(s.heads, operand.I32(int32(n)))
	s.JLT(operand.LabelRef(label + "_end"))
	acc := make([][]reg.VecVirtual, n)
	for h := range acc {
		acc[h] = s.vecs(2)
		s.zero(acc[h]...)
	}
	q, q4, row, left, stride3 := s.GP64(), s.GP64(), s.GP64(), s.GP64(), s.GP64()
	s.MOVQ(s.q, q)
	s.LEAQ(operand.Mem{Base: q, Index: s.stride, Scale: 4}, q4)
	s.LEAQ(operand.Mem{Base: s.stride, Index: s.stride, Scale: 2}, stride3)
	s.MOVQ(s.panel, row)
	s.MOVQ(operand.Mem{Base: s.t, Disp: indexDim}, left)
	s.Label(label + "_row")
	keys := s.vecs(2)
	for i, v := range keys {
		s.VMOVUPS(s.at(row, i), v)
	}
	for h := range acc {
		m := operand.Mem{Base: q}
		if h >= 4 {
			m.Base = q4
		}
		switch h % 4 {
		case 1, 2:
			m.Index, m.Scale = s.stride, uint8(h%4)
		case 3:
			m.Index, m.Scale = stride3, 1
		}
		f := s.vec()
		s.VBROADCASTSS(m, f)
		for i := range keys {
			s.VFMADD231PS(keys[i], f, acc[h][i])
		}
	}
	s.ADDQ(operand.I32(4), q)
	s.ADDQ(operand.I32(4), q4)
	s.ADDQ(operand.I32(4*indexKeys), row)
	s.DECQ(left)
	s.JNZ(operand.LabelRef(label + "_row"))
	s.add(n, acc)
	if n >= 4 {
		s.LEAQ(operand.Mem{Base: s.q, Index: s.stride, Scale: 4}, s.q)
	}
	switch n {
	case 1:
		s.ADDQ(s.stride, s.q)
	case 2:
		s.LEAQ(operand.Mem{Base: s.q, Index: s.stride, Scale: 2}, s.q)
	case 8:
		s.LEAQ(operand.Mem{Base: s.q, Index: s.stride, Scale: 4}, s.q)
	}
	s.ADDQ(operand.I32(int32(4*n)), s.w)
	s.SUBQ(operand.I32(int32(n)), s.heads)
	s.JMP(operand.LabelRef(label))
	s.Label(label + "_end")
}

// add adds the products of n heads to the sums. NaN stays NaN: MAX returns its second source then.
func (s *indexScore) add(n int, acc [][]reg.VecVirtual) {
	zero := s.vec()
	s.zero(zero)
	for h := range acc {
		f := s.vec()
		s.VBROADCASTSS(operand.Mem{Base: s.w, Disp: 4 * h}, f)
		for i, v := range acc[h] {
			s.VMAXPS(v, zero, v)
			s.VFMADD231PS(v, f, s.sums[i])
		}
	}
}

// emitRank: numbers of 32 bits with a sign that rise with the scores.
func emitRank(g *isa) {
	g.function("rank", "scores *float32, n int", "makes n scores, a multiple of 64, ranks.")
	p, n, zero := g.arg("scores"), g.arg("n"), g.vec()
	g.zero(zero)
	most := g.bits("most", math.MaxInt32, g.vec())
	least := g.bits("least", 1<<31, g.vec())
	g.loop("block", n, g.lanes, []pointer{{p, 4}}, 1, func(int) {
		v, sign := g.vec(), g.vec()
		g.VADDPS(g.at(p, 0), zero, v) // one zero of both
		const unordered = 3
		if g.wide() {
			k := g.K()
			g.VCMPPS(operand.U8(unordered), v, v, k)
			g.VPSRAD(operand.U8(31), v, sign)
			g.VPANDD(most, sign, sign)
			g.VPXORD(sign, v, v)
			g.VMOVAPS(least, k, v)
		} else {
			nan := g.vec()
			g.VCMPPS(operand.U8(unordered), v, v, nan)
			g.VPSRAD(operand.U8(31), v, sign)
			g.VPAND(most, sign, sign)
			g.VPXOR(sign, v, v)
			g.VBLENDVPS(nan, least, v, v)
		}
		g.VMOVUPS(v, g.at(p, 0))
	})
	g.end()
}

// emitCount: four vectors of counts, so that none waits for another.
func emitCount(g *isa) {
	g.result = " int"
	g.function("count", "ranks *int32, n int, least int32", "counts the ranks, a multiple of 64, that are at least least.")
	g.result = ""
	p, n, least, counts := g.arg("ranks"), g.arg("n"), g.broadcastArg("least"), g.vecs(4)
	g.zero(counts...)
	one := g.bits("one", 1, g.vec())
	g.loop("block", n, 4*g.lanes, []pointer{{p, 4}}, 4, func(i int) {
		if g.wide() {
			k := g.K()
			g.VPCMPD(operand.U8(2), g.at(p, i), least, k) // least <= rank
			g.VPADDD(one, counts[i], k, counts[i])
			return
		}
		below := g.vec() // -1 where the rank is less
		g.VPCMPGTD(g.at(p, i), least, below)
		g.VPADDD(below, one, below)
		g.VPADDD(below, counts[i], counts[i])
	})
	g.VPADDD(counts[1], counts[0], counts[0])
	g.VPADDD(counts[3], counts[2], counts[2])
	g.VPADDD(counts[2], counts[0], counts[0])
	sum := g.GP32()
	g.VMOVD(g.fold(counts[0], func(ops ...operand.Op) { g.VPADDD(ops...) }).AsX(), sum)
	g.Store(sum.As64(), g.ReturnIndex(0))
	g.end()
}

func emitMark(g *isa) {
	g.function("mark", "marks *uint64, ranks *int32, n int, least int32", "marks the ranks, a multiple of 64, that are at least least.")
	to, p, n, least := g.arg("marks"), g.arg("ranks"), g.arg("n"), g.broadcastArg("least")
	g.Label("block")
	g.TESTQ(n, n)
	g.JZ(operand.LabelRef("block_end"))
	if g.wide() {
		k, word := g.K(), g.GP32()
		g.VPCMPD(operand.U8(2), g.at(p, 0), least, k)
		g.KMOVW(k, word)
		g.MOVW(word.As16(), operand.Mem{Base: to})
	} else {
		below, word := g.vec(), g.GP32()
		g.VPCMPGTD(g.at(p, 0), least, below)
		g.VMOVMSKPS(below, word)
		g.NOTL(word)
		g.MOVB(word.As8(), operand.Mem{Base: to})
	}
	g.ADDQ(operand.I32(int32(g.lanes/8)), to)
	g.ADDQ(operand.I32(int32(g.bytes())), p)
	g.SUBQ(operand.I32(int32(g.lanes)), n)
	g.JMP(operand.LabelRef("block"))
	g.Label("block_end")
	g.end()
}
