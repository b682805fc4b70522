package main

import (
	"fmt"
	"math/bits"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in dot.Tile and axpy.Tile; a test in each package holds them to the
// Go declaration.
const (
	tileRows   = 0  // [4]pointer: X, or P
	tileOut    = 32 // [4]pointer: Out, or Acc
	tileW      = 64
	tileStride = 72
	tileK      = 80 // K, or N (rows)
	tileN      = 88 // N, or Width
	tileAhead  = 96 // of dot
)

// dotTile is the state while one tile is written: mr rows of activations
// against nr weight rows at a time.
//
// The nr weight rows are not neighbours: the rows are cut in nr equal parts and
// each load instruction walks through one part from its first to its last byte.
// So every load has a constant stride for the whole call, and the core's
// prefetchers follow it. With neighbouring rows each prefetcher would begin
// anew with every row (measured on Zen 4, rows of 512 bytes from memory: 10
// GB/s, against 30 this way). Rows left over go one by one.
//
// Registers: x are the rows of activations, w and (for eight parts) w4 = w + 4
// parts the weights, s and s3 one and three parts. k counts bytes of a weight
// row; activations of BF16 weights are twice as long, so their address is x +
// 2*k; those of F32 weights are x + k.
//
// Short rows (of a head, of a small expert) are in cache anyway; there the
// parts would only make the results harder to store, and tiles of several rows
// of activations take neighbours: a part is then one row, and a tile advances by
// all of them.
type dotTile struct {
	*isa
	bf16 bool
	mr   int

	t      reg.GPVirtual
	x      []reg.GPVirtual
	w, w4  reg.GPVirtual
	s, s3  reg.GPVirtual
	k      reg.GPVirtual // bytes of the row done
	whole  reg.GPVirtual // bytes of the row in whole blocks
	n, out reg.GPVirtual // rows of a part left; bytes of results of a part written
	gap    operand.Mem   // bytes between the results of two parts
	near   bool          // the rows are neighbours
	ahead  reg.GPVirtual // bytes; nil: no prefetch
	a, a4  reg.GPVirtual // w and w4 and the bytes ahead

	tailBits  reg.OpmaskVirtual // AVX-512: lanes of the tail
	tailLanes reg.VecVirtual    // AVX2, F32
	odd       reg.VecVirtual    // AVX-512, BF16: the upper half of every lane
	buffer    operand.Mem       // AVX2, BF16: 64 bytes of stack
}

func emitDot(g *isa) {
	for _, bf16 := range []bool{false, true} {
		for mr := 1; mr <= 4; mr++ {
			emitDotTile(g, bf16, mr)
		}
	}
}

// columns is in how many parts the weight rows are cut: enough accumulators to
// cover the latency of multiply-adds, as many as registers allow, few enough
// for the prefetchers.
func columns(g *isa, bf16 bool, mr int) int {
	switch {
	case mr == 1 && bf16:
		return 8 // two dependent multiply-adds a step; see also longRows
	case mr <= 2 || g.wide():
		return 4
	}
	return 2
}

// Rows of BF16 weights of this length are read in four parts when there is one
// row of activations: the start of a row no longer counts, and fewer parts come
// faster from memory (measured on Zen 4: 32 GB/s, 28 in eight parts; plain
// reads 33). Beyond the upper end the activations leave the first-level cache,
// and eight parts read them half as often.
const longRows, hugeRows = 1024, 4096

// Tiles of several rows of activations take neighbours below this length.
const shortRows = 256

func emitDotTile(g *isa, bf16 bool, mr int) {
	name := "f32"
	if bf16 {
		name = "bf16"
	}
	g.function(fmt.Sprintf("%sRows%d", name, mr), "t *byte",
		fmt.Sprintf("multiplies %d rows of activations with t.N weight rows.", mr))
	d := &dotTile{isa: g, bf16: bf16, mr: mr}
	d.load()
	nr := columns(g, bf16, mr)
	if mr > 1 {
		g.CMPQ(operand.Mem{Base: d.t, Disp: tileK}, operand.I32(shortRows))
		g.JGE(operand.LabelRef("apart"))
		d.neighbours(nr)
		g.JMP(operand.LabelRef("rest"))
		g.Label("apart")
	}
	if nr == 8 && g.wide() {
		k := g.GP64()
		g.MOVQ(operand.Mem{Base: d.t, Disp: tileK}, k)
		g.SUBQ(operand.I32(longRows), k)
		g.CMPQ(k, operand.I32(hugeRows-longRows))
		g.JA(operand.LabelRef("in8")) // unsigned: below longRows as well
		d.parts(4)
		g.JMP(operand.LabelRef("rest"))
		g.Label("in8")
	}
	d.parts(nr)
	g.Label("rest")
	d.rows(1)
	g.end()
}

// blockBytes returns the number of bytes of a weight row that one step along K reads.
func (d *dotTile) blockBytes() int {
	if d.bf16 {
		return 64 // 32 values
	}
	return d.bytes()
}

func (d *dotTile) load() {
	g := d.isa
	d.t = g.arg("t")
	field := func(off int) reg.GPVirtual {
		r := g.GP64()
		g.MOVQ(operand.Mem{Base: d.t, Disp: off}, r)
		return r
	}
	for m := range d.mr {
		d.x = append(d.x, field(tileRows+8*m))
	}
	d.w, d.s, d.n = field(tileW), field(tileStride), field(tileN)
	if d.mr == 1 {
		d.ahead, d.a = field(tileAhead), g.GP64()
	}
	d.s3 = g.GP64()
	d.gap = g.AllocLocal(8)
	d.whole, d.k, d.out = field(tileK), g.GP64(), g.GP64()
	g.XORQ(d.out, d.out)
	block := 32
	if !d.bf16 {
		block = g.lanes
	}
	rem := g.GP64()
	g.MOVQ(d.whole, rem)
	g.ANDQ(operand.I32(int32(block-1)), rem)
	g.SUBQ(rem, d.whole)
	if d.bf16 {
		g.SHLQ(operand.U8(1), d.whole)
	} else {
		g.SHLQ(operand.U8(2), d.whole)
	}
	d.tailSetup(rem)
	if d.bf16 {
		d.odd = g.oddMask()
	}
}

// tailSetup prepares the mask of the values beyond the last whole block.
func (d *dotTile) tailSetup(rem reg.GPVirtual) {
	g := d.isa
	switch {
	case g.wide():
		t := g.GP64()
		d.tailBits = g.K()
		g.MOVQ(operand.I32(-1), t)
		g.BZHIQ(rem, t, t)
		g.KMOVD(t.As32(), d.tailBits)
	case d.bf16:
		d.buffer = g.AllocLocal(64)
	default:
		m := g.tail(rem) // rem = 0 gives no lane
		d.tailLanes = m.v
	}
}

// neighbours writes the loop over tiles of adjacent rows.
func (d *dotTile) neighbours(nr int) {
	g := d.isa
	g.SHRQ(operand.U8(uint64(bits.TrailingZeros(uint(nr)))), d.n)
	g.LEAQ(operand.Mem{Base: d.s, Index: d.s, Scale: 2}, d.s3)
	d.near = true
	d.rows(nr)
	d.near = false
	d.rest(nr)
}

// rest leaves the rows that do not fill a tile.
func (d *dotTile) rest(nr int) {
	d.MOVQ(operand.Mem{Base: d.t, Disp: tileN}, d.n)
	d.ANDQ(operand.I32(int32(nr-1)), d.n)
}

// parts cuts the weight rows in nr parts, writes the loop over them and leaves
// the rest to a loop over single rows.
func (d *dotTile) parts(nr int) {
	g := d.isa
	shift := operand.U8(uint64(bits.TrailingZeros(uint(nr))))
	g.SHRQ(shift, d.n)
	t := g.GP64()
	g.MOVQ(d.n, t)
	g.SHLQ(operand.U8(2), t)
	g.MOVQ(t, d.gap)
	g.IMULQ(d.n, d.s)
	g.LEAQ(operand.Mem{Base: d.s, Index: d.s, Scale: 2}, d.s3)
	d.rows(nr)
	// On to the end of the last part.
	n := g.GP64()
	g.MOVQ(d.gap, n)
	for range nr - 1 {
		g.ADDQ(d.s, d.w)
		g.ADDQ(n, d.out)
	}
	d.rest(nr)
}

// rows writes the loop over tiles of nr weight rows.
func (d *dotTile) rows(nr int) {
	g := d.isa
	label := fmt.Sprintf("by%d", nr)
	if d.near {
		label = "near"
	}
	g.Label(label)
	g.TESTQ(d.n, d.n)
	g.JZ(operand.LabelRef(label + "_end"))
	acc := make([][]reg.VecVirtual, d.mr)
	for m := range acc {
		acc[m] = g.vecs(nr)
		g.zero(acc[m]...)
	}
	if d.ahead != nil {
		g.LEAQ(operand.Mem{Base: d.w, Index: d.ahead, Scale: 1}, d.a)
	}
	if nr == 8 {
		d.w4, d.a4 = g.GP64(), g.GP64()
		g.LEAQ(operand.Mem{Base: d.w, Index: d.s, Scale: 4}, d.w4)
		g.LEAQ(operand.Mem{Base: d.a, Index: d.s, Scale: 4}, d.a4)
	}
	g.XORQ(d.k, d.k)
	g.CMPQ(d.k, d.whole)
	g.JGE(operand.LabelRef(label + "_tail"))
	g.Label(label + "_k")
	d.block(acc, nr, false)
	d.advance(nr)
	g.CMPQ(d.k, d.whole)
	g.JLT(operand.LabelRef(label + "_k"))
	g.Label(label + "_tail")
	d.tailBlock(acc, nr, label)
	// Back to the start of the row, then on to the next.
	g.SUBQ(d.k, d.w)
	d.store(acc, nr)
	if d.near {
		g.LEAQ(operand.Mem{Base: d.w, Index: d.s, Scale: uint8(nr)}, d.w)
		g.ADDQ(operand.I32(int32(4*nr)), d.out)
	} else {
		g.ADDQ(operand.Mem{Base: d.t, Disp: tileStride}, d.w)
		g.ADDQ(operand.I32(4), d.out)
	}
	g.DECQ(d.n)
	g.JMP(operand.LabelRef(label))
	g.Label(label + "_end")
}

func (d *dotTile) advance(nr int) {
	g := d.isa
	step := operand.I32(int32(d.blockBytes()))
	g.ADDQ(step, d.w)
	if d.ahead != nil {
		g.ADDQ(step, d.a)
	}
	if nr == 8 {
		g.ADDQ(step, d.w4)
		g.ADDQ(step, d.a4)
	}
	g.ADDQ(step, d.k)
}

// weight is the address of the current place in part n.
func (d *dotTile) weight(n int) operand.Mem { return d.part(d.w, d.w4, n) }

// prefetch asks for the line some way ahead in part n.
func (d *dotTile) prefetch(n int) {
	if d.ahead != nil {
		d.PREFETCHT0(d.part(d.a, d.a4, n))
	}
}

// part is the address of the current place in part n; base is that of part 0, base4 that of part 4.
func (d *dotTile) part(base, base4 reg.GPVirtual, n int) operand.Mem {
	if n >= 4 {
		base, n = base4, n-4
	}
	switch n {
	case 0:
		return operand.Mem{Base: base}
	case 1:
		return operand.Mem{Base: base, Index: d.s, Scale: 1}
	case 2:
		return operand.Mem{Base: base, Index: d.s, Scale: 2}
	}
	return operand.Mem{Base: base, Index: d.s3, Scale: 1}
}

// block does one step along K for all accumulators. tail: only the values that
// are left; AVX2's BF16 tail goes through the buffer, see tailBlock.
func (d *dotTile) block(acc [][]reg.VecVirtual, nr int, tail bool) {
	if !d.bf16 {
		d.blockF32(acc, nr, tail)
		return
	}
	for sub := 0; sub < 64; sub += d.bytes() {
		d.blockBF16(acc, nr, sub, tail)
	}
}

func (d *dotTile) blockF32(acc [][]reg.VecVirtual, nr int, tail bool) {
	g := d.isa
	load := func(src operand.Mem) reg.VecVirtual {
		v := g.vec()
		if tail {
			g.loadTail(src, mask{k: d.tailBits, v: d.tailLanes}, v)
		} else {
			g.VMOVUPS(src, v)
		}
		return v
	}
	x := make([]reg.VecVirtual, d.mr)
	for m := range x {
		x[m] = load(operand.Mem{Base: d.x[m], Index: d.k, Scale: 1})
	}
	for n := range nr {
		if !tail {
			d.prefetch(n)
		}
		w := load(d.weight(n))
		for m := range x {
			g.VFMADD231PS(w, x[m], acc[m][n])
		}
	}
}

// blockBF16 takes sub-block sub (bytes): first the even, then the odd values.
func (d *dotTile) blockBF16(acc [][]reg.VecVirtual, nr, sub int, tail bool) {
	g := d.isa
	x := func(m, half int) operand.Mem {
		return operand.Mem{Base: d.x[m], Index: d.k, Scale: 2, Disp: half*64 + sub}
	}
	// All rows of activations stay in registers where there are enough.
	var even, odd []reg.VecVirtual
	keep := g.wide() || d.mr == 1
	if keep {
		even, odd = g.vecs(d.mr), g.vecs(d.mr)
		for m := range d.mr {
			g.VMOVUPS(x(m, 0), even[m])
			g.VMOVUPS(x(m, 1), odd[m])
		}
	}
	we, wo := make([]reg.VecVirtual, nr), make([]reg.VecVirtual, nr)
	widen := func(n int) {
		we[n], wo[n] = g.vec(), g.vec()
		if !tail && sub == 0 {
			d.prefetch(n)
		}
		src := d.weight(n)
		src.Disp += sub
		switch {
		case tail && g.wide():
			g.VMOVDQU16_Z(src, d.tailBits, wo[n])
		case g.wide():
			g.VMOVDQU16(src, wo[n])
		default:
			g.VMOVDQU(src, wo[n])
		}
		g.VPSLLD(operand.U8(16), wo[n], we[n])
		g.oddHalf(wo[n], d.odd)
	}
	if keep {
		for n := range nr {
			widen(n)
			for m := range d.mr {
				g.VFMADD231PS(we[n], even[m], acc[m][n])
			}
			for m := range d.mr {
				g.VFMADD231PS(wo[n], odd[m], acc[m][n])
			}
		}
		return
	}
	for n := range nr {
		if nr == 2 { // both rows widened: each activation is loaded once
			widen(n)
		}
	}
	for n := 0; n < nr; n += 2 {
		if nr != 2 {
			widen(n)
			if n+1 < nr {
				widen(n + 1)
			}
		}
		for m := range d.mr {
			for half, w := range [][]reg.VecVirtual{we, wo} {
				v := g.vec()
				g.VMOVUPS(x(m, half), v)
				g.VFMADD231PS(w[n], v, acc[m][n])
				if n+1 < nr {
					g.VFMADD231PS(w[n+1], v, acc[m][n+1])
				}
			}
		}
	}
}

// tailBlock takes the values beyond the last whole block, when there are any.
func (d *dotTile) tailBlock(acc [][]reg.VecVirtual, nr int, label string) {
	g := d.isa
	rem := g.GP64()
	g.MOVQ(operand.Mem{Base: d.t, Disp: tileK}, rem)
	if !d.bf16 || g.wide() {
		block := 32
		if !d.bf16 {
			block = g.lanes
		}
		g.ANDQ(operand.I32(int32(block-1)), rem)
		g.JZ(operand.LabelRef(label + "_sum"))
		d.block(acc, nr, true)
		g.Label(label + "_sum")
		return
	}
	// AVX2 cannot mask 16-bit values: each row's tail is copied behind zeros.
	g.ANDQ(operand.I32(31), rem)
	g.JZ(operand.LabelRef(label + "_sum"))
	for n := range nr {
		zero := g.YMM()
		g.VXORPS(zero, zero, zero)
		g.VMOVUPS(zero, d.buffer)
		g.VMOVUPS(zero, d.buffer.Offset(32))
		row, i, word := g.GP64(), g.GP64(), g.GP32()
		g.LEAQ(d.weight(n), row)
		g.XORQ(i, i)
		g.Label(fmt.Sprintf("%s_copy%d", label, n))
		g.MOVWLZX(operand.Mem{Base: row, Index: i, Scale: 2}, word)
		to := d.buffer
		to.Index, to.Scale = i, 2
		g.MOVW(word.As16(), to)
		g.INCQ(i)
		g.CMPQ(i, rem)
		g.JLT(operand.LabelRef(fmt.Sprintf("%s_copy%d", label, n)))
		column := make([][]reg.VecVirtual, d.mr)
		for m := range column {
			column[m] = acc[m][n : n+1]
		}
		whole := *d
		whole.ahead = nil
		whole.w = g.GP64()
		g.LEAQ(d.buffer, whole.w)
		whole.block(column, 1, false)
	}
	g.Label(label + "_sum")
}
