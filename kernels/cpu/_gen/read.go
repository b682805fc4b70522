package main

import "github.com/mmcloughlin/avo/operand"

// emitRead writes vector loops over memory, for measuring how fast it can be
// read, a loop that asks for rows, and the pause of spin loops.
func emitRead(g *isa) {
	g.function("read", "p *byte, n int", "loads n bytes, a multiple of 256, and uses them for nothing.")
	emitReadLoop(g, 0)
	g.function("readAhead", "p *byte, n int", "is readAVX2 that asks for lines 4 KB before it loads them.")
	emitReadLoop(g, 4096)
	emitFetchRows(g)
	g.text("pause", "func()")
	g.Doc("pause tells the core that this is a spin loop.")
	g.PAUSE()
	g.RET()
}

// emitReadLoop loads blocks of four lines, with a prefetch ahead bytes before
// their use when ahead is not 0. A prefetch past the end of mapped memory is
// dropped by the processor.
func emitReadLoop(g *isa, ahead int) {
	p, n, sums := g.arg("p"), g.arg("n"), g.vecs(8)
	g.zero(sums...)
	g.loop("block", n, 256, []pointer{{p, 1}}, 1, func(int) {
		for i, s := range sums {
			if ahead > 0 && i%2 == 0 {
				g.PREFETCHT0(g.at(p, i).Offset(ahead))
			}
			g.VXORPS(g.at(p, i), s, s)
		}
	})
	g.end()
}

// emitFetchRows writes a loop that asks for the lines of rows.
func emitFetchRows(g *isa) {
	g.function("fetchRows", "p uintptr, n, stride, rows int", "asks for the n bytes of each of some rows, at least one, which begin stride bytes apart. It never faults.")
	p, n, stride, rows := g.arg("p"), g.arg("n"), g.arg("stride"), g.arg("rows")
	at, end := g.GP64(), g.GP64()
	g.Label("row")
	g.MOVQ(p, at)
	g.LEAQ(operand.Mem{Base: p, Index: n, Scale: 1}, end)
	g.Label("line")
	g.PREFETCHT0(operand.Mem{Base: at})
	g.ADDQ(operand.I32(64), at)
	g.CMPQ(at, end)
	g.JLT(operand.LabelRef("line"))
	g.ADDQ(stride, p)
	g.DECQ(rows)
	g.JNZ(operand.LabelRef("row"))
	g.end()
}
