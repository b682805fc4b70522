package attention

import (
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/model"
)

var _ = Register(func(m model.GQA, b Binder) Block {
	w := &gqaBlock{spec: m, o: b.Weight("o")}
	var ok bool
	switch {
	case m.Shared:
		w.q, w.qNorm = b.Weight("q"), b.Norm("q_norm")
		return w
	case m.KeyValues:
		if w.joint, ok = b.Joint("qk", "q", "k"); !ok {
			w.q, w.k = b.Weight("q"), b.Weight("k")
		}
		w.qNorm, w.kNorm, w.ones = b.Norm("q_norm"), b.Norm("k_norm"), b.Ones(m.HeadDim)
		return w
	}
	if m.Gate { // the queries' rows have another width
		w.q = b.Weight("q")
		w.joint, ok = b.Joint("kv", "k", "v")
	} else if w.joint, ok = b.Joint("qkv", "q", "k", "v"); !ok {
		w.q = b.Weight("q")
	}
	if !ok {
		w.k, w.v = b.Weight("k"), b.Weight("v")
	}
	switch {
	case m.Bias && ok && !m.Gate:
		w.jointBias = b.Vector("q_bias", "k_bias", "v_bias")
	case m.Bias:
		w.qBias, w.kBias, w.vBias = b.Vector("q_bias"), b.Vector("k_bias"), b.Vector("v_bias")
	}
	if m.OutBias {
		w.oBias = b.Vector("o_bias")
	}
	if m.Index.Chooses() {
		w.index = bindBlockIndex(m.Index, b)
	}
	if m.Sinks {
		w.sinks = b.Vector("sinks")
	}
	if m.QKNorm {
		w.qNorm, w.kNorm = b.Norm("q_norm"), b.Norm("k_norm")
	}
	if m.ValueNorm {
		w.ones = b.Ones(m.HeadDim)
	}
	return w
})

// gqaBlock is the weights of a layer. d is the head size.
type gqaBlock struct {
	spec         model.GQA
	joint        device.Weight // q, k and v, or with gates k and v, which are absent then
	q            device.Weight // [heads*d, H], with gates [heads*2*d, H]
	k, v         device.Weight // [kv_heads*d, H]
	o            device.Weight // [H, heads*d]
	jointBias    device.Mat    // of joint with q: [1, heads*d+2*kv_heads*d]; absent without
	qBias        device.Mat    // [1, heads*d], absent without biases, or if they are joint
	kBias, vBias device.Mat    // [1, kv_heads*d]
	oBias        device.Mat    // [1, H], absent without
	sinks        device.Mat    // [1, heads], absent without
	ones         device.Mat    // [1, d] the weight of the norm of values; absent without
	index        *blockIndexWeights
	qNorm, kNorm device.Mat // [1, d] or, of whole rows, [1, heads*d] and [1, kv_heads*d]; absent without norms
}

// gqa runs grouped-query attention.
type gqa struct {
	sizes  device.GQA
	qRope  device.Rope
	kRope  device.Rope
	table  device.Mat   // [context, rotary dims] F32
	joined device.Mat   // of a joint weight: q and kv [tokens, heads*d+2*kv_heads*d] F32, with gates kv
	gated  device.Mat   // [tokens, heads*2*d] F32: of each head its query, then its gate; absent without gates
	q      device.Mat   // [tokens, heads*d] F32
	kv     device.Mat   // [tokens, 2*kv_heads*d] F32, keys then values
	out    stages.Input // [tokens, heads*d]
	index  *blockIndex  // nil: rows attend to all tokens
	owned  scratch
}

// New implements Block.
func (w *gqaBlock) New(dev device.Device, lim stages.Limits, tables Tables) (Stage, error) {
	m, rope := w.spec, w.spec.Rope
	g := &gqa{
		sizes: m.Sizes(lim.BlockTokens),
		qRope: device.Rope{Heads: m.Heads, HeadDim: m.HeadDim, Dim: rope.Dim, Interleaved: rope.Interleaved},
		kRope: device.Rope{Heads: m.KVHeads, HeadDim: m.HeadDim, Dim: rope.Dim, Interleaved: rope.Interleaved},
		table: tables[rope],
	}
	var out device.Mat
	width := 2 * m.KDim()
	pieces := []piece{{&g.q, m.QDim()}, {&g.kv, width}, {&out, m.QDim()}}
	switch {
	case m.Shared:
		pieces = []piece{pieces[0], pieces[2]}
	case m.Gate:
		pieces = append(pieces, piece{&g.gated, 2 * m.QDim()})
	case !w.joint.Zero():
		pieces = []piece{{&g.joined, m.QDim() + width}, pieces[2]}
	}
	err := g.owned.alloc(dev, lim.LayerRows(), pieces)
	if err != nil {
		return nil, err
	}
	if m.Gate {
		g.joined = g.kv
	} else if !w.joint.Zero() {
		g.q, g.kv = g.joined.ColRange(0, m.QDim()), g.joined.ColRange(m.QDim(), g.joined.Cols)
	}
	if g.out, err = g.owned.room(dev, out, &w.o); err != nil {
		return nil, err
	}
	if m.Index.Chooses() {
		g.index, err = newBlockIndex(dev, lim, m.Index, rope, g.table, &g.owned)
	}
	return g, err
}

// Close frees the scratch memory.
func (g *gqa) Close() { g.owned.free() }

