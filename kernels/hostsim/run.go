package hostsim

import (
	"slices"

	"krater/kernels/device"
)

// Fused implements device.Device: operators that the CPU fuses count as one launch.
func (d *Device) Fused(l device.List) int { return d.cpu.Fused(l) }

// Run implements device.Device. The bytes of a launch are its arguments, each read or written once. Of
// floating point operations, only those of matrix products count.
func (d *Device) Run(s device.Stream, l device.List) {
	for part := range l.Parts(d) {
		d.launch(s, part)
	}
}

// launch enqueues operators that are computed as one. It copies all arguments that another step may
// have changed by the time they are used.
func (d *Device) launch(s device.Stream, l device.List) {
	name := l.Ops[0].Kind.String()
	for i := range l.Ops[1:] {
		name += "+" + l.Ops[1+i].Kind.String()
	}
	c := d.call(name, s)
	c.list.Ops, c.list.Generated = append(c.list.Ops, l.Ops...), l.Generated
	flops := int64(0)
	for i := range c.list.Ops {
		o, given := &c.list.Ops[i], &l.Ops[i]
		flops += c.sizes(o)
		o.Mats(func(name string, m *device.Mat) {
			if partly(given, *m) || i > 0 && slices.Contains(c.counted, *m) {
				*m = c.view(name, *m)
				return
			}
			c.counted = append(c.counted, *m)
			*m = c.mat(name, *m)
		})
		c.weights(o)
	}
	c.run(flops)
}

// partly reports whether o reads or writes only some rows of m, which sizes counts.
func partly(o *device.Op, m device.Mat) bool {
	switch o.Kind {
	case device.OpSelectBlocks:
		return m == o.A
	case device.OpCompress:
		return m == o.B
	case device.OpRouteByToken:
		return m == o.W
	case device.OpGatherRows, device.OpRope:
		return m == o.W
	case device.OpExperts:
		return m == o.Out
	}
	return false
}

// sizes counts the rows that o uses of a table, a cache or its output, and returns its floating point
// operations. It copies lists of spans and of work.
func (c *call) sizes(o *device.Op) (flops int64) {
	switch o.Kind {
	case device.OpGatherRows:
		c.work.bytes += int64(o.Out.Rows * o.W.Cols * o.W.DType.Size())
	case device.OpMatMul:
		return products(o.Out.Rows, o.Out.Cols, columns(o))
	case device.OpGateRows:
		return products(o.X.Rows, 1, o.X.Cols)
	case device.OpFFN:
		return products(o.Out.Rows, 3*width(o.FFN), o.Out.Cols)
	case device.OpStoreRows:
		c.work.bytes += int64(o.X.Rows) * rowBytes(o.KV)
	case device.OpMLA:
		own, keys, pairs := c.spans(o.Spans, o.KV)
		o.Spans.List = own
		p, heads := o.MLA, int64(o.MLA.Heads)
		if !o.Spans.Decode { // keys and values of every row that is read are expanded
			return 2 * heads * (keys*int64(p.Nope+p.V)*int64(p.Rank) + pairs*int64(p.Nope+p.Rope+p.V))
		}
		rows := int64(0)
		for _, sp := range own {
			rows += int64(sp.Len)
		}
		return 2 * heads * (rows*int64(p.Nope+p.V)*int64(p.Rank) + pairs*int64(2*p.Rank+p.Rope))
	case device.OpSelect:
		own, _, pairs := c.spans(o.Spans, o.KV)
		o.Spans.List = own
		return 2 * pairs * int64(o.Index.Heads) * int64(o.Index.Dim) / int64(max(1, o.Index.Pool))
	case device.OpPoolKeys:
		o.Spans.List = c.spanList(o.Spans.List)
		return 4 * int64(o.Out.Rows) * int64(o.Out.Cols)
	case device.OpSparseMLA:
		own, rows, pairs := c.sparse(o.Spans.List, o.A.Cols)
		o.Spans.List = own
		c.work.bytes += pairs * rowBytes(o.KV)
		p := o.MLA
		return 2 * int64(p.Heads) * (rows*int64(p.Nope+p.V)*int64(p.Rank) + pairs*int64(2*p.Rank+p.Rope))
	case device.OpConv, device.OpDelta:
		p, slots := o.Delta, int64(0)
		o.Spans.List = c.spanList(o.Spans.List)
		for _, sp := range o.Spans.List {
			slots += min(1, int64(sp.Len))
			flops += int64(sp.Len)
		}
		if o.Kind == device.OpConv {
			c.work.bytes += 2 * slots * int64(p.Taps) * rowBytes(o.KV)
			return 2 * flops * int64(p.Taps*p.Channels())
		}
		c.work.bytes += 2 * slots * int64(p.StateRows()) * rowBytes(o.KV)
		return 7 * flops * int64(p.StateRows()*p.ValueDim)
	case device.OpNGrams, device.OpTapConv, device.OpSelectBlocks, device.OpSparseGQA, device.OpCompress, device.OpCompressed:
		return c.streamSizes(o)
	case device.OpGQA:
		own, _, pairs := c.spans(o.Spans, o.KV)
		o.Spans.List = own
		return 4 * pairs * int64(o.GQA.Heads) * int64(o.GQA.HeadDim)
	case device.OpExperts:
		c.routed(o.Experts.Work, o.Experts.Len())
		own, rows := c.workList(o.Experts.Work)
		o.Experts.Work = own
		c.work.bytes += rows * int64(o.Out.Cols*o.Out.DType.Size())
		for _, w := range own {
			_, ff, hidden := o.Experts.Sizes(w.Expert)
			flops += products(len(w.Assign), 3*ff, hidden)
		}
	}
	return flops
}

