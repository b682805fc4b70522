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
}

func bindIndexer(b Binder) indexerBlock {
	return indexerBlock{
		q: b.Weight("index_q"), k: b.Weight("index_k"), weights: b.Weight("index_weights"),
		norm: b.Vector("index_norm"), bias: b.Vector("index_norm_bias"),
	}
}

// indexer chooses the positions that rows attend to.
type indexer struct {
	sizes        device.Index
	qRope, kRope device.Rope
	eps          float32
	table        device.Mat // [context, rope] F32
	q            device.Mat // [tokens, heads*d]
	k            device.Mat // [tokens, d]
	weights      device.Mat // [tokens, heads]
}

// newIndexer makes an indexer without memory, and says what it takes. rope values of a head are rotated.
func newIndexer(m model.Indexer, rope, blockTokens int, table device.Mat) (*indexer, []piece) {
	x := &indexer{
		sizes: m.Sizes(blockTokens), eps: m.NormEps, table: table,
		qRope: device.Rope{Heads: m.Heads, HeadDim: m.Dim, Dim: rope, Interleaved: m.Interleaved},
		kRope: device.Rope{Heads: 1, HeadDim: m.Dim, Dim: rope, Interleaved: m.Interleaved},
	}
	return x, []piece{{&x.q, m.Heads * m.Dim}, {&x.k, m.Dim}, {&x.weights, m.Heads}}
}

// run appends the choice of the batch's rows to st.Selected, and stores their index keys. qa is the
// compressed queries.
func (x *indexer) run(p *stages.Program, st *stages.State, w *indexerBlock, qa *stages.Input, keys device.KV, layer int) {
	q, k, weights := x.q.RowRange(0, st.T), x.k.RowRange(0, st.T), x.weights.RowRange(0, st.T)
	qa.Mul(&p.List, q, &w.q)
	p.Observe(layer, "index_q", q)
	p.Rope(q, st.Positions, x.table, &x.qRope)
	p.Observe(layer, "indexer_query", q)
	st.Input.Mul(&p.List, k, &w.k)
	p.Observe(layer, "index_k", k)
	p.LayerNorm(k, k, w.norm, w.bias, x.eps)
	p.Rope(k, st.Positions, x.table, &x.kRope)
	p.Observe(layer, "indexer_keys", k)
	st.Input.Mul(&p.List, weights, &w.weights)
	p.Observe(layer, "index_weights", weights)
	cache := st.Stored(keys, layer)
	p.StoreRows(cache, k, st.Slots)
	for _, spans := range [...]device.Spans{st.PrefillSpans(), st.DecodeSpans()} {
		if len(spans.List) > 0 {
			p.Select(st.Selected, q, weights, cache, spans, &x.sizes)
		}
	}
}
