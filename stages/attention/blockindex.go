package attention

import (
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/model"
)

// blockIndexWeights are the weights of an index over blocks (model.BlockIndex).
type blockIndexWeights struct {
	qk           []device.Weight // [(heads+1)*d, H]: queries, then the key before its norm; or apart
	qNorm, kNorm device.Mat      // [1, d]
}

func bindBlockIndex(m model.BlockIndex, b Binder) *blockIndexWeights {
	w := &blockIndexWeights{qNorm: b.Norm("index_q_norm"), kNorm: b.Norm("index_k_norm")}
	for _, role := range m.Projections() {
		w.qk = append(w.qk, device.Weight{F: b.Vector(role)})
	}
	return w
}

// blockIndex chooses the positions that rows attend to.
type blockIndex struct {
	sizes  device.BlockIndex
	rope   device.Rope // of queries
	keys   device.Rope // of keys that are stored ready
	table  device.Mat  // [context, rotary dims] F32
	qk     device.Mat  // [tokens, (heads+1)*d]
	chosen device.Mat  // [tokens, lists*positions] I32
}

// newBlockIndex allocates memory that owned frees. rope is that of attention.
func newBlockIndex(dev device.Device, lim stages.Limits, m model.BlockIndex, rope *model.RopeConfig, table device.Mat, owned *scratch) (*blockIndex, error) {
	turn := device.Rope{Heads: 1, HeadDim: m.Dim, Dim: rope.Dim, Interleaved: rope.Interleaved}
	x := &blockIndex{sizes: m.Sizes(lim.BlockTokens), rope: turn, keys: turn, table: table}
	x.sizes.Rope, x.rope.Heads = turn, m.Heads
	if err := owned.alloc(dev, lim.LayerRows(), []piece{{&x.qk, (m.Heads + 1) * m.Dim}}); err != nil {
		return nil, err
	}
	var err error
	if x.chosen, err = device.AllocMat(dev, tensor.I32, lim.LayerRows(), x.sizes.Width()); err != nil {
		owned.free()
		return nil, err
	}
	*owned = append(*owned, x.chosen.Buf)
	return x, nil
}

// run appends the choice of the batch's rows, which it returns, and that their keys are stored: raw, or normed and rotated
// where heads choose for themselves.
func (x *blockIndex) run(p *stages.Program, st *stages.State, w *blockIndexWeights, kept device.KV, layer int) device.Mat {
	qk, chosen := x.qk.RowRange(0, st.T), x.chosen.RowRange(0, st.T)
	d := x.sizes.Dim
	q, key := qk.ColRange(0, x.sizes.Heads*d), qk.ColRange(x.sizes.Heads*d, qk.Cols)
	if len(w.qk) == 1 {
		p.MatMul(qk, st.Normed, device.QRows{}, &w.qk[0])
	} else {
		p.MatMul(q, st.Normed, device.QRows{}, &w.qk[0])
		p.MatMul(key, st.Normed, device.QRows{}, &w.qk[1])
	}
	p.Observe(layer, "index_qk", qk)
	p.HeadNorm(q, x.sizes.Heads, w.qNorm, x.sizes.Eps)
	p.Rope(q, st.Positions, x.table, &x.rope)
	p.Observe(layer, "indexer_query", q)
	norm, table := w.kNorm, x.table
	if x.sizes.Local > 0 {
		p.HeadNorm(key, 1, norm, x.sizes.Eps)
		p.Rope(key, st.Positions, table, &x.keys)
		p.Observe(layer, "indexer_keys", key)
		norm, table = device.Mat{}, device.Mat{}
	}
	cache := st.Stored(kept, layer)
	p.StoreRows(cache, key, st.Slots)
	for _, spans := range [...]device.Spans{st.PrefillSpans(), st.DecodeSpans()} {
		if len(spans.List) > 0 {
			p.SelectBlocks(chosen, q, cache, norm, table, spans, &x.sizes)
		}
	}
	p.Observe(layer, "indexer_positions", chosen)
	return chosen
}
