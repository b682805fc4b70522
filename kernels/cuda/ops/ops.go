// Package ops turns the operators of the stages into lists of launches. It chooses the family of
// kernels for a shape, the scratch memory and the order. It needs no driver, so tests on any
// machine cover all of it.
package ops

import (
	"fmt"

	"krater/kernels/cuda/compressed"
	"krater/kernels/cuda/delta"
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/gemv"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/route"
	"krater/kernels/cuda/sample"
	"krater/kernels/device"
)

// Builder appends operators to a list.
type Builder struct {
	GPU  launch.GPU
	List *launch.List
	// Scratch returns n bytes of the GPU's memory, aligned to 256. It may return the same memory
	// at every call, because the operators of one stream run one after the other.
	Scratch func(n int) launch.Ptr
	// Hold is Scratch for memory that stays while Scratch gives more, until it is called with 0.
	Hold func(n int) launch.Ptr
	// Turn is route.TurnBytes of zeros on the GPU; they are zeros again after every operator. 0:
	// none.
	Turn launch.Ptr
	// Plain makes every operator run the plain kernels, with which the fast ones are compared.
	Plain bool
	// Invariant makes a row's bits depend on its numerics class alone, never on the number of
	// rows. The first Generated rows of an operator, at most gemv.MaxRows, take the kernels for
	// few rows; the rows after them take the kernels for many.
	Invariant bool
	Generated int
	// Same gives experts a processor's arithmetic.
	Same bool

	form form
}

// Network is a SwiGLU network: W13 [2F, H] is gate's rows, then up's (joined in tiles),
// W2 [H, F]. Of Extra the activation may be that of an operator of its own. In a mixture, Gate [1, H]
// gives each row's result the factor sigmoid(x * gate).
type Network struct {
	W13, W2 launch.Weight
	Gate    launch.Mat
	launch.Extra
}

// Zero reports whether n is absent.
func (n *Network) Zero() bool { return n.W13.Rows() == 0 }

// GatherRows computes out[i] = table[ids[i]].
func (b *Builder) GatherRows(out, table, ids launch.Mat) { elem.GatherRows(b.List, out, table, ids) }

// RMSNorm computes out = x / sqrt(mean(x^2) + eps) * w.
func (b *Builder) RMSNorm(out, x, w launch.Mat, eps float32) {
	if !gemv.NormCombined(b.List, out, x, w, eps) {
		elem.RMSNorm(b.List, out, x, w, eps)
	}
}

// LayerNorm computes out = (x - mean(x)) / sqrt(variance(x) + eps) * w + b.
func (b *Builder) LayerNorm(out, x, w, bias launch.Mat, eps float32) {
	elem.LayerNorm(b.List, out, x, w, bias, eps)
}

// AddRMSNorm computes x += delta; out = RMSNorm(x).
func (b *Builder) AddRMSNorm(out, x, delta, w launch.Mat, eps float32) {
	elem.AddRMSNorm(b.List, out, x, delta, w, eps)
}

// Add computes x += delta.
func (b *Builder) Add(x, delta launch.Mat) { elem.Add(b.List, x, delta) }

// AddBias computes x += bias in every row.
func (b *Builder) AddBias(x, bias launch.Mat) { elem.AddBias(b.List, x, bias) }

// GateRows computes out *= sigmoid(x * w), one factor per row.
func (b *Builder) GateRows(out, x, w launch.Mat) { elem.GateRows(b.List, out, x, w) }

// Gate computes out *= sigmoid(x), element by element.
func (b *Builder) Gate(out, x launch.Mat) { elem.Gate(b.List, out, x) }

// Conv computes the convolution of gated DeltaNet for the spans of list, whose table is at table.
func (b *Builder) Conv(out, x, w launch.Mat, tail launch.KV, list []device.Span, table launch.Mat, decode bool, p device.DeltaNet) {
	delta.Conv(b.List, out, x, w, tail.Mat, list, table, decode, p)
}

// Delta computes the gated delta rule for the spans of list, whose table is at table. Where prompts are
// cut changes the last bits of chunks, so with Invariant there are none.
func (b *Builder) Delta(out, x, ba, decay, bias launch.Mat, states launch.KV, list []device.Span, table launch.Mat, generated bool, p device.DeltaNet) {
	if !generated && !b.Plain && !b.Invariant && delta.CanChunk(b.GPU, out, x, ba, p) {
		delta.Chunks(b.List, b.GPU, out, x, ba, decay, bias, states.Mat, list, table, p)
		return
	}
	delta.Rule(b.List, out, x, ba, decay, bias, states.Mat, list, table, generated, p)
}

// GatedNorm computes the norm of gated DeltaNet's output, in place.
func (b *Builder) GatedNorm(out, x, w launch.Mat, eps float32, p device.DeltaNet) {
	delta.GatedNorm(b.List, out, x, w, eps, p)
}

// Rope rotates x in place.
func (b *Builder) Rope(x, positions, table launch.Mat, p device.Rope) {
	if p.Back {
		compressed.RopeBack(b.List, x, positions, table, p)
		return
	}
	elem.Rope(b.List, x, positions, table, p)
}

// CopyRows copies src to dst, of one type and size.
func (b *Builder) CopyRows(dst, src launch.Mat) { elem.CopyRows(b.List, dst, src) }

// StoreRows writes rows of a cache.
func (b *Builder) StoreRows(cache launch.KV, src, slots launch.Mat) {
	elem.StoreRows(b.List, cache, src, slots)
}

// Latent does norm, rotation and store of latent attention.
func (b *Builder) Latent(cache launch.KV, q, kv, norm launch.Mat, eps float32, positions, slots, table launch.Mat, qRope, kRope device.Rope) {
	elem.LatentStore(b.List, cache, q, kv, norm, eps, positions, slots, table, qRope, kRope)
}

