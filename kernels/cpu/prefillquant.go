package cpu

import (
	"unsafe"

	"krater/kernels/cpu/axpy"
	"krater/kernels/cpu/dot"
	"krater/kernels/tensor"
)

// wideHead is kv_b of one head, kept as integers, widened to F32: exact, since an integer times a
// BF16 scale fits. Both halves come out transposed.
type wideHead struct {
	keys             *float32 // [padded Nope, keyRow], Rank values a row
	values           *float32 // [padded Rank, valueRow], V values a row
	keyRow, valueRow int
}

// wideWeights returns the scratch of a wideHead.
func (t *prefillTask) wideWeights() int {
	if !t.integer() {
		return 0
	}
	return t.kq[0].wideSize() + t.vq[0].wideSize()
}

// wideSize returns the number of values of widen.
func (p *quantProduct) wideSize() int { return p.k * p.tiles() * tensor.TileRows }

func (t *prefillTask) widenHead(l *lane, h int) (w wideHead) {
	k, v := &t.kq[h], &t.vq[h]
	w.keys, w.values = l.arena.take(k.wideSize()), l.arena.take(v.wideSize())
	w.keyRow, w.valueRow = k.tiles()*tensor.TileRows, v.tiles()*tensor.TileRows
	k.widen(w.keys)
	v.widen(w.values)
	return w
}

// widen writes the matrix [n, k] transposed to dst [k, n padded to whole tiles].
func (p *quantProduct) widen(dst *float32) {
	stride := 4 * p.tiles() * tensor.TileRows
	for tile := range p.tiles() {
		p.columns(shift(dst, tile*tensor.TileRows), (*byte)(unsafe.Add(p.w, tile*p.tileBytes)), (*byte)(unsafe.Add(p.s, tile*p.scaleBytes)), stride, p.groups(), p.steps)
	}
}

// expandWide is expand with widened weights, for n rows of latents in natural order. The values'
// weights are laid out as rows of a weighted sum.
func (t *prefillTask) expandWide(l *lane, c *prefillScratch, n int) {
	qk, w := t.Nope+t.Rope, &c.weights
	clearF32(c.values, n*t.V)
	l.dot.W, l.dot.Stride, l.dot.K, l.dot.N = unsafe.Pointer(w.keys), 4*w.keyRow, t.Rank, t.Nope
	l.axpy.W, l.axpy.Stride, l.axpy.N, l.axpy.Width = unsafe.Pointer(w.values), 4*w.valueRow, t.Rank, t.V
	for j := 0; j < n; j += dot.Rows {
		rows := min(dot.Rows, n-j)
		for i := range rows {
			latent := rowAt(c.latents, c.wide, j+i)
			l.dot.X[i], l.dot.Out[i] = latent, rowAt(c.keys, qk, j+i)
			l.axpy.P[i], l.axpy.Acc[i] = latent, rowAt(c.values, t.V, j+i)
		}
		t.dev.dot.F32[rows](&l.dot)
		t.dev.axpy.F32[min(rows, axpy.Rows)](&l.axpy)
	}
}
