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
	sizes device.MLA
	qRope device.Rope
	kRope device.Rope
	eps   float32
	table device.Mat // [context, rope] F32
	qa    device.Mat // [tokens, q_rank] F32, absent with direct queries
	q     device.Mat // [tokens, heads*qk] F32
	kv    device.Mat // [tokens, kv_rank+rope] F32
	out   device.Mat // [tokens, heads*v] F32
	owned scratch
}

// NewMLA allocates scratch memory on dev for batches within lim. table is the
// cos/sin table of RopeTable on the same device.
func NewMLA(dev device.Device, ops MLAOps, cfg *model.Config, lim stages.Limits, table device.Mat) (*MLA, error) {
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
	if err := m.owned.alloc(dev, lim.Tokens, []piece{{&m.qa, a.QRank}, {&m.q, a.Heads * a.QKDim()}, {&m.kv, a.KVWidth()}, {&m.out, a.OutDim()}}); err != nil {
		return nil, err
	}
	return m, nil
}

// Close frees the scratch memory.
func (m *MLA) Close() { m.owned.free() }

// Run writes st.Delta [T, H], the block's output for st.Normed, and stores the
// batch's rows in cache [slots, kv_rank+rope].
func (m *MLA) Run(s device.Stream, st *stages.State, w *Weights, cache device.Mat, layer int, probe stages.Probe) {
	q, kv, out := m.q.RowRange(0, st.T), m.kv.RowRange(0, st.T), m.out.RowRange(0, st.T)
	m.queries(s, st, w, q, layer, probe)

	latent := kv.ColRange(0, m.sizes.Rank)
	kPe := kv.ColRange(m.sizes.Rank, kv.Cols)
	m.ops.MatMul(s, kv, st.Normed, w.KVA)
	if probe != nil {
		probe.Observe(s, layer, "kv_a", kv, st)
	}
	m.ops.RMSNorm(s, latent, latent, w.KVNorm, m.eps)
	m.ops.Rope(s, kPe, st.Positions, m.table, m.kRope)
	m.ops.StoreRows(s, cache, kv, st.Slots)

	if len(st.Prefill) > 0 {
		m.ops.MLAPrefill(s, out, q, cache, w.KVB, st.Prefill, m.sizes)
	}
	if len(st.Decode) > 0 {
		m.ops.MLADecode(s, out, q, cache, w.KVB, st.Decode, m.sizes)
	}
	m.ops.MatMul(s, st.Delta, out, w.O)
	if probe != nil {
		probe.Observe(s, layer, "kv_norm", latent, st)
		probe.Observe(s, layer, "k_pe", kPe, st)
		probe.Observe(s, layer, "attn", out, st)
		probe.Observe(s, layer, "mixer_out", st.Delta, st)
	}
}

// queries computes the rotated queries q [T, heads*qk].
func (m *MLA) queries(s device.Stream, st *stages.State, w *Weights, q device.Mat, layer int, probe stages.Probe) {
	if w.Q.Zero() {
		qa := m.qa.RowRange(0, st.T)
		m.ops.MatMul(s, qa, st.Normed, w.QA)
		if probe != nil {
			probe.Observe(s, layer, "q_a", qa, st)
		}
		m.ops.RMSNorm(s, qa, qa, w.QNorm, m.eps)
		m.ops.MatMul(s, q, qa, w.QB)
	} else {
		m.ops.MatMul(s, q, st.Normed, w.Q)
	}
	if probe != nil {
		probe.Observe(s, layer, "q", q, st)
	}
	m.ops.Rope(s, q, st.Positions, m.table, m.qRope)
	if probe != nil {
		// The rope part of every head as a row: [T*heads, rope].
		pe := q
		pe.Rows, pe.Cols, pe.Stride = st.T*m.sizes.Heads, m.sizes.Nope+m.sizes.Rope, m.sizes.Nope+m.sizes.Rope
		probe.Observe(s, layer, "q_pe", pe.ColRange(m.sizes.Nope, pe.Cols), st)
	}
}
