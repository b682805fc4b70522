package ops

import (
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/gemm"
	"krater/kernels/cuda/gemv"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/link"
	"krater/kernels/cuda/moe"
	"krater/kernels/cuda/native"
	"krater/kernels/cuda/plain"
	"krater/kernels/cuda/route"
	"krater/kernels/tensor"
)

// routerRows is the most float32 outputs of a product that is treated as a router's. Such a
// product is exact in float32: a choice of experts must not depend on the rounding of a sum.
const routerRows = 1024

// exact reports whether a product is treated as a router's.
func exact(out launch.Mat, w *launch.Weight) bool {
	return out.DType == tensor.F32 && w.A.Zero() && w.Rows() <= routerRows
}

// MatMul computes out = x * w^T, plus w's bias.
func (b *Builder) MatMul(out, x launch.Mat, w launch.Weight) {
	if exact(out, &w) { // with kernels that all add in one order
		route.Logits(b.List, out, x, w.F, b.Scratch(route.Scratch(x.Rows, w.F.Rows, w.F.Cols)))
		b.addBias(out, &w)
		return
	}
	if b.forms("MatMul", x.Rows, func(from, to int) { b.MatMul(out.RowRange(from, to), x.RowRange(from, to), w) }) {
		return
	}
	if b.rounded(out, x, &w) {
		return
	}
	switch to, in := b.sized(out), b.sized(x); {
	case b.few(x.Rows) && gemv.Can(in, &w):
		gemv.MatMul(b.List, b.GPU, out, x, w, gemv.Options{})
		return
	case !b.Plain && !w.A.Zero() && moe.CanDense(to, in, &w.A):
		moe.Dense(b.List, b.GPU, out, x, w.A, moe.Store)
	case !b.Plain && w.A.Zero() && gemm.Can(to, in, w.F):
		b.wide(out, x, w.F)
	default:
		plain.MatMul(b.List, out, x, w)
	}
	b.addBias(out, &w)
}

// addBias adds w's bias, if it has one, to a product.
func (b *Builder) addBias(out launch.Mat, w *launch.Weight) {
	if w.Bias != 0 {
		b.AddBias(out, launch.Mat{At: w.Bias, DType: tensor.F32, Rows: 1, Cols: out.Cols, Stride: out.Cols})
	}
}

// The most rows for which a product adds to the residual itself, and for which it norms its own
// rows. Every block norms all rows, which costs as much as a launch at about four rows.
const (
	AddRows  = gemv.MaxRows
	NormRows = 2
)

// AddMatMul computes x [M, N] F32 += in * w^T, plus w's bias; delta [M, N] is room for the product.
func (b *Builder) AddMatMul(x, delta, in launch.Mat, w launch.Weight) {
	if b.forms("AddMatMul", x.Rows, func(from, to int) {
		b.AddMatMul(x.RowRange(from, to), delta.RowRange(from, to), in.RowRange(from, to), w)
	}) {
		return
	}
	if b.few(in.Rows) && gemv.Can(b.sized(in), &w) {
		gemv.MatMul(b.List, b.GPU, x, in, w, gemv.Options{Add: true})
		return
	}
	b.MatMul(delta, in, w)
	b.Add(x, delta)
}

// NormMatMul computes out = RMSNorm(x) * w^T, plus w's bias; in is room for the normed rows, and may be x.
func (b *Builder) NormMatMul(out, in, x, norm launch.Mat, eps float32, w launch.Weight) {
	if b.few(in.Rows) && in.Rows <= NormRows && !exact(out, &w) && gemv.CanNorm(b.GPU, in, x, norm, &w) {
		gemv.NormMatMul(b.List, b.GPU, out, x, norm, eps, w)
		return
	}
	b.RMSNorm(in, x, norm, eps)
	b.MatMul(out, in, w)
}

// wide computes a product of many rows of bfloat16.
func (b *Builder) wide(out, x, w launch.Mat) {
	var o gemm.Options
	if n := b.partsBytes(x.Rows, w.Rows, w.Cols); n > 0 {
		o.Scratch = b.Scratch(n)
	}
	gemm.BF16(b.List, b.GPU, out, x, w, o)
}

