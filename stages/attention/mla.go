package attention

import (
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/model"
)

var _ = Register(func(m model.MLA, b Binder) Block {
	w := &mlaBlock{
		spec: m, kvNorm: b.Vector("kv_a_norm"), kvB: b.KVB("kv_b", m.Heads, m.Nope, m.VDim, m.KVRank), o: b.Weight("o"),
	}
	q := "q"
	if m.QRank > 0 {
		q, w.qNorm, w.qB = "q_a", b.Vector("q_a_norm"), b.Weight("q_b")
	}
	var ok bool
	if m.Index.Own() {
		w.index = bindIndexer(b, m.Index)
	}
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
	index  indexerBlock  // with an indexer of the layer's own
}

// mla runs multi-head latent attention.
type mla struct {
	sizes device.MLA
	qRope device.Rope
	kRope device.Rope
	eps   float32
	table device.Mat   // [context, rope] F32; absent where nothing is rotated
	both  device.Mat   // [tokens, q_rank or heads*qk, kv_rank+rope]: qa or q, and kv, of a joint weight; absent without
	qa    stages.Input // [tokens, q_rank], absent with direct queries
	q     device.Mat   // [tokens, heads*qk]
	kv    device.Mat   // [tokens, kv_rank+rope]
	out   stages.Input // [tokens, heads*v]
	index *indexer     // nil without one of the layer's own
	owned scratch
}

// New implements Block.
func (w *mlaBlock) New(dev device.Device, lim stages.Limits, tables Tables) (Stage, error) {
	a := w.spec
	m := &mla{sizes: a.Sizes(lim.BlockTokens), eps: a.LatentEps}
	if rope := a.Rope; rope != nil {
		m.qRope = device.Rope{Heads: a.Heads, HeadDim: a.QKDim(), Offset: a.Nope, Dim: a.RopeDim, Interleaved: rope.Interleaved}
		m.kRope = device.Rope{Heads: 1, HeadDim: a.RopeDim, Dim: a.RopeDim, Interleaved: rope.Interleaved}
		m.table = tables[rope]
	}
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
	if a.Index.Own() {
		x, more := newIndexer(a.Index, a.RopeDim, lim.BlockTokens, m.table)
		m.index, pieces = x, append(pieces, more...)
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

// Run implements Stage; the rows of the cache are [kv_rank+rope].
func (m *mla) Run(p *stages.Program, st *stages.State, b Block, kept []device.KV, layer int) {
	w := b.(*mlaBlock)
	q, kv, out := m.q.RowRange(0, st.T), m.kv.RowRange(0, st.T), m.out.RowRange(st.T)
	cache := st.Stored(kept[0], layer)
	st.Input.Prepare(&p.List, &w.joint, &w.q, &w.kvA)
	if !m.both.Zero() {
		st.Input.Mul(&p.List, m.both.RowRange(0, st.T), &w.joint)
	}
	m.queries(p, st, w, q, layer)
	if m.both.Zero() {
		st.Input.Mul(&p.List, kv, &w.kvA)
	}
	latent := kv.ColRange(0, m.sizes.Rank)
	p.Observe(layer, "kv_a", kv)
	if w.spec.Rope != nil {
		p.Rope(q, st.Positions, m.table, &m.qRope)
	}
	p.Observe(layer, "q_rotated", q)
	p.RMSNorm(latent, latent, w.kvNorm, m.eps)
	if w.spec.Rope != nil {
		kPe := kv.ColRange(m.sizes.Rank, kv.Cols)
		p.Rope(kPe, st.Positions, m.table, &m.kRope)
		p.Observe(layer, "k_pe", kPe)
	}
	p.StoreRows(cache, kv, st.Slots)
	if m.index != nil {
		qa := m.qa.RowRange(st.T)
		m.index.run(p, st, &w.index, &qa, kept[1:], layer)
	}
	switch x := w.spec.Index; {
	case x.Pool > 0:
		p.Observe(layer, "indexer_positions", st.Selected)
	case x.TopK > 0:
		p.Observe(layer, "selected", st.Selected)
	}
	for _, spans := range [...]device.Spans{st.PrefillSpans(), st.DecodeSpans()} {
		switch {
		case len(spans.List) == 0:
		case w.spec.Index.TopK > 0:
			p.SparseMLA(out.X, q, cache, &w.kvB, st.Selected, spans, &m.sizes)
		default:
			p.MLA(out.X, q, cache, &w.kvB, spans, &m.sizes)
		}
	}
	p.Observe(layer, "kv_norm", latent)
	p.Observe(layer, "attn", out.X)
	out.Prepare(&p.List, &w.o)
	out.Mul(&p.List, st.Delta, &w.o)
}

// queries appends what makes the queries q [T, heads*qk], not yet rotated.
func (m *mla) queries(p *stages.Program, st *stages.State, w *mlaBlock, q device.Mat, layer int) {
	switch {
	case !m.qa.X.Zero():
		qa := m.qa.RowRange(st.T)
		if m.both.Zero() {
			st.Input.Mul(&p.List, qa.X, &w.q)
		}
		p.Observe(layer, "q_a", qa.X)
		p.RMSNorm(qa.X, qa.X, w.qNorm, m.eps)
		p.Observe(layer, "q_resid", qa.X)
		qa.Prepare(&p.List, &w.qB, &w.index.q)
		qa.Mul(&p.List, q, &w.qB)
	case m.both.Zero():
		st.Input.Mul(&p.List, q, &w.q)
	}
	p.Observe(layer, "q", q)
}
