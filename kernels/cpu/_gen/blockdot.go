package main

import (
	"fmt"
	"math/bits"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in blockdot.Tile; a test there holds them to the Go declaration.
const (
	bP      = 0
	bW      = 8
	bS      = 16
	bTable  = 24
	bOut    = 32 // [8]pointer
	bGroups = 96
	bTiles  = 104
	bAhead  = 112
	bStep   = 120
	bSmall  = 128

	panelBytes = 512 // of a group of a band in a panel, of one plane
)

// blockKind has the differences between the encodings of blocks (package tensor). A group is 32 columns.
type blockKind struct {
	short, name string
	groups      int  // of a block
	lines       int  // of values of a group
	subs        int  // scales of a group
	offset      int  // unpacked values are this much too large: 0 or 8 times a power of two
	mins        bool // there are minima
	wideOnly    bool // the offset is for AVX-512; AVX2 has signed values
	panel       bool // weights are a panel: signed bytes, and scales and minima as float32
	wideValues  bool // a value has several bytes when it is unpacked; see width
	fours       bool // AVX2 leaves the offset in panels; see blockfours.go
	head, small int  // bytes with the scales: of a block, of a group
	named       map[string]uint32
	// factors reads the factors of rows, which are before the scales of the tile.
	factors func(d *blockTile)
	// header reads what is with the scales of a block; partial: the last may have fewer groups.
	partial bool
	header  func(d *blockTile)
	// scale leaves the scales of a group's columns [sub] as float32 in v.
	scale func(d *blockTile, sub int, v reg.VecVirtual)
	// values unpacks the columns of sub and gives use each vector with the number of the four
	// columns of prepared activations that it meets.
	values func(d *blockTile, sub int, use func(w reg.VecVirtual, four int))
}

// blockTile is the state while one tile is written: mr rows of activations against packed tiles of
// 16 weight rows of blocks. Activations are prepared: for each group of 32 columns their values, 32
// bytes a row, then scales, the sums that undo the offset, and what minima are multiplied with. So
// one register walks through all rows.
// AVX2 walks through a tile twice, for its first eight rows and for the others.
type blockTile struct {
	*isa
	*blockKind
	mr, half int
	unpack   bool // writes a panel instead; mr is 0

	t, p, q, s, left, tmp reg.GPVirtual
	q0, s0, tiles, out    reg.GPVirtual
	to                    reg.GPVirtual // where a panel's scales go; its values go to p
	group                 reg.GPVirtual // 16 times the group of a block
	table, ahead          reg.GPVirtual
	scratch               operand.Mem
	sums, acc             []reg.VecVirtual
	d, dmin               reg.VecVirtual
	times, over, again    reg.VecVirtual // of factors; see divided
	fixed                 map[string]reg.VecVirtual
	kept                  []reg.VecVirtual // of the second 16 columns of a group
}

// emitBlockdot writes the products of few rows with blocks, the unpacking of blocks into panels, and
// the products of more rows with panels. AVX-VNNI prepares and unpacks as AVX2 does.
func emitBlockdot(g *isa) {
	if !g.vnni() {
		emitPrepare(g)
	}
	direct, least, most := 2, 2, 4
	if g.wide() {
		direct, least, most = 4, 4, 8
	}
	for _, kind := range blockKinds {
		if g.skips(kind) {
			continue
		}
		for mr := 1; mr <= direct; mr++ {
			g.emitBlocks(kind, mr)
		}
		if !g.vnni() {
			g.emitBlocks(kind, 0)
		}
	}
	if !g.wide() {
		emitFours(g)
	}
	for _, kind := range panelKinds {
		if g.skips(kind) {
			continue
		}
		for mr := least; mr <= most; mr++ {
			g.emitBlocks(kind, mr)
		}
	}
}

// emitBlocks writes the product of mr rows; 0: the unpacking.
func (g *isa) emitBlocks(kind *blockKind, mr int) {
	d := &blockTile{isa: g, blockKind: kind, mr: mr, unpack: mr == 0, fixed: map[string]reg.VecVirtual{}}
	if d.unpack {
		g.function(kind.short+"Unpack", "t *byte", fmt.Sprintf("unpacks t.Tiles tiles of %s weights.", kind.name))
	} else {
		g.function(fmt.Sprintf("%sRows%d", kind.short, mr), "t *byte",
			fmt.Sprintf("multiplies %d rows of activations with t.Tiles tiles of %s.", mr, kind.name))
	}
	d.load()
	d.loops()
	g.end()
}

func (d *blockTile) load() {
	g := d.isa
	d.t = g.arg("t")
	field := func(off int) reg.GPVirtual {
		r := g.GP64()
		g.MOVQ(operand.Mem{Base: d.t, Disp: off}, r)
		return r
	}
	d.q, d.s, d.tiles = field(bW), field(bS), field(bTiles)
	d.p, d.left, d.tmp, d.out = g.GP64(), g.GP64(), g.GP64(), g.GP64()
	if d.unpack {
		d.to = g.GP64()
	}
	if !g.wide() || d.panel {
		d.q0, d.s0 = g.GP64(), g.GP64()
	}
	g.XORQ(d.out, d.out)
	if d.header != nil {
		d.scratch, d.group = g.AllocLocal(256), g.GP64()
		if d.d = g.vec(); d.mins {
			d.dmin = g.vec()
		}
	}
	if !d.panel {
		d.table, d.ahead = field(bTable), field(bAhead)
	}
	d.sums, d.acc = g.vecs(d.mr), g.vecs(d.mr)
	if g.wide() {
		for _, name := range sorted(d.named) {
			d.fixed[name] = g.bits(name, d.named[name], g.ZMM())
		}
	}
}

// k is a constant of the kind: a register, or memory on AVX2.
func (d *blockTile) k(name string) operand.Op {
	if r, ok := d.fixed[name]; ok {
		return r
	}
	return d.repeated(name, d.named[name])
}

// repeated is a constant in memory, in every lane of a vector.
func (g *isa) repeated(name string, value ...uint32) operand.Mem {
	var all []uint32
	for len(all) < g.lanes {
		all = append(all, value...)
	}
	return g.table("all"+name, all)
}

// loaded is a vector of constants in a register.
func (g *isa) loaded(m operand.Mem) reg.VecVirtual {
	v := g.vec()
	g.VMOVUPS(m, v)
	return v
}

func (d *blockTile) loops() {
	g := d.isa
	if d.panel {
		g.MOVQ(d.q, d.q0)
		g.MOVQ(d.s, d.s0)
	}
	g.Label("tile")
	if g.wide() {
		d.rewind()
		d.pass("")
	} else {
		if !d.panel {
			g.MOVQ(d.q, d.q0)
			g.MOVQ(d.s, d.s0)
		}
		d.rewind()
		d.pass("")
		g.MOVQ(d.q0, d.q)
		g.MOVQ(d.s0, d.s)
		d.half = 1
		d.pass("2")
		d.half = 0
	}
	if d.panel {
		g.ADDQ(operand.I32(int32(panelBytes*d.width())), d.q0)
		g.ADDQ(operand.I32(int32(64*d.floats())), d.s0)
	}
	g.ADDQ(operand.I32(64), d.out)
	g.DECQ(d.tiles)
	g.JNZ(operand.LabelRef("tile"))
}

// rewind begins a tile of a panel.
func (d *blockTile) rewind() {
	if d.panel {
		d.MOVQ(d.q0, d.q)
		d.MOVQ(d.s0, d.s)
	}
}

// width is the number of bytes of an unpacked value: planes, each of which has a vector of four columns.
// On AVX-512 they are digits to the base 128, the least first. On AVX2 one of four has the value, in
// units of its own.
func (d *blockTile) width() int {
	switch {
	case !d.wideValues:
		return 1
	case d.wide():
		return unitDigits
	}
	return len(planeUnits)
}

const unitDigits = 3

var planeUnits = [...]uint32{1, 8, 128, 2048}

// horner goes on to the next digit.
func (d *blockTile) horner(sub int) {
	for m, acc := range d.acc {
		d.VPSLLD(operand.U8(7), acc, acc)
		offset := d.vec()
		d.bias(m, sub, offset)
		d.VPADDD(offset, acc, acc)
	}
}

// pass writes the sums of the rows of a half, or their part of a panel.
func (d *blockTile) pass(suffix string) {
	g := d.isa
	d.begin()
	g.MOVQ(operand.Mem{Base: d.t, Disp: bGroups}, d.left)
	if d.factors != nil {
		d.factors(d)
	}
	if d.header != nil {
		g.Label("block" + suffix)
		d.header(d)
		g.ADDQ(operand.I32(int32(d.head)), d.s)
		g.XORQ(d.group, d.group)
	}
	g.Label("group" + suffix)
	for sub := range d.subs {
		d.start(sub)
		d.values(d, sub, d.use)
		d.finish(sub)
	}
	if d.mins {
		d.subtract()
	}
	d.next()
	switch {
	case d.partial:
		g.DECQ(d.left)
		g.JZ(operand.LabelRef("end" + suffix))
		g.ADDQ(operand.I32(16), d.group)
		g.CMPQ(d.group, operand.I32(int32(16*d.groups)))
		g.JNE(operand.LabelRef("group" + suffix))
		g.JMP(operand.LabelRef("block" + suffix))
		g.Label("end" + suffix)
	case d.header != nil:
		g.ADDQ(operand.I32(16), d.group)
		g.CMPQ(d.group, operand.I32(int32(16*d.groups)))
		g.JNE(operand.LabelRef("group" + suffix))
		g.SUBQ(operand.I32(int32(d.groups)), d.left)
		g.JNZ(operand.LabelRef("block" + suffix))
	default:
		g.DECQ(d.left)
		g.JNZ(operand.LabelRef("group" + suffix))
	}
	for m, sum := range d.sums {
		g.MOVQ(operand.Mem{Base: d.t, Disp: bOut + 8*m}, d.tmp)
		g.VMOVUPS(sum, operand.Mem{Base: d.tmp, Index: d.out, Scale: 1, Disp: 32 * d.half})
	}
}

// begin sets the pointers and sums of a pass.
func (d *blockTile) begin() {
	g := d.isa
	if d.unpack {
		g.MOVQ(operand.Mem{Base: d.t, Disp: bOut}, d.p)
		for range d.width() {
			g.LEAQ(operand.Mem{Base: d.p, Index: d.out, Scale: panelBytes / 64}, d.p)
		}
		g.MOVQ(operand.Mem{Base: d.t, Disp: bOut + 8}, d.to)
		g.LEAQ(operand.Mem{Base: d.to, Index: d.out, Scale: uint8(d.floats())}, d.to)
		return
	}
	g.MOVQ(operand.Mem{Base: d.t, Disp: bP}, d.p)
	if !d.panel {
		g.zero(d.sums...)
		return
	}
	for m, sum := range d.sums { // of the columns before
		g.MOVQ(operand.Mem{Base: d.t, Disp: bOut + 8*m}, d.tmp)
		g.VMOVUPS(operand.Mem{Base: d.tmp, Index: d.out, Scale: 1, Disp: 32 * d.half}, sum)
	}
}

// next goes on to the next group.
func (d *blockTile) next() {
	g := d.isa
	step, small := operand.Mem{Base: d.t, Disp: bStep}, operand.Mem{Base: d.t, Disp: bSmall}
	if d.panel {
		g.ADDQ(step, d.q)
		g.ADDQ(small, d.s)
	} else {
		g.ADDQ(operand.I32(int32(64*d.lines)), d.q)
		if d.small > 0 {
			g.ADDQ(operand.I32(int32(d.small)), d.s)
		}
	}
	if d.unpack {
		g.ADDQ(step, d.p)
		g.ADDQ(small, d.to)
	} else {
		g.ADDQ(operand.I32(int32(d.prepared())), d.p)
	}
}

// Where the parts of a group of prepared activations lie.
func (d *blockTile) prepared() int { return d.preparedRow() * d.mr }

func (d *blockKind) preparedRow() int {
	if d.mins {
		return 40 + 4*d.subs
	}
	return 36 + 4*d.subs
}

func (d *blockTile) fourOf(m, four int) operand.Mem {
	return operand.Mem{Base: d.p, Disp: 32*m + four%8*4}
}
func (d *blockTile) scaleOf(m int) operand.Mem {
	return operand.Mem{Base: d.p, Disp: 32*d.mr + 4*m}
}
func (d *blockTile) biasOf(m, sub int) operand.Mem {
	return operand.Mem{Base: d.p, Disp: 36*d.mr + 4*(sub*d.mr+m)}
}
func (d *blockTile) minOf(m int) operand.Mem {
	return operand.Mem{Base: d.p, Disp: (36+4*d.subs)*d.mr + 4*m}
}

// signed reports whether unpacked values are signed bytes.
func (d *blockTile) signed() bool { return d.wideOnly && !d.wide() }

// start begins the sums of a group with what undoes the offset.
func (d *blockTile) start(sub int) {
	if d.unpack {
		return
	}
	if d.offset == 0 || d.signed() {
		d.zero(d.acc...)
		return
	}
	for m, acc := range d.acc {
		d.bias(m, sub, acc)
	}
}

// bias sets a vector to the number that undoes the offset in a sum.
func (d *blockTile) bias(m, sub int, to reg.VecVirtual) {
	d.VPBROADCASTD(d.biasOf(m, sub), to)
	if n := bits.TrailingZeros(uint(d.offset / 8)); n > 0 {
		d.VPSLLD(operand.U8(uint8(n)), to, to)
	}
}

// use adds the products of four columns of a plane (8 more for each), or writes them to a panel as
// signed bytes.
func (d *blockTile) use(w reg.VecVirtual, four int) {
	g := d.isa
	if d.unpack {
		if d.offset != 0 && !d.signed() && (g.wide() || !d.fours) {
			v := g.vec()
			g.VPSUBB(g.repeated(fmt.Sprintf("offset%d", d.offset), uint32(d.offset)*0x01010101), w, v)
			w = v
		}
		g.VMOVUPS(w, operand.Mem{Base: d.p, Disp: 64*four + 32*d.half})
		return
	}
	if g.wide() {
		for m, acc := range d.acc {
			g.dpb(d.fourOf(m, four), w, acc)
		}
		return
	}
	abs := w
	if d.signed() {
		abs = g.YMM()
		g.VPABSB(w, abs)
	}
	for m, acc := range d.acc {
		x := g.YMM()
		g.VPBROADCASTD(d.fourOf(m, four), x)
		if d.signed() {
			g.VPSIGNB(w, x, x)
		}
		if unit := planeUnits[four/8]; g.vnni() && unit == 1 {
			g.dpb(x, abs, acc)
			continue
		}
		g.VPMADDUBSW(x, abs, x)
		unit := planeUnits[four/8]
		g.VPMADDWD(g.repeated(fmt.Sprintf("words%d", unit), unit*0x00010001), x, x)
		g.VPADDD(x, acc, acc)
	}
}

// finish adds a group to the sums.
func (d *blockTile) finish(sub int) {
	g := d.isa
	scale := g.vec()
	d.scale(d, sub, scale)
	if d.unpack {
		g.VMOVUPS(scale, operand.Mem{Base: d.to, Disp: 64*sub + 32*d.half})
		return
	}
	for m, acc := range d.acc {
		both := g.vec()
		if g.wide() {
			g.VMULPS_BCST(d.scaleOf(m), scale, both)
		} else {
			g.VBROADCASTSS(d.scaleOf(m), both)
			g.VMULPS(scale, both, both)
		}
		g.VCVTDQ2PS(acc, acc)
		g.VFMADD231PS(both, acc, d.sums[m])
	}
}

// subtract subtracts the minima of a group.
func (d *blockTile) subtract() {
	g := d.isa
	low := g.vec()
	if d.panel {
		g.VMOVUPS(d.aside(64*d.subs, 4), low)
	} else {
		g.VPMOVZXBD(d.inScratch(128), low)
		g.VCVTDQ2PS(low, low)
		g.VMULPS(d.dmin, low, low)
	}
	if d.unpack {
		g.VMOVUPS(low, operand.Mem{Base: d.to, Disp: 64*d.subs + 32*d.half})
		return
	}
	for m, sum := range d.sums {
		if g.wide() {
			g.VFMADD231PS_BCST(d.minOf(m), low, sum)
			continue
		}
		x := g.YMM()
		g.VBROADCASTSS(d.minOf(m), x)
		g.VFMADD231PS(x, low, sum)
	}
}

// inScratch is a byte for each row, of the group at hand.
func (d *blockTile) inScratch(at int) operand.Mem {
	m := d.scratch.Offset(at + 8*d.half)
	m.Index, m.Scale = d.group, 1
	return m
}

// line is a line of values of the group, of the half's rows; it asks for the one some way ahead.
func (d *blockTile) line(n int) operand.Mem {
	if d.half == 0 && !d.panel {
		d.PREFETCHT0(operand.Mem{Base: d.q, Index: d.ahead, Scale: 1, Disp: 64 * n})
	}
	return operand.Mem{Base: d.q, Disp: 64*n + 32*d.half}
}

// aside is a part of what lies with the scales: size bytes for each row.
func (d *blockTile) aside(at, size int) operand.Mem {
	return operand.Mem{Base: d.s, Disp: at + 8*size*d.half}
}