// partsBytes returns the scratch memory of a product that is summed in parts. The number of parts
// depends on the number of rows, so with Invariant there is one.
func (b *Builder) partsBytes(rows, n, k int) int {
	if b.Invariant {
		return 0
	}
	return gemm.Scratch(b.GPU, rows, n, k)
}

// FFN computes one network for all rows.
func (b *Builder) FFN(out, x launch.Mat, n Network) {
	if b.forms("FFN", x.Rows, func(from, to int) { b.FFN(out.RowRange(from, to), x.RowRange(from, to), n) }) {
		return
	}
	if b.apart(out, x, &n) {
		return
	}
	if !n.Extra.Zero() {
		plain.FFN(b.List, out, b.Scratch(plain.ScratchBytes(x.Rows, n.W2.Cols(), x.DType)), x, n.W13, n.W2, n.Extra)
		return
	}
	if b.few(x.Rows) && gemv.CanFFN(b.sized(x), n.W13, n.W2) {
		h := b.Scratch(gemv.FFNScratch(x.Rows, n.W2.Cols()))
		gemv.FFN(b.List, b.GPU, out, h, x, n.W13, n.W2, gemv.Options{})
		return
	}
	if !b.Plain && !n.W13.A.Zero() && moe.CanFFN(b.sized(x), &n.W13.A, &n.W2.A) {
		h := b.Scratch(moe.HiddenBytes(x.Rows, n.W2.Cols()))
		moe.FFN(b.List, b.GPU, out, h, x, n.W13.A, n.W2.A, false)
		return
	}
	if !b.Plain && b.ffnWide(out, x, &n) {
		return
	}
	h := b.Scratch(plain.ScratchBytes(x.Rows, n.W2.Cols(), x.DType))
	plain.FFN(b.List, out, h, x, n.W13, n.W2, n.Extra)
}

// AddFFN computes x [M, H] F32 += FFN of in; delta [M, H] is room for that.
func (b *Builder) AddFFN(x, delta, in launch.Mat, n Network) {
	if b.forms("AddFFN", x.Rows, func(from, to int) {
		b.AddFFN(x.RowRange(from, to), delta.RowRange(from, to), in.RowRange(from, to), n)
	}) {
		return
	}
	if n.Extra.Zero() && b.few(in.Rows) && gemv.CanFFN(b.sized(in), n.W13, n.W2) {
		h := b.Scratch(gemv.FFNScratch(in.Rows, n.W2.Cols()))
		gemv.FFN(b.List, b.GPU, x, h, in, n.W13, n.W2, gemv.Options{Add: true})
		return
	}
	b.FFN(delta, in, n)
	b.Add(x, delta)
}

// ffnWide computes FFN of many rows with weights of bfloat16, if there are kernels for it.
func (b *Builder) ffnWide(out, x launch.Mat, n *Network) bool {
	w, down, width := n.W13.F, n.W2.F, n.W2.Cols()
	if w.Zero() || x.DType != tensor.BF16 {
		return false
	}
	h := launch.Mat{DType: tensor.BF16, Rows: x.Rows, Cols: width, Stride: width}
	gate, up := w.RowRange(0, width), w.RowRange(width, 2*width)
	if in, mid := b.sized(x), b.sized(h); !gemm.CanSwiGLU(mid, in, gate, up) || !gemm.Can(b.sized(out), mid, down) {
		return false
	}
	var o gemm.Options
	b.lay(func(a *arena) {
		h.At = a.cut(2 * x.Rows * width)
		if n := b.partsBytes(x.Rows, down.Rows, width); n > 0 {
			o.Scratch = a.cut(n)
		}
	})
	gemm.SwiGLU(b.List, b.GPU, h, x, gate, up, gemm.Options{})
	gemm.BF16(b.List, b.GPU, out, h, down, o)
	return true
}

