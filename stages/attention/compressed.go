package attention

import (
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/model"
)

var _ = Register(func(m model.Compressed, b Binder) Block {
	w := &compressedBlock{
		spec: m, qA: b.Weight("q_a"), qNorm: b.Vector("q_a_norm"), qB: b.Weight("q_b"), kv: b.Weight("kv"), kvNorm: b.Vector("kv_norm"),
		ones: b.Ones(m.HeadDim), sinks: b.Vector("sinks"), o: b.Weight("o"),
	}
	if all := b.Vector("o_a"); !all.Zero() {
		for g := range m.Groups {
			w.oA = append(w.oA, device.Weight{F: all.RowRange(g*m.OutRank, (g+1)*m.OutRank)})
		}
	}
	compressor := func(prefix string) compressorBlock {
		return compressorBlock{c: b.Weight(prefix + "c"), z: b.Weight(prefix + "z"), ape: b.Vector(prefix + "ape"), norm: b.Vector(prefix + "norm")}
	}
	if m.Ratio > 0 {
		w.compress = compressor("compress_")
	}
	if m.Index.Own() {
		w.index, w.indexQ, w.indexWeights = compressor("index_"), b.Weight("index_q"), b.Weight("index_weights")
	}
	return w
})

// compressedBlock is the weights of a layer with compressed entries (model.Compressed). D is the length of a head.
type compressedBlock struct {
	spec         model.Compressed
	qA           device.Weight   // [q_rank, H]
	qNorm        device.Mat      // [1, q_rank]
	qB           device.Weight   // [heads*D, q_rank]
	kv           device.Weight   // [D, H]
	kvNorm       device.Mat      // [1, D]
	ones         device.Mat      // [1, D] the weight of the norm of query heads
	sinks        device.Mat      // [1, heads] F32
	oA           []device.Weight // [out_rank, heads*D/groups] of each group
	o            device.Weight   // [H, groups*out_rank]
	compress     compressorBlock // with entries
	index        compressorBlock // with an index, as those below
	indexQ       device.Weight   // [index heads*d, q_rank]
	indexWeights device.Weight   // [index heads, H]
}

// compressorBlock is the weights that make entries of n values (device.Compress).
type compressorBlock struct {
	c, z device.Weight // [parts*n, H]
	ape  device.Mat    // [ratio, parts*n] F32
	norm device.Mat    // [1, n]
}

// compressor makes entries.
type compressor struct {
	sizes device.Compress
	reach int        // how many tokens an entry is made of
	raw   device.Mat // [tokens, 2*parts*n]
}

// compressed runs attention over tokens and entries.
type compressed struct {
	sizes        device.Compressed
	eps          float32
	table        device.Mat // [context, rope] F32
	qRope, kRope device.Rope
	back         device.Rope  // of the output
	qa           stages.Input // [tokens, q_rank]
	q            device.Mat   // [tokens, heads*D]
	kv           device.Mat   // [tokens, D]
	out          device.Mat   // [tokens, heads*D]
	oa           stages.Input // [tokens, groups*out_rank]
	compress     compressor
	index        compressor
	indexSizes   device.Index
	indexRope    device.Rope
	indexQ       device.Mat // [tokens, index heads*d]
	indexWeights device.Mat // [tokens, index heads]
	owned        scratch
}

// New implements Block.
func (w *compressedBlock) New(dev device.Device, lim stages.Limits, tables Tables) (Stage, error) {
	m, bt := w.spec, lim.BlockTokens
	c := &compressed{
		sizes: m.Sizes(bt), eps: m.NormEps, table: tables[m.Rope],
		qRope: m.Turn(m.Heads, m.HeadDim), kRope: m.Turn(1, m.HeadDim), back: m.Turn(m.Heads, m.HeadDim),
	}
	c.back.Back = true
	var qa, oa device.Mat
	pieces := []piece{{&qa, m.QRank}, {&c.q, m.QDim()}, {&c.kv, m.HeadDim}, {&c.out, m.QDim()}, {&oa, m.Groups * m.OutRank}}
	entries := func(x *compressor, dim int) {
		x.sizes = m.Compressor(dim, bt)
		x.reach = x.sizes.Parts() * m.Ratio
		pieces = append(pieces, piece{&x.raw, x.sizes.Width()})
	}
	if m.Ratio > 0 {
		entries(&c.compress, m.HeadDim)
	}
	if x := m.Index; x.Own() {
		c.indexSizes, c.indexRope = x.Sizes(bt), m.Turn(x.Heads, x.Dim)
		c.indexSizes.Pool, c.indexSizes.Entries = m.Ratio, true
		pieces = append(pieces, piece{&c.indexQ, x.Heads * x.Dim})
		entries(&c.index, x.Dim)
		pieces = append(pieces, piece{&c.indexWeights, x.Heads})
	}
	err := c.owned.alloc(dev, lim.LayerRows(), pieces)
	if err != nil {
		return nil, err
	}
	if c.qa, err = c.owned.room(dev, qa, &w.qB); err != nil {
		return nil, err
	}
	if c.oa, err = c.owned.room(dev, oa, &w.o); err != nil {
		return nil, err
	}
	return c, nil
}

// Close frees the scratch memory.
func (c *compressed) Close() { c.owned.free() }

