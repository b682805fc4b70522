package ops

import (
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/gemv"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/plain"
	"krater/kernels/cuda/route"
	"krater/kernels/tensor"
)

// routerRows is up to how many outputs of float32 a product is taken for a router's,
// which is exact in float32: a choice of experts must not hang on how a sum is rounded.
const routerRows = 1024

// MatMul is out = x * w^T.
func (b *Builder) MatMul(out, x launch.Mat, w launch.Weight) {
	switch {
	case out.DType == tensor.F32 && w.A.Zero() && w.Rows() <= routerRows:
		route.Logits(b.List, out, x, w.F)
	case !b.Plain && gemv.Can(x, &w):
		gemv.MatMul(b.List, b.Card, out, x, w, gemv.Options{})
	default:
		plain.MatMul(b.List, out, x, w)
	}
}

// FFN is one network for all rows.
func (b *Builder) FFN(out, x launch.Mat, n Network) {
	if !b.Plain && gemv.CanFFN(x, n.W13, n.W2) {
		h := b.Scratch(gemv.FFNScratch(x.Rows, n.W2.Cols()))
		gemv.FFN(b.List, b.Card, out, h, x, n.W13, n.W2, gemv.Options{})
		return
	}
	h := b.Scratch(plain.ScratchBytes(x.Rows, n.W2.Cols(), x.DType))
	plain.FFN(b.List, out, h, x, n.W13, n.W2)
}

// Experts is a row of y [T*K, H] for every choice of ids [T, K].
func (b *Builder) Experts(y, x launch.Mat, bank launch.Bank, ids launch.Mat) {
	h := b.Scratch(plain.ScratchBytes(x.Rows*ids.Cols, bank.W2.Cols(), x.DType))
	plain.Experts(b.List, y, h, x, bank, ids)
}

// Mix is a MoE block from the router's choice on: delta = the weighted sum of the
// experts plus the shared network. y [T*K, H] and shared [T, H] are room for the parts.
func (b *Builder) Mix(delta, y, shared, x launch.Mat, bank launch.Bank, n Network, ids, weights launch.Mat) {
	m := gemv.Mixture{X: x, Bank: bank, IDs: ids, Weights: weights, Shared: gemv.Network(n)}
	if !b.Plain && gemv.CanMoE(&m) {
		b.mixFew(delta, &m)
		return
	}
	b.Experts(y, x, bank, ids)
	if n.Zero() {
		shared = launch.Mat{}
	} else {
		b.FFN(shared, x, n)
	}
	elem.WeightedSum(b.List, delta, y, weights, shared)
}

// mixFew is Mix of few rows.
func (b *Builder) mixFew(delta launch.Mat, m *gemv.Mixture) {
	rows, topK, experts := m.X.Rows, m.IDs.Cols, m.Bank.Experts
	width := 0
	if !m.Shared.Zero() {
		width = m.Shared.Width()
	}
	var sorted, sort, memory launch.Ptr
	b.lay(func(a *arena) {
		if gemv.Grouped(rows) {
			sorted = a.cut(route.AlignedBytes(rows, topK, experts, gemv.TileRows))
			sort = a.cut(route.AlignScratch(rows, topK, experts))
		}
		memory = a.cut(gemv.MoEScratch(rows, topK, m.X.Cols, m.Bank.W2.Cols(), width))
	})
	if gemv.Grouped(rows) {
		m.Aligned = route.NewAligned(sorted, rows, topK, experts, gemv.TileRows)
		route.Align(b.List, &m.Aligned, m.IDs, sort)
	}
	gemv.MoE(b.List, b.Card, delta, memory, m, gemv.Options{})
}
