package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func emitNorm(g *isa) {
	emitSumSquares(g, false)
	emitSumSquares(g, true)
	emitMul(g, false)
	emitMul(g, true)
}

// emitSumSquares: four accumulators over blocks of four vectors; single vectors
// and the tail go to the first.
func emitSumSquares(g *isa, add bool) {
	g.result = " float32"
	if add {
		g.function("addSumSquares", "x, delta *float32, n int", "adds delta to x and sums the squares.")
	} else {
		g.function("sumSquares", "x *float32, n int", "sums the squares of x.")
	}
	g.result = ""
	x, pointers := g.arg("x"), []pointer(nil)
	var delta reg.GPVirtual
	pointers = append(pointers, pointer{x, 4})
	if add {
		delta = g.arg("delta")
		pointers = append(pointers, pointer{delta, 4})
	}
	n, sums := g.arg("n"), g.vecs(4)
	g.zero(sums...)
	g.each(n, 4, pointers, func(i int) {
		v := g.vec()
		g.VMOVUPS(g.at(x, i), v)
		if add {
			g.VADDPS(g.at(delta, i), v, v)
			g.VMOVUPS(v, g.at(x, i))
		}
		g.VFMADD231PS(v, v, sums[i])
	}, func(m mask) {
		v := g.vec()
		g.loadTail(g.at(x, 0), m, v)
		if add {
			w := g.vec()
			g.loadTail(g.at(delta, 0), m, w)
			g.VADDPS(w, v, v)
			g.storeTail(v, m, g.at(x, 0))
		}
		g.VFMADD231PS(v, v, sums[0])
	})
	g.VADDPS(sums[1], sums[0], sums[0])
	g.VADDPS(sums[3], sums[2], sums[2])
	g.VADDPS(sums[2], sums[0], sums[0])
	g.Store(g.fold(sums[0], g.add).AsX(), g.ReturnIndex(0))
	g.end()
}

func emitMul(g *isa, bf16 bool) {
	if bf16 {
		g.function("mulBF16", "out, x *float32, w *uint16, n int, scale float32", "is out = x * scale * w.")
	} else {
		g.function("mulF32", "out, x, w *float32, n int, scale float32", "is out = x * scale * w.")
	}
	out, x, w, n := g.arg("out"), g.arg("x"), g.arg("w"), g.arg("n")
	scale := g.broadcastArg("scale")
	size := 4
	if bf16 {
		size = 2
	}
	pointers := []pointer{{out, 4}, {x, 4}, {w, size}}
	body := func(i int) {
		v := g.vec()
		g.VMULPS(g.at(x, i), scale, v)
		if bf16 {
			f := g.vec()
			g.VPMOVZXWD(operand.Mem{Base: w, Disp: i * g.bytes() / 2}, f)
			g.VPSLLD(operand.U8(16), f, f)
			g.VMULPS(f, v, v)
		} else {
			g.VMULPS(g.at(w, i), v, v)
		}
		g.VMOVUPS(v, g.at(out, i))
	}
	if bf16 && !g.wide() {
		// AVX2 cannot mask 16-bit loads: what is left goes one by one.
		g.loop("block", n, 4*g.lanes, pointers, 4, body)
		g.loop("vector", n, g.lanes, pointers, 1, body)
		g.loop("single", n, 1, pointers, 1, func(int) {
			word, f, v := g.GP32(), g.XMM(), g.XMM()
			g.MOVWLZX(operand.Mem{Base: w}, word)
			g.SHLL(operand.U8(16), word)
			g.VMOVD(word, f)
			g.VMOVSS(operand.Mem{Base: x}, v)
			g.VMULSS(scale.AsX(), v, v)
			g.VMULSS(f, v, v)
			g.VMOVSS(v, operand.Mem{Base: out})
		})
		g.end()
		return
	}
	g.each(n, 4, pointers, body, func(m mask) {
		v, f := g.vec(), g.vec()
		g.loadTail(g.at(x, 0), m, v)
		if bf16 {
			g.VPMOVZXWD_Z(operand.Mem{Base: w}, m.k, f)
			g.VPSLLD(operand.U8(16), f, f)
		} else {
			g.loadTail(g.at(w, 0), m, f)
		}
		g.VMULPS(scale, v, v)
		g.VMULPS(f, v, v)
		g.storeTail(v, m, g.at(out, 0))
	})
	g.end()
}