// Experts computes a row of y [T*K, H] for every choice of ids [T, K].
func (b *Builder) Experts(y, x launch.Mat, bank launch.Bank, ids launch.Mat) {
	if b.Same {
		b.expertsSame(y, x, bank, ids)
		return
	}
	if native.Takes(&bank.W13.A) {
		b.expertsNative(y, x, bank, ids)
		return
	}
	if !b.Plain && !bank.W13.A.Zero() && moe.CanExperts(b.sized(x), &bank) {
		b.expertsMany(y, x, bank, ids)
		return
	}
	h := b.Scratch(plain.ScratchBytes(x.Rows*ids.Cols, bank.W2.Cols(), x.DType))
	plain.Experts(b.List, y, h, x, bank, ids)
}

// Mix computes a MoE block after the router's choice: delta = the weighted sum of the experts
// plus the shared network. y [T*K, H] and shared [T, H] are room for the parts.
func (b *Builder) Mix(delta, y, shared, x launch.Mat, bank launch.Bank, n Network, ids, weights launch.Mat) {
	if b.forms("Mix", x.Rows, func(from, to int) {
		b.Mix(delta.RowRange(from, to), y.RowRange(from*ids.Cols, to*ids.Cols), rowsOf(shared, from, to), x.RowRange(from, to), bank, n,
			ids.RowRange(from, to), weights.RowRange(from, to))
	}) {
		return
	}
	m := gemv.Mixture{X: x, Bank: bank, IDs: ids, Weights: weights, Shared: gemv.Network{W13: n.W13, W2: n.W2}, Gate: n.Gate}
	if n.Extra.Zero() && b.few(x.Rows) && b.canMoE(m) {
		b.mixFew(delta, &m, gemv.Options{})
		return
	}
	if !n.Extra.Zero() && b.few(x.Rows) { // the shared network has launches of its own
		m.Shared, m.Gate = gemv.Network{}, launch.Mat{}
		if b.canMoE(m) {
			b.mixFew(delta, &m, gemv.Options{})
			b.FFN(shared, x, n)
			if !n.Gate.Zero() {
				b.GateRows(shared, x, n.Gate)
			}
			b.Add(delta, shared)
			return
		}
	}
	b.Experts(y, x, bank, ids)
	if n.Zero() {
		shared = launch.Mat{}
	} else {
		b.FFN(shared, x, n)
		if !n.Gate.Zero() {
			b.GateRows(shared, x, n.Gate)
		}
	}
	if bank.Map != 0 {
		elem.SumHere(b.List, delta, y, weights, shared, elem.Here{IDs: ids, Map: bank.Map, Experts: bank.Experts})
		return
	}
	elem.WeightedSum(b.List, delta, y, weights, shared)
}

// AddMix computes hidden [T, H] F32 += Mix; delta is room for that.
func (b *Builder) AddMix(hidden, delta, y, shared, x launch.Mat, bank launch.Bank, n Network, ids, weights launch.Mat) {
	if b.forms("AddMix", x.Rows, func(from, to int) {
		b.AddMix(hidden.RowRange(from, to), delta.RowRange(from, to), y.RowRange(from*ids.Cols, to*ids.Cols), rowsOf(shared, from, to),
			x.RowRange(from, to), bank, n, ids.RowRange(from, to), weights.RowRange(from, to))
	}) {
		return
	}
	m := gemv.Mixture{X: x, Bank: bank, IDs: ids, Weights: weights, Shared: gemv.Network{W13: n.W13, W2: n.W2}, Gate: n.Gate}
	if n.Extra.Zero() && b.few(x.Rows) && b.canMoE(m) {
		b.mixFew(hidden, &m, gemv.Options{Add: true})
		return
	}
	b.Mix(delta, y, shared, x, bank, n, ids, weights)
	b.Add(hidden, delta)
}

// rowsOf returns rows [from, to) of m, which may be absent.
func rowsOf(m launch.Mat, from, to int) launch.Mat {
	if m.Zero() {
		return m
	}
	return m.RowRange(from, to)
}

