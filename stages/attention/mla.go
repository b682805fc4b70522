package attention

import (
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/model"
)

// MLA runs multi-head latent attention. It owns scratch memory, so it computes
// one batch at a time; the layers of a group share it.
type MLA struct {
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

// NewMLA allocates scratch memory on dev for batches within lim. table is the
// cos/sin table of RopeTable on the same device.
func NewMLA(dev device.Device, ops MLAOps, cfg *model.Config, lim stages.Limits, w *Weights, table device.Mat) (*MLA, error) {
	a := cfg.Attention
	m := &MLA{
		ops: ops,
		sizes: device.MLA{Heads: a.Heads, Nope: a.Nope, Rope: a.RopeDim, V: a.VDim, Rank: a.KVRank,
			Scale: a.Scale, BlockTokens: lim.BlockTokens},
		qRope: device.Rope{Heads: a.Heads, HeadDim: a.QKDim(), Offset: a.Nope, Dim: a.RopeDim,
			Interleaved: cfg.Rope.Interleaved},
		kRope: device.Rope{Heads: 1, HeadDim: a.RopeDim, Dim: a.RopeDim, Interleaved: cfg.Rope.Interleaved},
		eps:   a.LatentEps,
		table: table,
	}
	m.fused, _ = ops.(LatentOps)
	var qa, out device.Mat
	first, pieces := a.QRank, []piece{{&qa, a.QRank}, {&m.q, a.Heads * a.QKDim()}, {&m.kv, a.KVWidth()}, {&out, a.OutDim()}}
	switch {
	case w.Joint.Zero():
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
	if m.qa, err = m.owned.room(dev, qa, &w.QB); err != nil {
		return nil, err
	}
	if m.out, err = m.owned.room(dev, out, &w.O); err != nil {
		return nil, err
	}
	return m, nil
}

// Close frees the scratch memory.
func (m *MLA) Close() { m.owned.free() }

// Run adds the block's output for st.Input to the residual stream, or leaves it in
// st.Delta [T, H], pending, and stores the batch's rows in cache [slots, kv_rank+rope].
func (m *MLA) Run(s device.Stream, st *stages.State, w *Weights, cache device.KV, layer int, probe stages.Probe) {
	q, kv, out := m.q.RowRange(0, st.T), m.kv.RowRange(0, st.T), m.out.RowRange(st.T)
	cache = st.Stored(cache, layer)
	if !m.both.Zero() {
		st.Input.Mul(s, m.ops, m.both.RowRange(0, st.T), &w.Joint)
	}
	m.queries(s, st, w, q, layer, probe)
	if m.both.Zero() {
		st.Input.Mul(s, m.ops, kv, &w.KVA)
	}
	latent, kPe := kv.ColRange(0, m.sizes.Rank), kv.ColRange(m.sizes.Rank, kv.Cols)
	if m.fused != nil && probe == nil && len(st.Prefill) == 0 {
		m.fused.LatentDecode(s, out.X, q, kv, w.KVNorm, m.eps, cache, st.Positions, st.Slots, m.table, m.qRope, m.kRope, w.KVB, st.DecodeSpans(), m.sizes)
		st.AddMul(s, m.ops, &out, &w.O, probe)
		return
	}
	if m.fused != nil && probe == nil {
		m.fused.Latent(s, cache, q, kv, w.KVNorm, m.eps, st.Positions, st.Slots, m.table, m.qRope, m.kRope)
	} else {
		m.rotate(s, st, q, layer, probe)
		if probe != nil {
			probe.Observe(s, layer, "kv_a", kv, st)
		}
		m.ops.RMSNorm(s, latent, latent, w.KVNorm, m.eps)
		m.ops.Rope(s, kPe, st.Positions, m.table, m.kRope)
		m.ops.StoreRows(s, cache, kv, st.Slots)
	}
	if len(st.Prefill) > 0 {
		m.ops.MLAPrefill(s, out.X, q, cache, w.KVB, st.PrefillSpans(), m.sizes)
	}
	if len(st.Decode) > 0 {
		m.ops.MLADecode(s, out.X, q, cache, w.KVB, st.DecodeSpans(), m.sizes)
	}
	st.AddMul(s, m.ops, &out, &w.O, probe)
	if probe != nil {
		probe.Observe(s, layer, "kv_norm", latent, st)
		probe.Observe(s, layer, "k_pe", kPe, st)
		probe.Observe(s, layer, "attn", out.X, st)
		probe.Observe(s, layer, "mixer_out", st.Delta, st)
	}
}

// queries computes the queries q [T, heads*qk], not yet rotated.
func (m *MLA) queries(s device.Stream, st *stages.State, w *Weights, q device.Mat, layer int, probe stages.Probe) {
	if !m.qa.X.Zero() {
		qa := m.qa.RowRange(st.T)
		if m.both.Zero() {
			st.Input.Mul(s, m.ops, qa.X, &w.QA)
		}
		if probe != nil {
			probe.Observe(s, layer, "q_a", qa.X, st)
		}
		qa.Norm(s, m.ops, qa.X, w.QNorm, m.eps)
		qa.Mul(s, m.ops, q, &w.QB)
	} else if m.both.Zero() {
		st.Input.Mul(s, m.ops, q, &w.Q)
	}
	if probe != nil {
		probe.Observe(s, layer, "q", q, st)
	}
}

// rotate turns the queries by their positions.
func (m *MLA) rotate(s device.Stream, st *stages.State, q device.Mat, layer int, probe stages.Probe) {
	m.ops.Rope(s, q, st.Positions, m.table, m.qRope)
	if probe != nil {
		probe.Observe(s, layer, "q_rotated", q, st)
	}
}
