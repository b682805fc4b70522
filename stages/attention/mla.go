package attention

import (
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/model"
)

var _ = register(func(m model.MLA, b Binder) Block {
	w := &mlaBlock{
		spec: m, kvNorm: b.Vector("kv_a_norm"), kvB: b.KVB("kv_b", m.Heads, m.Nope, m.VDim, m.KVRank), o: b.Weight("o"),
	}
	q := "q"
	if m.QRank > 0 {
		q, w.qNorm, w.qB = "q_a", b.Vector("q_a_norm"), b.Weight("q_b")
	}
	var ok bool
	if w.joint, ok = b.Joint("qkv", q, "kv_a"); !ok {
		w.q, w.kvA = b.Weight(q), b.Weight("kv_a")
	}
	return w
})

// mlaBlock is the weights of a layer. qk = nope + rope.
type mlaBlock struct {
	spec   model.MLA
	joint  device.Weight // q and kvA, which are absent then
	q      device.Weight // [heads*qk, H] q_proj, or [q_rank, H] q_a_proj
	qNorm  device.Mat    // [1, q_rank] q_a_layernorm, with a q_rank
	qB     device.Weight // [heads*qk, q_rank] q_b_proj, with a q_rank
	kvA    device.Weight // [kv_rank+rope, H] kv_a_proj_with_mqa
	kvNorm device.Mat    // [1, kv_rank] kv_a_layernorm
	kvB    device.KVB    // [heads*(nope+v), kv_rank] kv_b_proj
	o      device.Weight // [H, heads*v] o_proj
}

// mla runs multi-head latent attention.
type mla struct {
	ops   MLAOps
	fused LatentOps // nil: the device has none
	sizes device.MLA
	qRope device.Rope
	kRope device.Rope
	eps   float32
	table device.Mat   // [context, rope] F32
	both  device.Mat   // [tokens, q_rank or heads*qk, kv_rank+rope]: qa or q, and kv, of a joint weight; absent without
	qa    stages.Input // [tokens, q_rank], absent with direct queries
	q     device.Mat   // [tokens, heads*qk]
	kv    device.Mat   // [tokens, kv_rank+rope]
	out   stages.Input // [tokens, heads*v]
	owned scratch
}

// New implements Block.
func (w *mlaBlock) New(dev device.Device, ops Ops, lim stages.Limits, tables Tables) (Stage, error) {
	a, rope := w.spec, w.spec.Rope
	m := &mla{
		ops:   ops,
		sizes: a.Sizes(lim.BlockTokens),
		qRope: device.Rope{Heads: a.Heads, HeadDim: a.QKDim(), Offset: a.Nope, Dim: a.RopeDim, Interleaved: rope.Interleaved},
		kRope: device.Rope{Heads: 1, HeadDim: a.RopeDim, Dim: a.RopeDim, Interleaved: rope.Interleaved},
		eps:   a.LatentEps,
		table: tables[rope],
	}
	m.fused, _ = ops.(LatentOps)
	var qa, out device.Mat
	first, pieces := a.QRank, []piece{{&qa, a.QRank}, {&m.q, a.Heads * a.QKDim()}, {&m.kv, a.KVWidth()}, {&out, a.OutDim()}}
	switch {
	case w.joint.Zero():
	case first > 0:
		pieces = []piece{{&m.both, first + a.KVWidth()}, pieces[1], pieces[3]}
	default:
		first = a.Heads * a.QKDim()
		pieces = []piece{{&m.both, first + a.KVWidth()}, pieces[3]}
	}
	err := m.owned.alloc(dev, lim.LayerRows(), pieces)
	if err != nil {
		return nil, err
	}
	if !m.both.Zero() {
		m.kv = m.both.ColRange(first, m.both.Cols)
		if a.QRank > 0 {
			qa = m.both.ColRange(0, first)
		} else {
			m.q = m.both.ColRange(0, first)
		}
	}
	if m.qa, err = m.owned.room(dev, qa, &w.qB); err != nil {
		return nil, err
	}
	if m.out, err = m.owned.room(dev, out, &w.o); err != nil {
		return nil, err
	}
	return m, nil
}