// Run implements Stage. kept is as model.Compressed.State lists it.
func (c *compressed) Run(p *stages.Program, st *stages.State, b Block, kept []device.KV, layer int) {
	w := b.(*compressedBlock)
	q, kv, out := c.q.RowRange(0, st.T), c.kv.RowRange(0, st.T), c.out.RowRange(0, st.T)
	qa, oa := c.qa.RowRange(st.T), c.oa.RowRange(st.T)
	st.Input.Prepare(&p.List, &w.qA, &w.kv)
	// All that reads the layer's input, then what reads the compressed queries: a device may compute products that follow each
	// other as one.
	st.Input.Mul(&p.List, qa.X, &w.qA)
	st.Input.Mul(&p.List, kv, &w.kv)
	if c.sizes.Ratio > 0 {
		c.compress.multiply(p, st, &w.compress)
	}
	if c.indexSizes.TopK > 0 {
		st.Input.Mul(&p.List, c.indexWeights.RowRange(0, st.T), &w.indexWeights)
		c.index.multiply(p, st, &w.index)
	}
	p.Observe(layer, "q_a", qa.X)
	p.Observe(layer, "kv", kv)
	p.RMSNorm(qa.X, qa.X, w.qNorm, c.eps)
	p.Observe(layer, "q_resid", qa.X)
	qa.Prepare(&p.List, &w.qB, &w.indexQ)
	qa.Mul(&p.List, q, &w.qB)
	if c.indexSizes.TopK > 0 {
		qa.Mul(&p.List, c.indexQ.RowRange(0, st.T), &w.indexQ)
	}
	p.Observe(layer, "q", q)
	p.HeadNorm(q, c.sizes.Heads, w.ones, c.eps)
	p.Observe(layer, "q_unit", q)
	p.Rope(q, st.Positions, c.table, &c.qRope)
	p.Observe(layer, "q_pe", q)
	p.RMSNorm(kv, kv, w.kvNorm, c.eps)
	p.Observe(layer, "kv_unit", kv)
	p.Rope(kv, st.Positions, c.table, &c.kRope)
	p.Observe(layer, "kv_rope", kv)
	near := st.Stored(kept[0], layer)
	slots, prefill, decode := st.Paging(c.sizes.Window)
	p.StoreRows(near, kv, slots)
	var entries device.KV
	var chosen device.Mat
	if c.sizes.Ratio > 0 {
		entries = kept[1]
		c.compress.run(p, st, &w.compress, entries, st.Stored(kept[2], layer), c.table, layer, "compress_")
	}
	if c.indexSizes.TopK > 0 {
		chosen = c.choose(p, st, w, kept[3:], layer)
	}
	for i, spans := range [...]device.Spans{st.PrefillSpans(), st.DecodeSpans()} {
		if len(spans.List) > 0 {
			p.Compressed(out, q, entries, spans, near, [...]device.Spans{prefill, decode}[i], chosen, w.sinks, &c.sizes)
		}
	}
	p.Rope(out, st.Positions, c.table, &c.back)
	p.Observe(layer, "attn", out)
	in, rank := out.Cols/len(w.oA), w.spec.OutRank
	for g := range w.oA {
		p.MatMul(oa.X.ColRange(g*rank, (g+1)*rank), out.ColRange(g*in, (g+1)*in), device.QRows{}, &w.oA[g])
	}
	p.Observe(layer, "o_a", oa.X)
	oa.Prepare(&p.List, &w.o)
	oa.Mul(&p.List, st.Delta, &w.o)
}

// rows are the raw rows of a batch: values and gates.
func (x *compressor) rows(st *stages.State) (raw, c, z device.Mat) {
	raw = x.raw.RowRange(0, st.T)
	return raw, raw.ColRange(0, raw.Cols/2), raw.ColRange(raw.Cols/2, raw.Cols)
}

// multiply appends the raw rows of the batch.
func (x *compressor) multiply(p *stages.Program, st *stages.State, w *compressorBlock) {
	_, c, z := x.rows(st)
	st.Input.Mul(&p.List, c, &w.c)
	st.Input.Mul(&p.List, z, &w.z)
}

// run appends that the raw rows of the batch, which multiply made, and the entries that they complete are stored.
func (x *compressor) run(p *stages.Program, st *stages.State, w *compressorBlock, entries, near device.KV, table device.Mat, layer int, prefix string) {
	raw, c, z := x.rows(st)
	p.Observe(layer, prefix+"c", c)
	p.Observe(layer, prefix+"z", z)
	slots, prefill, decode := st.Paging(x.reach)
	p.StoreRows(near, raw, slots)
	for i, spans := range [...]device.Spans{st.PrefillSpans(), st.DecodeSpans()} {
		if len(spans.List) > 0 {
			p.Compress(entries, spans, near, [...]device.Spans{prefill, decode}[i], w.norm, w.ape, table, &x.sizes)
		}
	}
}

// choose appends the choice of entries, which it returns. kept is the entries of the index and their raw rows.
func (c *compressed) choose(p *stages.Program, st *stages.State, w *compressedBlock, kept []device.KV, layer int) device.Mat {
	q, weights := c.indexQ.RowRange(0, st.T), c.indexWeights.RowRange(0, st.T)
	p.Observe(layer, "index_q", q)
	p.Rope(q, st.Positions, c.table, &c.indexRope)
	p.Observe(layer, "indexer_query", q)
	p.Observe(layer, "index_weights", weights)
	c.index.run(p, st, &w.index, kept[0], st.Stored(kept[1], layer), c.table, layer, "index_")
	for _, spans := range [...]device.Spans{st.PrefillSpans(), st.DecodeSpans()} {
		if len(spans.List) > 0 {
			p.Select(st.Selected, q, weights, kept[0], spans, &c.indexSizes)
		}
	}
	p.Observe(layer, "selected", st.Selected)
	return st.Selected
}
