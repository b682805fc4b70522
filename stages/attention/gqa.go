package attention

import (
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/model"
)

var _ = register(func(m model.GQA, b Binder) Block {
	w := &gqaBlock{spec: m, o: b.Weight("o")}
	var ok bool
	if w.joint, ok = b.Joint("qkv", "q", "k", "v"); !ok {
		w.q, w.k, w.v = b.Weight("q"), b.Weight("k"), b.Weight("v")
	}
	if m.Bias {
		w.qBias, w.kBias, w.vBias = b.Vector("q_bias"), b.Vector("k_bias"), b.Vector("v_bias")
	}
	if m.QKNorm {
		w.qNorm, w.kNorm = b.Vector("q_norm"), b.Vector("k_norm")
	}
	return w
})

// gqaBlock is the weights of a layer. d is the head size.
type gqaBlock struct {
	spec         model.GQA
	joint        device.Weight // q, k and v, which are absent then
	q            device.Weight // [heads*d, H]
	k, v         device.Weight // [kv_heads*d, H]
	o            device.Weight // [H, heads*d]
	qBias        device.Mat    // [1, heads*d], absent without biases
	kBias, vBias device.Mat    // [1, kv_heads*d]
	qNorm, kNorm device.Mat    // [1, d], absent without norms of heads
}

// gqa runs grouped-query attention.
type gqa struct {
	ops   GQAOps
	fused HeadStoreOps // nil: the device has none
	sizes device.GQA
	qRope device.Rope
	kRope device.Rope
	table device.Mat   // [context, rotary dims] F32
	both  device.Mat   // [tokens, heads*d+2*kv_heads*d] F32: q and kv, of a joint weight; absent without
	q     device.Mat   // [tokens, heads*d] F32
	kv    device.Mat   // [tokens, 2*kv_heads*d] F32, keys then values
	out   stages.Input // [tokens, heads*d]
	owned scratch
}

// New implements Block.
func (w *gqaBlock) New(dev device.Device, ops Ops, lim stages.Limits, tables Tables) (Stage, error) {
	m, rope := w.spec, w.spec.Rope
	g := &gqa{
		ops:   ops,
		sizes: m.Sizes(lim.BlockTokens),
		qRope: device.Rope{Heads: m.Heads, HeadDim: m.HeadDim, Dim: rope.Dim, Interleaved: rope.Interleaved},
		kRope: device.Rope{Heads: m.KVHeads, HeadDim: m.HeadDim, Dim: rope.Dim, Interleaved: rope.Interleaved},
		table: tables[rope],
	}
	g.fused, _ = ops.(HeadStoreOps)
	var out device.Mat
	width := 2 * m.KDim()
	pieces := []piece{{&g.q, m.QDim()}, {&g.kv, width}, {&out, m.QDim()}}
	if !w.joint.Zero() {
		pieces = []piece{{&g.both, m.QDim() + width}, pieces[2]}
	}
	err := g.owned.alloc(dev, lim.LayerRows(), pieces)
	if err != nil {
		return nil, err
	}
	if !g.both.Zero() {
		g.q, g.kv = g.both.ColRange(0, m.QDim()), g.both.ColRange(m.QDim(), g.both.Cols)
	}
	if g.out, err = g.owned.room(dev, out, &w.o); err != nil {
		return nil, err
	}
	return g, nil
}

// Close frees the scratch memory.
func (g *gqa) Close() { g.owned.free() }

// Run implements Stage; the rows of cache are [2*kv_heads*d].
func (g *gqa) Run(s device.Stream, st *stages.State, b Block, cache device.KV, layer int, probe stages.Probe) {
	w := b.(*gqaBlock)
	q, kv, out := g.q.RowRange(0, st.T), g.kv.RowRange(0, st.T), g.out.RowRange(st.T)
	cache = st.Stored(cache, layer)
	half := kv.Cols / 2
	keys, values := kv.ColRange(0, half), kv.ColRange(half, kv.Cols)
	if !g.both.Zero() {
		st.Input.Mul(s, g.ops, g.both.RowRange(0, st.T), &w.joint)
	}
	g.project(s, q, &st.Input, &w.q, w.qBias)
	g.project(s, keys, &st.Input, &w.k, w.kBias)
	g.project(s, values, &st.Input, &w.v, w.vBias)
	if probe != nil {
		probe.Observe(s, layer, "q", q, st)
		probe.Observe(s, layer, "k", keys, st)
		probe.Observe(s, layer, "v", values, st)
	}
	if g.fused != nil && probe == nil {
		g.fused.HeadStore(s, cache, q, kv, w.qNorm, w.kNorm, w.spec.NormEps, st.Positions, st.Slots, g.table, g.qRope, g.kRope)
	} else {
		g.store(s, st, w, cache, layer, probe)
	}

	if len(st.Prefill) > 0 {
		g.ops.GQA(s, out.X, q, cache, st.PrefillSpans(), g.sizes)
	}
	if len(st.Decode) > 0 {
		g.ops.GQA(s, out.X, q, cache, st.DecodeSpans(), g.sizes)
	}
	st.AddMul(s, g.ops, &out, &w.o, probe)
	if probe != nil {
		probe.Observe(s, layer, "attn", out.X, st)
		probe.Observe(s, layer, "mixer_out", st.Delta, st)
	}
}

// store norms the heads where they have norms, rotates queries and keys and stores the rows.
func (g *gqa) store(s device.Stream, st *stages.State, w *gqaBlock, cache device.KV, layer int, probe stages.Probe) {
	q, kv := g.q.RowRange(0, st.T), g.kv.RowRange(0, st.T)
	keys := kv.ColRange(0, kv.Cols/2)
	if w.spec.QKNorm {
		g.ops.HeadNorm(s, q, g.sizes.Heads, w.qNorm, w.spec.NormEps)
		g.ops.HeadNorm(s, keys, g.sizes.KVHeads, w.kNorm, w.spec.NormEps)
		if probe != nil {
			probe.Observe(s, layer, "q_norm", q, st)
			probe.Observe(s, layer, "k_norm", keys, st)
		}
	}
	g.ops.Rope(s, q, st.Positions, g.table, g.qRope)
	g.ops.Rope(s, keys, st.Positions, g.table, g.kRope)
	if probe != nil {
		probe.Observe(s, layer, "q_rotated", q, st)
		probe.Observe(s, layer, "k_pe", keys, st)
	}
	g.ops.StoreRows(s, cache, kv, st.Slots)
}

// project is out = x * w^T, plus the bias where there is one.
func (g *gqa) project(s device.Stream, out device.Mat, x *stages.Input, w *device.Weight, bias device.Mat) {
	if !w.Zero() {
		x.Mul(s, g.ops, out, w)
	}
	if !bias.Zero() {
		g.ops.AddBias(s, out, bias)
	}
}
