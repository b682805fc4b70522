package main

import (
	"fmt"
	"math/bits"

	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in qdot.Tile; a test there holds them to the Go declaration.
const (
	qMost       = 16 // rows
	qX          = 0  // [qMost]pointer, as the next three
	qScale      = 8 * qMost
	qBias       = 16 * qMost
	qOut        = 24 * qMost
	qW          = 32 * qMost
	qS          = qW + 8
	qK          = qW + 16
	qSteps      = qW + 24
	qTiles      = qW + 32
	qAhead      = qW + 40
	qRows       = qW + 48
	qScratch    = qW + 56
	qTileBytes  = qW + 64
	qScaleBytes = qW + 72
	qLine       = 64 // bytes
	qColumn     = 32 // columns of a step
)

// Tiles of more than prefetchRows rows have no register left for the distance of
// the prefetch; theirs is fixed. Most of their calls find the weights in cache, but
// the first for each weight does not.
const (
	prefetchRows = 6
	fixedAhead   = 4096
)

// qdotTile is the state while one tile is written: mr rows of activations
// against packed tiles of 16 weight rows, one weight tile after another.
//
// A line of weights is one load and meets 4 bytes of each row of activations,
// the same for all 16 weight rows: a broadcast. Sums need no folding: lane r of
// an accumulator is weight row r.
//
// Registers: q and s walk through values and scales, which follow one another
// from tile to tile; k is the column, from 0 in each tile; g the byte of the
// group in Scale and Bias; it the steps of 32 columns left in a group. Counters
// of tiles are in memory, there are no more registers.
type qdotTile struct {
	*isa
	bits, mr int
	half     bool // scales are IEEE half precision, not bfloat16

	t           reg.GPVirtual
	x           []reg.GPVirtual
	q, s, k, g  reg.GPVirtual
	it, tmp     reg.GPVirtual
	ahead       reg.GPVirtual         // nil: no prefetch
	groupRows   map[int]reg.GPVirtual // rows of Scale and Bias, when there are registers for them
	tiles, out  operand.Mem           // tiles left; bytes of results written
	low, high   reg.VecVirtual
	ones        reg.VecVirtual
	sums        []reg.VecVirtual // float32, a row of activations each (AVX-512)
	sign        reg.VecVirtual   // AVX2, INT8: 0x80 in every byte
	table       reg.VecVirtual   // INT3: the stored weight of each code
	halves      []int            // AVX2: the halves of a line this pass is for
	accumulator [][]reg.VecVirtual
}

func emitQdot(g *isa) {
	for _, e := range []struct {
		function, name string
		bits           int
		half           bool
	}{{"int3", "INT3", 3, false}, {"int4", "INT4", 4, false}, {"int8", "INT8", 8, false}, {"q8", "Q8_0", 8, true}} {
		most := 4
		switch {
		case g.wide():
			most = 8
		case e.bits == 4 && !g.vnni():
			most = 2
			g.emitQdotMany()
		}
		for mr := 1; mr <= most; mr++ {
			g.function(fmt.Sprintf("%sRows%d", e.function, mr), "t *byte",
				fmt.Sprintf("multiplies %d rows of activations with t.Tiles tiles of %s weights.", mr, e.name))
			d := &qdotTile{isa: g, bits: e.bits, half: e.half, mr: mr}
			d.load()
			switch {
			case g.wide():
				d.wideTiles()
			case g.vnni():
				d.vnniTiles()
			default:
				d.narrowTiles()
			}
			g.end()
		}
	}
}

// stepBytes returns the number of bytes of a weight tile that hold 32 columns.
func (d *qdotTile) stepBytes() int { return d.bits * 64 }

// lines is the number of lines in a step.
func (d *qdotTile) lines() int { return d.bits }

func (d *qdotTile) load() {
	g := d.isa
	d.t = g.arg("t")
	field := func(off int) reg.GPVirtual {
		r := g.GP64()
		g.MOVQ(operand.Mem{Base: d.t, Disp: off}, r)
		return r
	}
	for m := range d.mr {
		d.x = append(d.x, field(qX+8*m))
	}
	d.q, d.s = field(qW), field(qS)
	d.k, d.g, d.it, d.tmp = g.GP64(), g.GP64(), g.GP64(), g.GP64()
	d.groupRows = map[int]reg.GPVirtual{}
	for m := 0; d.mr <= 2 && m < d.mr; m++ {
		d.groupRows[qScale+8*m], d.groupRows[qBias+8*m] = field(qScale+8*m), field(qBias+8*m)
	}
	if d.mr <= prefetchRows {
		d.ahead = field(qAhead)
	}
	d.tiles, d.out = g.AllocLocal(8), g.AllocLocal(8)
	g.MOVQ(operand.Mem{Base: d.t, Disp: qTiles}, d.tmp)
	g.MOVQ(d.tmp, d.tiles)
	g.MOVQ(operand.I32(0), d.out)
}

// prefetch asks for a line of weights some way ahead.
func (d *qdotTile) prefetch(line int) {
	at := operand.Mem{Base: d.q, Disp: line*qLine + fixedAhead}
	if d.ahead != nil {
		at = operand.Mem{Base: d.q, Index: d.ahead, Scale: 1, Disp: line * qLine}
	}
	d.PREFETCHT0(at)
}

// activations are 4 bytes of row m, for a broadcast.
func (d *qdotTile) activations(m, column int) operand.Mem {
	return operand.Mem{Base: d.x[m], Index: d.k, Scale: 1, Disp: column}
}

// perGroup is element g of a row of Scale or Bias.
func (d *qdotTile) perGroup(off, m int) operand.Mem {
	row, ok := d.groupRows[off+8*m]
	if !ok {
		row = d.tmp
		d.MOVQ(operand.Mem{Base: d.t, Disp: off + 8*m}, row)
	}
	return operand.Mem{Base: row, Index: d.g, Scale: 1}
}

// eachTile writes the loop over weight tiles.
func (d *qdotTile) eachTile(body func()) {
	g := d.isa
	g.Label("tile")
	body()
	g.ADDQ(operand.I32(qLine), d.out)
	g.DECQ(d.tiles)
	g.JNZ(operand.LabelRef("tile"))
}

// eachGroup writes the loops over the groups of a tile and the steps of a group.
func (d *qdotTile) eachGroup(suffix string, start, step, finish func()) {
	g := d.isa
	g.XORQ(d.k, d.k)
	g.XORQ(d.g, d.g)
	g.Label("group" + suffix)
	start()
	g.MOVQ(operand.Mem{Base: d.t, Disp: qSteps}, d.it)
	g.Label("step" + suffix)
	step()
	g.ADDQ(operand.I32(int32(d.stepBytes())), d.q)
	g.ADDQ(operand.I32(qColumn), d.k)
	g.DECQ(d.it)
	g.JNZ(operand.LabelRef("step" + suffix))
	finish()
	g.ADDQ(operand.I32(32), d.s)
	g.ADDQ(operand.I32(4), d.g)
	g.CMPQ(d.k, operand.Mem{Base: d.t, Disp: qK})
	g.JLT(operand.LabelRef("group" + suffix))
}

// outAt is where the current tile's results of row m go.
func (d *qdotTile) outAt(m int) operand.Mem {
	d.MOVQ(operand.Mem{Base: d.t, Disp: qOut + 8*m}, d.tmp)
	d.ADDQ(d.out, d.tmp)
	return operand.Mem{Base: d.tmp}
}

// dpb is VPDPBUSD, which avo does not know: acc += 4 products of unsigned bytes
// of w and signed bytes of x in each lane. x is a register, or 4 bytes of memory
// for all lanes.
func (g *isa) dpb(x operand.Op, w, acc reg.Register) {
	in := &ir.Instruction{Opcode: "VPDPBUSD", Operands: []operand.Op{x, w, acc}, Inputs: []operand.Op{x, w, acc}, Outputs: []operand.Op{acc}}
	if _, ok := x.(operand.Mem); ok {
		in.Suffixes = []string{"BCST"}
	}
	g.Instruction(in)
}

// stored is the number that is added to weights to make them unsigned: INT4 and INT8 are kept so,
// and INT3's table has them so.
func (d *qdotTile) stored() int { return map[int]int{3: 16, 4: 8, 8: 128}[d.bits] }

// biasShift is log2 of how many times the element of Bias undoes stored.
func (d *qdotTile) biasShift() uint8 { return uint8(bits.Len(uint(d.stored() / 16))) }

// chains is the number of accumulators of a row: few rows would wait for the
// latency of one another's products. With two, INT4 has one for the low and one
// for the high nibbles; a single row takes these as they lie, 16 times their
// value, and shifts the sum instead of the weights.
func (d *qdotTile) chains() int {
	if d.mr <= 3 {
		return 2
	}
	return 1
}

func (d *qdotTile) shiftsSum() bool { return d.bits == 4 && d.mr == 1 }

// wideTiles is AVX-512 with VNNI. Weights are unsigned, so the sum starts at minus what makes them
// so times the sum of the activations.
func (d *qdotTile) wideTiles() {
	g := d.isa
	if d.bits == 3 {
		d.table = g.ZMM()
		g.int3Table("int3table", d.stored(), d.table)
		d.low, d.high = g.bits("int3low", 0x07070707, g.ZMM()), g.bits("int3two", 0x03030303, g.ZMM())
	}
	if d.bits == 4 {
		d.low = g.bits("lownibbles", 0x0f0f0f0f, g.ZMM())
	}
	if d.shiftsSum() {
		d.high = g.bits("highnibbles", 0xf0f0f0f0, g.ZMM())
	}
	d.sums = g.vecs(d.mr)
	d.accumulator = make([][]reg.VecVirtual, d.mr)
	for m := range d.accumulator {
		d.accumulator[m] = g.vecs(d.chains())
	}
	d.eachTile(func() {
		g.zero(d.sums...)
		d.eachGroup("", d.wideStart, d.wideStep, d.wideFinish)
		for m, sum := range d.sums {
			g.VMOVUPS(sum, d.outAt(m))
		}
	})
}

func (d *qdotTile) wideStart() {
	for m, acc := range d.accumulator {
		d.VPBROADCASTD(d.perGroup(qBias, m), acc[0]) // -8 times the sum
		if shift := d.biasShift(); shift > 0 {
			d.VPSLLD(operand.U8(shift), acc[0], acc[0])
		}
		d.zero(acc[1:]...)
	}
}

func (d *qdotTile) wideStep() {
	g := d.isa
	if d.bits == 3 {
		d.wideStep3()
		return
	}
	for line := range d.lines() {
		w := []reg.VecVirtual{g.ZMM()}
		g.VMOVDQU64(operand.Mem{Base: d.q, Disp: line * qLine}, w[0])
		d.prefetch(line)
		if d.bits == 4 {
			low, high := g.ZMM(), g.ZMM()
			g.VPANDD(d.low, w[0], low)
			if d.shiftsSum() {
				g.VPANDD(d.high, w[0], high)
			} else {
				g.VPSRLD(operand.U8(4), w[0], high)
				g.VPANDD(d.low, high, high)
			}
			w = []reg.VecVirtual{low, high}
		}
		for i := range w {
			nth := line*len(w) + i // of the step's columns, by four
			for m, acc := range d.accumulator {
				g.dpb(d.activations(m, 4*nth), w[i], acc[nth%len(acc)])
			}
		}
	}
}

// scales loads the scales of some rows as float32.
func (d *qdotTile) scales(from operand.Mem, to reg.VecVirtual) {
	if d.half {
		d.VCVTPH2PS(from, to)
		return
	}
	d.VPMOVZXWD(from, to)
	d.VPSLLD(operand.U8(16), to, to)
}

func (d *qdotTile) wideFinish() {
	g := d.isa
	scale := g.ZMM()
	d.scales(operand.Mem{Base: d.s}, scale)
	for m, acc := range d.accumulator {
		if d.shiftsSum() {
			g.VPSRAD(operand.U8(4), acc[1], acc[1])
		}
		for _, other := range acc[1:] {
			g.VPADDD(other, acc[0], acc[0])
		}
		both := g.ZMM()
		g.VMULPS_BCST(d.perGroup(qScale, m), scale, both)
		g.VCVTDQ2PS(acc[0], acc[0])
		g.VFMADD231PS(both, acc[0], d.sums[m])
	}
}
