package attention

import (
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/model"
)

// GQA runs grouped-query attention.
type GQA struct {
	ops   GQAOps
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

// NewGQA allocates scratch memory on dev for batches within lim. table is the
// cos/sin table of RopeTable on the same device.
func NewGQA(dev device.Device, ops GQAOps, cfg *model.Config, lim stages.Limits, w *Weights, table device.Mat) (*GQA, error) {
	a := cfg.Attention
	g := &GQA{
		ops:   ops,
		sizes: device.GQA{Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.HeadDim, Scale: a.Scale, BlockTokens: lim.BlockTokens},
		qRope: device.Rope{Heads: a.Heads, HeadDim: a.HeadDim, Dim: cfg.Rope.Dim, Interleaved: cfg.Rope.Interleaved},
		kRope: device.Rope{Heads: a.KVHeads, HeadDim: a.HeadDim, Dim: cfg.Rope.Dim, Interleaved: cfg.Rope.Interleaved},
		table: table,
	}
	var out device.Mat
	queries := a.Heads * a.HeadDim
	pieces := []piece{{&g.q, queries}, {&g.kv, a.KVWidth()}, {&out, a.OutDim()}}
	if !w.Joint.Zero() {
		pieces = []piece{{&g.both, queries + a.KVWidth()}, pieces[2]}
	}
	err := g.owned.alloc(dev, lim.LayerRows(), pieces)
	if err != nil {
		return nil, err
	}
	if !g.both.Zero() {
		g.q, g.kv = g.both.ColRange(0, queries), g.both.ColRange(queries, g.both.Cols)
	}
	if g.out, err = g.owned.room(dev, out, &w.O); err != nil {
		return nil, err
	}
	return g, nil
}

// Close frees the scratch memory.
func (g *GQA) Close() { g.owned.free() }

// Run adds the block's output for st.Input to the residual stream, or leaves it in
// st.Delta [T, H], pending, and stores the batch's rows in cache [slots, 2*kv_heads*d].
func (g *GQA) Run(s device.Stream, st *stages.State, w *Weights, cache device.KV, layer int, probe stages.Probe) {
	q, kv, out := g.q.RowRange(0, st.T), g.kv.RowRange(0, st.T), g.out.RowRange(st.T)
	cache = st.Stored(cache, layer)
	half := kv.Cols / 2
	keys, values := kv.ColRange(0, half), kv.ColRange(half, kv.Cols)
	if !g.both.Zero() {
		st.Input.Mul(s, g.ops, g.both.RowRange(0, st.T), &w.Joint)
	}
	g.project(s, q, &st.Input, &w.Q, w.QBias)
	g.project(s, keys, &st.Input, &w.K, w.KBias)
	g.project(s, values, &st.Input, &w.V, w.VBias)
	if probe != nil {
		probe.Observe(s, layer, "q", q, st)
		probe.Observe(s, layer, "k", keys, st)
		probe.Observe(s, layer, "v", values, st)
	}
	g.ops.Rope(s, q, st.Positions, g.table, g.qRope)
	g.ops.Rope(s, keys, st.Positions, g.table, g.kRope)
	if probe != nil {
		probe.Observe(s, layer, "q_rotated", q, st)
		probe.Observe(s, layer, "k_pe", keys, st)
	}
	g.ops.StoreRows(s, cache, kv, st.Slots)

	if len(st.Prefill) > 0 {
		g.ops.GQA(s, out.X, q, cache, st.PrefillSpans(), g.sizes)
	}
	if len(st.Decode) > 0 {
		g.ops.GQA(s, out.X, q, cache, st.DecodeSpans(), g.sizes)
	}
	st.AddMul(s, g.ops, &out, &w.O, probe)
	if probe != nil {
		probe.Observe(s, layer, "attn", out.X, st)
		probe.Observe(s, layer, "mixer_out", st.Delta, st)
	}
}

// project is out = x * w^T, plus the bias where there is one.
func (g *GQA) project(s device.Stream, out device.Mat, x *stages.Input, w *device.Weight, bias device.Mat) {
	if !w.Zero() {
		x.Mul(s, g.ops, out, w)
	}
	if !bias.Zero() {
		g.ops.AddBias(s, out, bias)
	}
}
