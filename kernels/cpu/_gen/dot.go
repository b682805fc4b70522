package main

import (
	"fmt"

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
)

// dotTile is the state while one tile is written: mr rows of activations
// against n weight rows at a time.
//
// Registers: x are the rows of activations, w and (for eight weight rows) w4 =
// w + 4 strides the weight rows, s and s3 one and three strides. k counts bytes
// of a weight row; activations of BF16 weights are twice as long, so their
// address is x + 2*k; those of F32 weights are x + k.
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
	n, out reg.GPVirtual // weight rows left; bytes of results written

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

// columns is how many weight rows a tile takes: enough accumulators to cover
// the latency of a multiply-add, as many as registers allow.
func columns(g *isa, mr int) int {
	switch {
	case mr == 1:
		return 8
	case g.wide() || mr == 2:
		return 4
	}
	return 2
}

func emitDotTile(g *isa, bf16 bool, mr int) {
	name := "f32"
	if bf16 {
		name = "bf16"
	}
	g.function(fmt.Sprintf("%sRows%d", name, mr), "t *byte",
		fmt.Sprintf("multiplies %d rows of activations with t.N weight rows.", mr))
	d := &dotTile{isa: g, bf16: bf16, mr: mr}
	d.load()
	for _, nr := range []int{columns(g, mr), 1} {
		d.rows(nr)
	}
	g.Label("end")
	g.end()
}

// blockBytes is what one step along K takes of a weight row.
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
	d.s3 = g.GP64()
	g.LEAQ(operand.Mem{Base: d.s, Index: d.s, Scale: 2}, d.s3)
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

// rows writes the loop over weight rows, nr at a time.
func (d *dotTile) rows(nr int) {
	g := d.isa
	label := fmt.Sprintf("by%d", nr)
	g.Label(label)
	g.CMPQ(d.n, operand.I32(int32(nr)))
	g.JLT(operand.LabelRef(label + "_end"))
	acc := make([][]reg.VecVirtual, d.mr)
	for m := range acc {
		acc[m] = g.vecs(nr)
		g.zero(acc[m]...)
	}
	if nr == 8 {
		d.w4 = g.GP64()
		g.LEAQ(operand.Mem{Base: d.w, Index: d.s, Scale: 4}, d.w4)
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
	// Back to the start of the row, then on by nr rows.
	g.SUBQ(d.k, d.w)
	switch nr {
	case 1:
		g.ADDQ(d.s, d.w)
	default:
		g.LEAQ(operand.Mem{Base: d.w, Index: d.s, Scale: uint8(nr)}, d.w)
	}
	d.store(acc, nr)
	g.ADDQ(operand.I32(int32(4*nr)), d.out)
	g.SUBQ(operand.I32(int32(nr)), d.n)
	g.JMP(operand.LabelRef(label))
	g.Label(label + "_end")
}

func (d *dotTile) advance(nr int) {
	g := d.isa
	step := operand.I32(int32(d.blockBytes()))
	g.ADDQ(step, d.w)
	if nr == 8 {
		g.ADDQ(step, d.w4)
	}
	g.ADDQ(step, d.k)
}

// weight is the address of weight row n at the current place.
func (d *dotTile) weight(n int) operand.Mem {
	base := d.w
	if n >= 4 {
		base, n = d.w4, n-4
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
		whole.w = g.GP64()
		g.LEAQ(d.buffer, whole.w)
		whole.block(column, 1, false)
	}
	g.Label(label + "_sum")
}