// sortedBytes bounds the memory for sorted assignments in Mix and Experts, which cut it first.
func (b *Builder) sortedBytes(rows, topK, experts int) int {
	if b.Same {
		return sameSorted(rows, topK, experts)
	}
	if rows > gemv.MaxRows {
		return route.AlignedBytes(rows, topK, experts, moe.For(b.GPU, rows*topK, experts).Tokens())
	}
	most := 0
	for tile := 1; tile <= gemv.TileRows; tile++ {
		most = max(most, route.AlignedBytes(rows, topK, experts, tile))
	}
	return most
}

// expertsMany is Experts for many rows: assignments sorted by expert, then products of an expert
// with all its tokens.
func (b *Builder) expertsMany(y, x launch.Mat, bank launch.Bank, ids launch.Mat) {
	rows, topK := x.Rows, ids.Cols
	tile := moe.ForBank(b.GPU, rows*topK, &bank).Tokens()
	var sorted, sort, hidden launch.Ptr
	b.lay(func(a *arena) {
		sorted = a.cut(route.AlignedBytes(rows, topK, bank.Experts, tile))
		sort = a.cut(route.AlignScratch(rows, topK, bank.Experts))
		hidden = a.cut(moe.HiddenBytes(rows*topK, kept(&bank)))
	})
	a := route.NewAligned(sorted, rows, topK, bank.Experts, tile)
	a.Map = bank.Map
	route.Align(b.List, &a, ids, sort)
	moe.Experts(b.List, b.GPU, y, hidden, x, bank, a, moe.Options{})
}

// expertsNative is Experts with weights that are blocks of a file.
func (b *Builder) expertsNative(y, x launch.Mat, bank launch.Bank, ids launch.Mat) {
	rows, topK := x.Rows, ids.Cols
	if b.Plain || !native.Can(b.sized(x), &bank) {
		native.Plain(b.List, y, b.Scratch(native.HiddenBytes(rows*topK, kept(&bank), x.DType)), x, bank, ids)
		return
	}
	tile := native.Tile(rows*topK, bank.Experts)
	switch b.form {
	case few:
		tile = native.FewTokens
	case many:
		tile = native.ManyTokens
	}
	var sorted, sort, hidden launch.Ptr
	b.lay(func(a *arena) {
		sorted = a.cut(route.AlignedBytes(rows, topK, bank.Experts, tile))
		sort = a.cut(route.AlignScratch(rows, topK, bank.Experts))
		hidden = a.cut(native.HiddenBytes(rows*topK, kept(&bank), x.DType))
	})
	a := route.NewAligned(sorted, rows, topK, bank.Experts, tile)
	a.Map = bank.Map
	route.Align(b.List, &a, ids, sort)
	native.Experts(b.List, b.GPU, y, hidden, x, bank, a)
}

// mixFew is Mix for few rows.
func (b *Builder) mixFew(out launch.Mat, m *gemv.Mixture, o gemv.Options) {
	rows, topK, experts := m.X.Rows, m.IDs.Cols, m.Bank.Experts
	width := 0
	if !m.Shared.Zero() {
		width = m.Shared.Width()
	}
	tile := gemv.Tile(b.GPU, m)
	var sorted, sort, memory launch.Ptr
	b.lay(func(a *arena) {
		sorted = a.cut(b.sortedBytes(rows, topK, experts))
		a.cut(route.Scratch(rows, experts, m.X.Cols)) // Route's, which may still run or have left logits there
		if gemv.Grouped(rows) {
			sort = a.cut(route.AlignScratch(rows, topK, experts))
		}
		memory = a.cut(gemv.MoEScratch(rows, topK, m.X.Cols, m.Bank.W2.Cols(), width))
	})
	if gemv.Grouped(rows) {
		m.Aligned = route.NewAligned(sorted, rows, topK, experts, tile)
		m.Aligned.Map = m.Bank.Map
		link.After(b.List, m.Bank.Coming, func() { route.Align(b.List, &m.Aligned, m.IDs, sort) })
	}
	gemv.MoE(b.List, b.GPU, out, memory, m, o)
}