// Run implements Stage; the rows of the cache are [2*kv_heads*d].
func (g *gqa) Run(p *stages.Program, st *stages.State, b Block, kept []device.KV, layer int) {
	w := b.(*gqaBlock)
	if w.spec.Shared {
		g.borrow(p, st, w, kept[0], layer)
		return
	}
	q, kv, out := g.q.RowRange(0, st.T), g.kv.RowRange(0, st.T), g.out.RowRange(st.T)
	cache := st.Stored(kept[0], layer)
	half := kv.Cols / 2
	keys, values := kv.ColRange(0, half), kv.ColRange(half, kv.Cols)
	st.Input.Prepare(&p.List, &w.joint, &w.q, &w.k, &w.v)
	if !w.joint.Zero() {
		joined := g.joined.RowRange(0, st.T)
		if w.spec.KeyValues { // values are made below
			joined = joined.ColRange(0, joined.Cols-half)
		}
		project(p, joined, &st.Input, &w.joint, w.jointBias)
	}
	queries, gates := q, device.Mat{}
	if w.spec.Gate {
		queries = g.gated.RowRange(0, st.T)
	}
	project(p, queries, &st.Input, &w.q, w.qBias)
	project(p, keys, &st.Input, &w.k, w.kBias)
	project(p, values, &st.Input, &w.v, w.vBias)
	if w.spec.Gate {
		p.Observe(layer, "q_and_gate", queries)
		pairs := byHead(queries, g.sizes.Heads)
		queries, gates = pairs.ColRange(0, g.sizes.HeadDim), pairs.ColRange(g.sizes.HeadDim, pairs.Cols)
	}
	if w.spec.KeyValues {
		p.CopyRows(values, keys)
	}
	p.Observe(layer, "q", queries)
	p.Observe(layer, "k", keys)
	p.Observe(layer, "v", values)
	if w.spec.QKNorm {
		g.norm(p, w, q, queries, keys)
		p.Observe(layer, "q_norm", q)
		p.Observe(layer, "k_norm", keys)
	}
	if w.spec.ValueNorm {
		p.HeadNorm(values, g.sizes.KVHeads, w.ones, w.spec.NormEps)
		p.Observe(layer, "v_norm", values)
	}
	p.Rope(q, st.Positions, g.table, &g.qRope)
	p.Rope(keys, st.Positions, g.table, &g.kRope)
	p.Observe(layer, "q_rotated", q)
	p.Observe(layer, "k_pe", keys)
	slots, _, _ := st.Paging(w.spec.Window)
	p.StoreRows(cache, kv, slots)
	chosen := device.Mat{}
	if g.index != nil {
		chosen = g.index.run(p, st, w.index, kept[1], layer)
	}
	g.attend(p, st, w, out.X, q, cache, chosen)
	if w.spec.Gate {
		p.Observe(layer, "attn_ungated", out.X)
		p.Gate(byHead(out.X, g.sizes.Heads), gates)
	}
	p.Observe(layer, "attn", out.X)
	out.Prepare(&p.List, &w.o)
	project(p, st.Delta, &out, &w.o, w.oBias)
}

// borrow appends attention over the keys and values of another layer.
func (g *gqa) borrow(p *stages.Program, st *stages.State, w *gqaBlock, cache device.KV, layer int) {
	q, out := g.q.RowRange(0, st.T), g.out.RowRange(st.T)
	st.Input.Prepare(&p.List, &w.q)
	project(p, q, &st.Input, &w.q, device.Mat{})
	p.Observe(layer, "q", q)
	p.HeadNorm(q, g.sizes.Heads, w.qNorm, w.spec.NormEps)
	p.Observe(layer, "q_norm", q)
	p.Rope(q, st.Positions, g.table, &g.qRope)
	p.Observe(layer, "q_rotated", q)
	g.attend(p, st, w, out.X, q, cache, device.Mat{})
	p.Observe(layer, "attn", out.X)
	out.Prepare(&p.List, &w.o)
	project(p, st.Delta, &out, &w.o, w.oBias)
}

// attend appends attention of all rows over the cache, or over the positions chosen of it.
func (g *gqa) attend(p *stages.Program, st *stages.State, w *gqaBlock, out, q device.Mat, cache device.KV, chosen device.Mat) {
	_, prefill, decode := st.Paging(w.spec.Window)
	for _, x := range [...]device.Spans{prefill, decode} {
		switch {
		case len(x.List) == 0:
		case g.index != nil:
			p.SparseGQA(out, q, cache, chosen, x, &g.sizes)
		default:
			p.GQA(out, q, cache, w.sinks, x, &g.sizes)
		}
	}
}

// norm appends the norms of queries, into q, and of keys.
func (g *gqa) norm(p *stages.Program, w *gqaBlock, q, queries, keys device.Mat) {
	eps := w.spec.NormEps
	switch {
	case w.spec.Gate: // the queries lie apart
		p.RMSNorm(byHead(q, g.sizes.Heads), queries, w.qNorm, eps)
	case w.spec.WholeNorm:
		p.RMSNorm(q, q, w.qNorm, eps)
		p.RMSNorm(keys, keys, w.kNorm, eps)
		return
	default:
		p.HeadNorm(q, g.sizes.Heads, w.qNorm, eps)
	}
	p.HeadNorm(keys, g.sizes.KVHeads, w.kNorm, eps)
}

// byHead views the heads of dense rows as rows.
func byHead(m device.Mat, heads int) device.Mat {
	m.Rows, m.Cols = m.Rows*heads, m.Cols/heads
	m.Stride = m.Cols
	return m
}

// project appends out = x * w^T, plus the bias where there is one.
func project(p *stages.Program, out device.Mat, x *stages.Input, w *device.Weight, bias device.Mat) {
	if !w.Zero() {
		x.Mul(&p.List, out, w)
	}
	if !bias.Zero() {
		p.AddBias(out, bias)
	}
}
