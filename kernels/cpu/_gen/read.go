package main

// emitRead writes a plain vector loop over memory, for measuring how fast it
// can be read, and the pause of spin loops.
func emitRead(g *isa) {
	g.function("read", "p *byte, n int", "loads n bytes, a multiple of 256, and uses them for nothing.")
	p, n, sums := g.arg("p"), g.arg("n"), g.vecs(8)
	g.zero(sums...)
	g.loop("block", n, 256, []pointer{{p, 1}}, 1, func(int) {
		for i, s := range sums {
			g.VXORPS(g.at(p, i), s, s)
		}
	})
	g.end()
	g.text("pause", "func()")
	g.Doc("pause tells the core that this is a spin loop.")
	g.PAUSE()
	g.RET()
}
