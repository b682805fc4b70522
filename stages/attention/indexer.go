package attention

import (
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/model"
)

// indexerBlock is the weights of an indexer (model.Indexer).
type indexerBlock struct {
	q       device.Weight // [heads*d, q_rank]
	k       device.Weight // [d, H]
	weights device.Weight // [heads, H]
	norm    device.Mat    // [1, d] of keys
	bias    device.Mat    // [1, d]
	gate    device.Weight // [d, H] of pools; absent without
	ape     device.Mat    // [pool, d] F32: the biases of gates
}

func bindIndexer(b Binder, m model.Indexer) indexerBlock {
	x := indexerBlock{
		q: b.Weight("index_q"), k: b.Weight("index_k"), weights: b.Weight("index_weights"),
		norm: b.Vector("index_norm"), bias: b.Vector("index_norm_bias"),
	}
	if m.Pool > 0 {
		x.gate, x.ape = b.Weight("index_gate"), b.Vector("index_ape")
	}
	return x
}

// indexer chooses the positions that rows attend to.
type indexer struct {
	sizes        device.Index
	qRope, kRope device.Rope
	eps          float32
	table        device.Mat // [context, rope] F32
	q            device.Mat // [tokens, heads*d]
	k            device.Mat // [tokens, d]
	gated        device.Mat // [tokens, 2*d] the keys of tokens and their gates; absent without pools
	weights      device.Mat // [tokens, heads]
}

// newIndexer makes an indexer without memory, and says what it takes. rope values of a head are rotated.
func newIndexer(m model.Indexer, rope, blockTokens int, table device.Mat) (*indexer, []piece) {
	x := &indexer{
		sizes: m.Sizes(blockTokens), eps: m.NormEps, table: table,
		qRope: device.Rope{Heads: m.Heads, HeadDim: m.Dim, Dim: rope, Interleaved: m.Interleaved},
		kRope: device.Rope{Heads: 1, HeadDim: m.Dim, Dim: rope, Interleaved: m.Interleaved},
	}
	pieces := []piece{{&x.q, m.Heads * m.Dim}, {&x.k, m.Dim}, {&x.weights, m.Heads}}
	if m.Pool > 0 {
		pieces = append(pieces, piece{&x.gated, 2 * m.Dim})
	}
	return x, pieces
}

// run appends the choice of the batch's rows to st.Selected, and stores their index keys. qa is the
// compressed queries, kept what model.Indexer keeps.
func (x *indexer) run(p *stages.Program, st *stages.State, w *indexerBlock, qa *stages.Input, kept []device.KV, layer int) {
	q, k, weights := x.q.RowRange(0, st.T), x.k.RowRange(0, st.T), x.weights.RowRange(0, st.T)
	qa.Mul(&p.List, q, &w.q)
	p.Observe(layer, "index_q", q)
	if x.qRope.Dim > 0 {
		p.Rope(q, st.Positions, x.table, &x.qRope)
	}
	p.Observe(layer, "indexer_query", q)
	own := k // keys of tokens
	if x.sizes.Pool > 0 {
		own = x.gated.RowRange(0, st.T).ColRange(0, x.sizes.Dim)
	}
	st.Input.Mul(&p.List, own, &w.k)
	p.Observe(layer, "index_k", own)
	p.LayerNorm(own, own, w.norm, w.bias, x.eps)
	if x.kRope.Dim > 0 {
		p.Rope(own, st.Positions, x.table, &x.kRope)
	}
	p.Observe(layer, "indexer_keys", own)
	st.Input.Mul(&p.List, weights, &w.weights)
	p.Observe(layer, "index_weights", weights)
	if x.sizes.Pool > 0 {
		x.pools(p, st, w, k, kept[1], layer)
	}
	cache := st.Stored(kept[0], layer)
	p.StoreRows(cache, k, st.Slots)
	for _, spans := range [...]device.Spans{st.PrefillSpans(), st.DecodeSpans()} {
		if len(spans.List) > 0 {
			p.Select(st.Selected, q, weights, cache, spans, &x.sizes)
		}
	}
}

// pools appends that k [T, d] is the keys of the pools that end in the batch's rows. tail is the newest tokens' keys and gates.
func (x *indexer) pools(p *stages.Program, st *stages.State, w *indexerBlock, k device.Mat, tail device.KV, layer int) {
	both := x.gated.RowRange(0, st.T)
	gate := both.ColRange(x.sizes.Dim, both.Cols)
	st.Input.Mul(&p.List, gate, &w.gate)
	p.Observe(layer, "indexer_key_gate", gate)
	for _, spans := range [...]device.Spans{st.PrefillSpans(), st.DecodeSpans()} {
		if len(spans.List) > 0 {
			p.PoolKeys(k, both, w.ape, tail, spans, &x.sizes)
		}
	}
}
