// Package streams lies between residual streams and the blocks of a layer: it makes their input, and adds what blocks
// and tables of n-grams give.
package streams

import (
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/model"
)

// Block is the weights around a block, or before the head: with one stream a norm, else what mixes the
// streams (model.Streams).
type Block struct {
	model.Streams
	Eps  float32    // rms_norm_eps
	Norm device.Mat // [1, n*H], of mixed streams [1, H]
	// Fn, Base and Scale are of mixed streams, and absent where the head reads their mean.
	Fn    device.Weight // [(2+n)*n, n*H] F32, before the head [n, n*H]
	Base  device.Mat    // [1, (2+n)*n] F32
	Scale device.Mat    // [1, 3] F32
	// Absent with one stream and with mixed ones; Inject also before the head. Joined, unless absent, is the rows of Down, those of
	// Inject and zeros, for an accelerator (model.StreamScratch); these two are absent then.
	Down   device.Weight // [rank, n*H]
	Up     device.Weight // [n*H, rank]
	Inject device.Weight // [n, n*H]
	Joined device.Weight
}

// Enter appends that out [T, H] is the input of the block for the streams x [T, n*H], and shows a probe what is computed,
// by names that begin with prefix; "": nothing. m is scratch memory of T
// rows; with several streams Leave needs m.Inject or m.Low.
func (b *Block) Enter(p *stages.Program, out, x device.Mat, m stages.Mixing, layer int, prefix string) {
	if !b.Several() {
		p.RMSNorm(out, x, b.Norm, b.Eps)
		return
	}
	if b.Mixed() {
		b.collapse(p, out, x, m)
		if n := b.Count; prefix != "" {
			p.Observe(layer, prefix+"in", out)
			p.Observe(layer, prefix+"post", m.Low.ColRange(n, 2*n))
			p.Observe(layer, prefix+"comb", m.Low.ColRange(2*n, m.Low.Cols))
		}
		p.RMSNorm(out, out, b.Norm, b.Eps)
		return
	}
	part := 1 / float32(b.Count)
	norms(p, m.Normed, x, b.Norm, b.Count, b.Eps)
	low, inject := device.Sigmoid{Silu: true, In: part, Out: 1}, device.Sigmoid{In: part, Out: 2}
	if b.Joined.Zero() {
		p.MatMul(m.Low, m.Normed, device.QRows{}, &b.Down)
		if !b.Inject.Zero() {
			p.MatMul(m.Inject, m.Normed, device.QRows{}, &b.Inject)
			p.Sigmoid(m.Inject, inject)
		}
		p.Sigmoid(m.Low, low)
	} else {
		p.MatMul(m.Joined, m.Normed, device.QRows{}, &b.Joined)
		p.Sigmoid(m.Low, low)
		p.Sigmoid(m.Inject, inject)
	}
	p.MatMul(m.Weights, m.Low, device.QRows{}, &b.Up)
	p.Sigmoid(m.Weights, device.Sigmoid{In: 1, Out: part})
	p.Collapse(out, m.Normed, m.Weights)
	if prefix != "" {
		p.Observe(layer, prefix+"inject", m.Inject)
	}
}

// Leave appends that the output y [T, H] of the block is added to the streams x [T, n*H].
func (b *Block) Leave(p *stages.Program, x, y device.Mat, m stages.Mixing) {
	if !b.Several() {
		p.Add(x, y)
		return
	}
	if b.Mixed() {
		p.Spread(x, y, m.Low.ColRange(b.Count, m.Low.Cols), x)
		return
	}
	p.Spread(x, y, m.Inject, x)
}

// collapse appends that out is the sum of mixed streams.
func (b *Block) collapse(p *stages.Program, out, x device.Mat, m stages.Mixing) {
	if b.Fn.Zero() {
		p.Collapse(out, x, device.Mat{})
		return
	}
	weights := m.Low.ColRange(0, b.Base.Cols)
	p.MatMul(weights, x, device.QRows{}, &b.Fn)
	p.MixWeights(weights, x, b.Base, b.Scale, b.Mix(b.Eps))
	p.Collapse(out, x, weights.ColRange(0, b.Count))
}

// norms appends the norms of n streams, each with its part of w [1, n*H].
func norms(p *stages.Program, out, x, w device.Mat, n int, eps float32) {
	h := x.Cols / n
	for s := range n {
		from, to := s*h, (s+1)*h
		p.RMSNorm(out.ColRange(from, to), x.ColRange(from, to), w.ColRange(from, to), eps)
	}
}
