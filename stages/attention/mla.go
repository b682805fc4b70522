// Package attention holds the attention blocks. Multi-head latent attention
// (DeepSeek-V2, arXiv 2405.04434 section 2.1) caches one compressed row a token
// for all heads; prompt rows use it in the expanded form, decoded rows in the
// absorbed form, which never expands keys and values.
package attention

import (
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/model"
)

// Ops are the operators the stage needs.
type Ops interface {
	RMSNorm(s device.Stream, out, x, w device.Mat, eps float32)
	MatMul(s device.Stream, out, x, w device.Mat)
	Rope(s device.Stream, x, positions, table device.Mat, p device.Rope)
	StoreRows(s device.Stream, cache, src, slots device.Mat)
	MLAPrefill(s device.Stream, out, q, cache, kvB device.Mat, spans []device.Span, p device.MLA)
	MLADecode(s device.Stream, out, q, cache, kvB device.Mat, spans []device.Span, p device.MLA)
}

// Weights are those of one layer. Either Q is set or QA, QNorm and QB are
// (q_lora_rank). qk = nope + rope.
type Weights struct {
	Q      device.Mat // [heads*qk, H] q_proj
	QA     device.Mat // [q_rank, H] q_a_proj
	QNorm  device.Mat // [1, q_rank] q_a_layernorm
	QB     device.Mat // [heads*qk, q_rank] q_b_proj
	KVA    device.Mat // [kv_rank+rope, H] kv_a_proj_with_mqa
	KVNorm device.Mat // [1, kv_rank] kv_a_layernorm
	KVB    device.Mat // [heads*(nope+v), kv_rank] kv_b_proj
	O      device.Mat // [H, heads*v] o_proj
}

// MLA runs multi-head latent attention. It owns scratch memory, so it computes
// one batch at a time; the layers of a group share it.
type MLA struct {
	ops   Ops
	sizes device.MLA
	qRope device.Rope
	kRope device.Rope
	eps   float32
	table device.Mat // [context, rope] F32
	qa    device.Mat // [tokens, q_rank] F32, absent with direct queries
	q     device.Mat // [tokens, heads*qk] F32
	kv    device.Mat // [tokens, kv_rank+rope] F32
	out   device.Mat // [tokens, heads*v] F32
	owned []device.Buffer
}

// NewMLA allocates scratch memory on dev for batches within lim. table is the
// cos/sin table of RopeTable on the same device.
func NewMLA(dev device.Device, ops Ops, cfg *model.Config, lim stages.Limits, table device.Mat) (*MLA, error) {
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
	for _, x := range []struct {
		m    *device.Mat
		cols int
	}{{&m.qa, a.QRank}, {&m.q, a.Heads * a.QKDim()}, {&m.kv, a.KVWidth()}, {&m.out, a.Heads * a.VDim}} {
		if x.cols == 0 {
			continue
		}
		mat, err := device.AllocMat(dev, tensor.F32, lim.Tokens, x.cols)
		if err != nil {
			m.Close()
			return nil, err
		}
		m.owned = append(m.owned, mat.Buf)
		*x.m = mat
	}
	return m, nil
}

// Close frees the scratch memory.
func (m *MLA) Close() {
	for _, b := range m.owned {
		b.Free()
	}
	m.owned = nil
}

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
