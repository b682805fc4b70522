package main

// emitRead writes vector loops over memory, for measuring how fast it can be
// read, and the pause of spin loops.
func emitRead(g *isa) {
	g.function("read", "p *byte, n int", "loads n bytes, a multiple of 256, and uses them for nothing.")
	emitReadLoop(g, 0)
	g.function("readAhead", "p *byte, n int", "is readAVX2 that asks for lines 4 KB before it loads them.")
	emitReadLoop(g, 4096)
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