// HeadNorm computes RMSNorm over each of the heads of x in place.
func (b *Builder) HeadNorm(x launch.Mat, heads int, w launch.Mat, eps float32) {
	elem.HeadNorm(b.List, x, heads, w, eps)
}

// HeadStore does norm (if there are norms), rotation and store of grouped-query attention.
func (b *Builder) HeadStore(cache launch.KV, q, kv, qNorm, kNorm launch.Mat, eps float32, positions, slots, table launch.Mat, qRope, kRope device.Rope) {
	h := elem.Heads{Q: q, KV: kv, QNorm: qNorm, KNorm: kNorm, Eps: eps, Positions: positions, Slots: slots, Angles: table, Rope: qRope, KRope: kRope}
	if elem.CanHeadStore(cache, &h) {
		elem.HeadStore(b.List, cache, &h)
		return
	}
	keys := kv.ColRange(0, kv.Cols/2)
	if !qNorm.Zero() {
		b.HeadNorm(q, qRope.Heads, qNorm, eps)
		b.HeadNorm(keys, kRope.Heads, kNorm, eps)
	}
	b.Rope(q, positions, table, qRope)
	b.Rope(keys, positions, table, kRope)
	b.StoreRows(cache, kv, slots)
}

// Route computes router logits, plus the gate's bias, and chooses experts.
func (b *Builder) Route(ids, weights, logits, x launch.Mat, gate launch.Weight, bias launch.Mat, p device.Router) {
	var parts launch.Ptr
	b.lay(func(a *arena) {
		if x.Rows <= route.MaxFused {
			a.cut(b.sortedBytes(x.Rows, p.TopK, p.Experts)) // Mix may let the same launch sort to it
		}
		parts = a.cut(route.Scratch(x.Rows, gate.F.Rows, gate.F.Cols))
	})
	route.Route(b.List, ids, weights, logits, x, gate, bias, p, 0, b.Turn, parts)
}

// NormRoute computes Route of x = RMSNorm(of).
func (b *Builder) NormRoute(ids, weights, logits, x, of, norm launch.Mat, eps float32, gate launch.Weight, bias launch.Mat, p device.Router) {
	if !b.Plain && x.Rows <= NormRows && b.Turn != 0 && route.CanNorm(x, of, norm, gate.F, p) {
		route.NormRoute(b.List, ids, weights, logits, x, of, norm, eps, gate, bias, p, b.Turn, b.Scratch(route.Scratch(x.Rows, gate.F.Rows, gate.F.Cols)))
		return
	}
	b.RMSNorm(x, of, norm, eps)
	b.Route(ids, weights, logits, x, gate, bias, p)
}

// WeighChosen multiplies the weights of chosen experts with factors, and orders both anew; without
// factors it does nothing.
func (b *Builder) WeighChosen(ids, weights, factors launch.Mat) {
	if !factors.Zero() {
		elem.WeighChosen(b.List, ids, weights, factors)
	}
}

// MixWeights turns products into the weights of mixed streams, in place.
func (b *Builder) MixWeights(out, x, base, scale launch.Mat, p device.StreamMix) {
	elem.MixWeights(b.List, out, x, base, scale, p)
}

// MixedInput makes mixed streams the input of a block.
func (b *Builder) MixedInput(out launch.Mat, m *elem.Mixed) {
	elem.MixedInput(b.List, out, m, b.Scratch(elem.MixedScratch(m.X.Rows, out.Cols, m.W.Rows)))
}

// Activate computes x = the activation of act for x and up.
func (b *Builder) Activate(x, up launch.Mat, act launch.Extra) {
	elem.Activate(b.List, x, x, up, &act)
}

// Scale computes x *= factor.
func (b *Builder) Scale(x launch.Mat, factor float32) { elem.Scale(b.List, x, x, factor) }

// Softcap computes x = limit * tanh(x / limit).
func (b *Builder) Softcap(x launch.Mat, limit float32) { elem.Softcap(b.List, x, limit) }

// TopK chooses experts.
func (b *Builder) TopK(ids, weights, logits, bias launch.Mat, p device.Router) {
	route.TopK(b.List, ids, weights, logits, bias, p, 0)
}

// RouteByToken weighs the experts that table has for each token.
func (b *Builder) RouteByToken(ids, weights, logits, tokens, table launch.Mat, p device.Router) {
	route.ByToken(b.List, ids, weights, logits, tokens, table, p)
}

// ChangeLogits applies penalties, biases and masks in place.
func (b *Builder) ChangeLogits(logits launch.Mat, c *sample.Changes) {
	sample.Change(b.List, logits, c)
}

// Choose chooses one token per row of logits [n, V], by the n draws.
func (b *Builder) Choose(ids, logits, draws launch.Mat) {
	sample.Sample(b.List, ids, logits, draws.At, launch.Mat{}, launch.Mat{}, b.Scratch(sample.Scratch(logits.Rows, logits.Cols)))
}

// WeightedSum computes out[t] = the sum over k of weights[t, k] * y[t*K+k], plus base[t].
func (b *Builder) WeightedSum(out, y, weights, base launch.Mat) {
	elem.WeightedSum(b.List, out, y, weights, base)
}

// WeightedSumOf computes WeightedSum of the choices ids [T, K] whose expert has a slot, not below
// 0 in where [1, E].
func (b *Builder) WeightedSumOf(out, y, weights, base, ids, where launch.Mat) {
	elem.SumHere(b.List, out, y, weights, base, elem.Here{IDs: ids, Map: where.At, Experts: where.Cols})
}

func refuse(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}