// Close frees the scratch memory.
func (m *mla) Close() { m.owned.free() }

// Run implements Stage; the rows of cache are [kv_rank+rope].
func (m *mla) Run(s device.Stream, st *stages.State, b Block, cache device.KV, layer int, probe stages.Probe) {
	w := b.(*mlaBlock)
	q, kv, out := m.q.RowRange(0, st.T), m.kv.RowRange(0, st.T), m.out.RowRange(st.T)
	cache = st.Stored(cache, layer)
	if !m.both.Zero() {
		st.Input.Mul(s, m.ops, m.both.RowRange(0, st.T), &w.joint)
	}
	m.queries(s, st, w, q, layer, probe)
	if m.both.Zero() {
		st.Input.Mul(s, m.ops, kv, &w.kvA)
	}
	latent, kPe := kv.ColRange(0, m.sizes.Rank), kv.ColRange(m.sizes.Rank, kv.Cols)
	if m.fused != nil && probe == nil && len(st.Prefill) == 0 {
		m.fused.LatentDecode(s, out.X, q, kv, w.kvNorm, m.eps, cache, st.Positions, st.Slots, m.table, m.qRope, m.kRope, w.kvB, st.DecodeSpans(), m.sizes)
		st.AddMul(s, m.ops, &out, &w.o, probe)
		return
	}
	if m.fused != nil && probe == nil {
		m.fused.Latent(s, cache, q, kv, w.kvNorm, m.eps, st.Positions, st.Slots, m.table, m.qRope, m.kRope)
	} else {
		m.rotate(s, st, q, layer, probe)
		if probe != nil {
			probe.Observe(s, layer, "kv_a", kv, st)
		}
		m.ops.RMSNorm(s, latent, latent, w.kvNorm, m.eps)
		m.ops.Rope(s, kPe, st.Positions, m.table, m.kRope)
		m.ops.StoreRows(s, cache, kv, st.Slots)
	}
	if len(st.Prefill) > 0 {
		m.ops.MLAPrefill(s, out.X, q, cache, w.kvB, st.PrefillSpans(), m.sizes)
	}
	if len(st.Decode) > 0 {
		m.ops.MLADecode(s, out.X, q, cache, w.kvB, st.DecodeSpans(), m.sizes)
	}
	st.AddMul(s, m.ops, &out, &w.o, probe)
	if probe != nil {
		probe.Observe(s, layer, "kv_norm", latent, st)
		probe.Observe(s, layer, "k_pe", kPe, st)
		probe.Observe(s, layer, "attn", out.X, st)
		probe.Observe(s, layer, "mixer_out", st.Delta, st)
	}
}

// queries computes the queries q [T, heads*qk], not yet rotated.
func (m *mla) queries(s device.Stream, st *stages.State, w *mlaBlock, q device.Mat, layer int, probe stages.Probe) {
	if !m.qa.X.Zero() {
		qa := m.qa.RowRange(st.T)
		if m.both.Zero() {
			st.Input.Mul(s, m.ops, qa.X, &w.q)
		}
		if probe != nil {
			probe.Observe(s, layer, "q_a", qa.X, st)
		}
		qa.Norm(s, m.ops, qa.X, w.qNorm, m.eps)
		qa.Mul(s, m.ops, q, &w.qB)
	} else if m.both.Zero() {
		st.Input.Mul(s, m.ops, q, &w.q)
	}
	if probe != nil {
		probe.Observe(s, layer, "q", q, st)
	}
}

// rotate turns the queries by their positions.
func (m *mla) rotate(s device.Stream, st *stages.State, q device.Mat, layer int, probe stages.Probe) {
	m.ops.Rope(s, q, st.Positions, m.table, m.qRope)
	if probe != nil {
		probe.Observe(s, layer, "q_rotated", q, st)
	}
}