// streamSizes is sizes for operators of models with several residual streams.
func (c *call) streamSizes(o *device.Op) (flops int64) {
	switch o.Kind {
	case device.OpNGrams, device.OpTapConv:
		o.Spans.List = c.spanList(o.Spans.List)
		o.Shards = copied(&c.shards, o.Shards) // of which a few rows are read
		for i, m := range o.Shards {
			o.Shards[i] = c.view("shard", m)
		}
	case device.OpSelectBlocks:
		own, _, pairs := c.spans(o.Spans, o.KV)
		o.Spans.List = own
		if o.Blocks.Local > 0 { // keys are scored, not blocks
			return 2 * pairs * int64(o.Blocks.Heads*o.Blocks.Dim)
		}
		return 2 * pairs * int64(o.Blocks.Heads*o.Blocks.Dim) / int64(o.Blocks.Block)
	case device.OpCompress:
		c.nearSpans(o)
		for _, sp := range o.Spans.List {
			for e := sp.Pos / o.Compress.Ratio; device.Entry(e, o.Compress.Ratio) < sp.Pos+sp.Len; e++ {
				c.work.bytes += rowBytes(o.KV) + int64(o.Compress.Ratio*o.Compress.Parts())*rowBytes(o.Near.KV)
			}
		}
	case device.OpCompressed:
		c.nearSpans(o)
		rows := int64(0)
		for _, sp := range o.Near.Spans.List {
			for pos := sp.Pos; pos < sp.Pos+sp.Len; pos++ {
				sees := o.Compressed.Sees(pos)
				if !o.A.Zero() {
					sees = min(sees, o.A.Cols)
				}
				rows += int64(pos + 1 - o.Compressed.First(pos) + sees)
			}
		}
		c.work.bytes += rows * rowBytes(o.Near.KV)
		return 4 * rows * int64(o.Compressed.Heads*o.Compressed.Dim)
	case device.OpSparseGQA:
		rows := int64(0)
		own, _, _ := c.spans(o.Spans, device.KV{})
		o.Spans.List = own
		for _, sp := range own {
			for r := range sp.Len {
				rows += int64(min(sp.Pos+r+1, o.A.Cols/max(1, o.GQA.Lists)))
			}
		}
		c.work.bytes += rows * rowBytes(o.KV)
		return 4 * rows * int64(o.GQA.Heads) * int64(o.GQA.HeadDim)
	}
	return 0
}

// nearSpans copies both lists of spans of an operator over entries.
func (c *call) nearSpans(o *device.Op) {
	o.Spans.List = c.spanList(o.Spans.List)
	o.Near = added(&c.near, *o.Near)
	o.Near.Spans.List = c.spanList(o.Near.Spans.List)
}

// columns returns the inner dimension of a product.
func columns(o *device.Op) int {
	if o.Weight.Integer() {
		return o.Weight.Q.Cols
	}
	return o.Weight.F.Cols
}

// width returns the number of hidden values of a network.
func width(n *device.FFN) int {
	if n.Integer() {
		return n.Q.W2.Cols
	}
	return n.F.Gate.Rows
}

// products returns the flops of [m, k] * [n, k]^T.
func products(m, n, k int) int64 { return 2 * int64(m) * int64(n) * int64(k) }

// weights translates the weights and the cache of o.
func (c *call) weights(o *device.Op) {
	if o.Weight != nil {
		o.Weight = added(&c.weight, device.Weight{F: c.mat("w", o.Weight.F), Q: c.integers("w", o.Weight.Q)})
	}
	if o.FFN != nil {
		o.FFN = added(&c.networks, device.FFN{F: c.expert(o.FFN.F), Q: c.quantised(o.FFN.Q)})
	}
	if o.KVB != nil {
		o.KVB = c.expansion(o.KVB)
	}
	if !o.KV.Zero() {
		marks := o.KV.Marks
		o.KV = c.cache(o.KV)
		if !marks.Zero() {
			o.KV.Marks = c.view("cache.Marks", marks)
		}
	}
	if o.Near != nil {
		o.Near.KV = c.cache(o.Near.KV)
		o.Near.KV.Marks = device.Mat{}
	}
	if r := &o.Experts; o.Kind == device.OpExperts {
		r.F, r.Q = copied(&c.experts, r.F), copied(&c.packed, r.Q)
		for _, w := range r.Work {
			if len(r.Q) > 0 {
				r.Q[w.Expert] = c.quantised(r.Q[w.Expert])
			} else {
				r.F[w.Expert] = c.expert(r.F[w.Expert])
			}
		}
	}
}
