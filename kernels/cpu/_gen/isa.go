package main

import (
	"math"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// isa hides what differs between 256 and 512 bits: registers, tails, shuffles.
type isa struct {
	*build.Context
	suffix string // of function and file names
	lanes  int    // float32 values in a vector
	name   string // of the function being written, for labels
	result string // result list of the next function

	constants map[string]operand.Mem
}

func (g *isa) wide() bool { return g.lanes == 16 }

// vnni reports whether there are integer dot products of 256 bits; see vnni.go.
func (g *isa) vnni() bool { return g.suffix == "AVXVNNI" }

// bytes is the size of a vector.
func (g *isa) bytes() int { return 4 * g.lanes }

func (g *isa) vec() reg.VecVirtual {
	if g.wide() {
		return g.ZMM()
	}
	return g.YMM()
}

func (g *isa) vecs(n int) []reg.VecVirtual {
	all := make([]reg.VecVirtual, n)
	for i := range all {
		all[i] = g.vec()
	}
	return all
}

func (g *isa) zero(all ...reg.VecVirtual) {
	for _, v := range all {
		g.VXORPS(v, v, v)
	}
}

// arg loads a parameter into a general register.
func (g *isa) arg(name string) reg.GPVirtual {
	r := g.GP64()
	g.Load(g.Param(name), r)
	return r
}

// broadcastArg is a float32 parameter in every lane.
func (g *isa) broadcastArg(name string) reg.VecVirtual {
	v := g.vec()
	addr, err := g.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	g.VBROADCASTSS(addr.Addr, v)
	return v
}

// bits is a 4-byte constant in every lane of v; the constant is shared.
func (g *isa) bits(name string, value uint32, v reg.VecVirtual) reg.VecVirtual {
	g.VBROADCASTSS(g.table(name, []uint32{value}), v)
	return v
}

func (g *isa) float(name string, value float64) reg.VecVirtual {
	return g.bits(name, math.Float32bits(float32(value)), g.vec())
}

// table is a constant array of 32-bit values.
func (g *isa) table(name string, values []uint32) operand.Mem {
	if g.constants == nil {
		g.constants = map[string]operand.Mem{}
	}
	m, ok := g.constants[name]
	if !ok {
		m = g.global(name, values)
		g.constants[name] = m
	}
	return m
}

// mask selects the first lanes of a vector.
type mask struct {
	k reg.OpmaskVirtual
	v reg.VecVirtual
}

// tail makes a mask of the first n lanes, 0 < n < lanes; n is kept.
func (g *isa) tail(n reg.GPVirtual) mask {
	if g.wide() {
		t, k := g.GP64(), g.K()
		g.MOVQ(operand.I32(-1), t)
		g.BZHIQ(n, t, t)
		g.KMOVW(t.As32(), k)
		return mask{k: k}
	}
	// A window of a table of 8 ones and 8 zeros.
	values := make([]uint32, 16)
	for i := range 8 {
		values[i] = math.MaxUint32
	}
	t, v := g.GP64(), g.YMM()
	g.LEAQ(g.table("tailmask", values).Offset(32), t)
	off := g.GP64()
	g.MOVQ(n, off)
	g.SHLQ(operand.U8(2), off)
	g.SUBQ(off, t)
	g.VMOVDQU(operand.Mem{Base: t}, v)
	return mask{v: v}
}

// loadTail loads the lanes of m, zero elsewhere; nothing else is touched.
func (g *isa) loadTail(src operand.Mem, m mask, dst reg.VecVirtual) {
	if g.wide() {
		g.VMOVUPS_Z(src, m.k, dst)
	} else {
		g.VMASKMOVPS(src, m.v, dst)
	}
}

func (g *isa) storeTail(src reg.VecVirtual, m mask, dst operand.Mem) {
	if g.wide() {
		g.VMOVUPS(src, m.k, dst)
	} else {
		g.VMASKMOVPS(src, m.v, dst)
	}
}

// or keeps the lanes of m in v and takes the others from w.
func (g *isa) or(v reg.VecVirtual, m mask, w reg.VecVirtual) {
	if g.wide() {
		t := g.ZMM()
		g.VMOVAPS(w, t)
		g.VMOVAPS(v, m.k, t)
		g.VMOVAPS(t, v)
	} else {
		g.VBLENDVPS(m.v, v, w, v)
	}
}

// fold combines all lanes of v with an instruction into lane 0 of an XMM
// register, always in the same tree: lanes i and i+8, i+4, i+2, i+1.
func (g *isa) fold(v reg.VecVirtual, op func(ops ...operand.Op)) reg.VecVirtual {
	y := v
	if g.wide() {
		hi := g.YMM()
		g.VEXTRACTF64X4(operand.U8(1), v, hi)
		lo := v.AsY().(reg.VecVirtual)
		y = g.YMM()
		op(hi, lo, y)
	}
	hi, x := g.XMM(), g.XMM()
	g.VEXTRACTF128(operand.U8(1), y, hi)
	op(hi, y.AsX(), x)
	t := g.XMM()
	g.VMOVHLPS(x, x, t)
	op(t, x, x)
	t = g.XMM()
	g.VMOVSHDUP(x, t)
	op(t, x, x)
	return x
}

// add sums with VADDPS.
func (g *isa) add(ops ...operand.Op) { g.VADDPS(ops...) }

// each writes the loop of an elementwise kernel: main for whole vectors (unroll
// of them at a time while there are enough), tail for the rest. The counter n
// is consumed; pointers advance by the bytes given with them.
func (g *isa) each(n reg.GPVirtual, unroll int, pointers []pointer, body func(i int), tail func(m mask)) {
	if unroll > 1 {
		g.loop("block", n, unroll*g.lanes, pointers, unroll, body)
	}
	g.loop("vector", n, g.lanes, pointers, 1, body)
	g.TESTQ(n, n)
	g.JZ(operand.LabelRef("done"))
	tail(g.tail(n))
	g.Label("done")
}

// pointer is a register that walks with a loop, by size bytes an element.
type pointer struct {
	r    reg.GPVirtual
	size int
}

func (g *isa) loop(label string, n reg.GPVirtual, step int, pointers []pointer, unroll int, body func(i int)) {
	g.Label(label)
	g.CMPQ(n, operand.I32(int32(step)))
	g.JLT(operand.LabelRef(label + "_end"))
	for i := range unroll {
		body(i)
	}
	for _, p := range pointers {
		g.ADDQ(operand.I32(int32(step*p.size)), p.r)
	}
	g.SUBQ(operand.I32(int32(step)), n)
	g.JMP(operand.LabelRef(label))
	g.Label(label + "_end")
}

// at is vector i at p.
func (g *isa) at(p reg.GPVirtual, i int) operand.Mem {
	return operand.Mem{Base: p, Disp: i * g.bytes()}
}

// end closes a function.
func (g *isa) end() {
	g.VZEROUPPER()
	g.RET()
}

// oddMask returns the mask that oddHalf uses, nil if it uses none.
func (g *isa) oddMask() reg.VecVirtual {
	if g.wide() {
		return g.bits("oddmask", 0xffff0000, g.ZMM())
	}
	return nil
}

// oddHalf clears the lower half of every lane: what is left is the odd one of
// two BF16 values, as F32. AVX2 has no register to spare for the mask and
// shifts twice.
func (g *isa) oddHalf(v, odd reg.VecVirtual) {
	if g.wide() {
		g.VPANDD(odd, v, v)
		return
	}
	g.VPSRLD(operand.U8(16), v, v)
	g.VPSLLD(operand.U8(16), v, v)
}

// global is an array of 32-bit constants, visible in its file only.
func (g *isa) global(name string, values []uint32) operand.Mem {
	m := g.StaticGlobal(name)
	g.DataAttributes(attr.RODATA | attr.NOPTR)
	for i, v := range values {
		g.AddDatum(4*i, operand.U32(v))
	}
	return m
}

// text begins a function.
func (g *isa) text(name, signature string) {
	g.Function(name)
	g.Attributes(attr.NOSPLIT)
	g.SignatureExpr(signature)
}
