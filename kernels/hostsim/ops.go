package hostsim

import (
	"slices"

	"krater/kernels/device"
)

// The operators: see kernels/device. Bytes are those of the arguments, each
// counted once; flops those of the matrix products.

// GatherRows copies rows of a table.
func (d *Device) GatherRows(s device.Stream, out, table, ids device.Mat) {
	c := d.call("GatherRows", s)
	o, t, i := c.mat("out", out), c.view("table", table), c.mat("ids", ids)
	c.work.bytes += int64(out.Rows * table.Cols * table.DType.Size())
	c.run(0, func(in device.Stream) { d.cpu.GatherRows(in, o, t, i) })
}

// RMSNorm is the norm of each row.
func (d *Device) RMSNorm(s device.Stream, out, x, w device.Mat, eps float32) {
	c := d.call("RMSNorm", s)
	o, i, f := c.mat("out", out), c.mat("x", x), c.mat("w", w)
	c.run(0, func(in device.Stream) { d.cpu.RMSNorm(in, o, i, f, eps) })
}

// AddRMSNorm adds to x, then is RMSNorm.
func (d *Device) AddRMSNorm(s device.Stream, out, x, delta, w device.Mat, eps float32) {
	c := d.call("AddRMSNorm", s)
	o, i, add, f := c.mat("out", out), c.mat("x", x), c.mat("delta", delta), c.mat("w", w)
	c.run(0, func(in device.Stream) { d.cpu.AddRMSNorm(in, o, i, add, f, eps) })
}

// HeadNorm is RMSNorm over each head.
func (d *Device) HeadNorm(s device.Stream, x device.Mat, heads int, w device.Mat, eps float32) {
	c := d.call("HeadNorm", s)
	i, f := c.mat("x", x), c.mat("w", w)
	c.run(0, func(in device.Stream) { d.cpu.HeadNorm(in, i, heads, f, eps) })
}

// Add is x += delta.
func (d *Device) Add(s device.Stream, x, delta device.Mat) {
	c := d.call("Add", s)
	i, add := c.mat("x", x), c.mat("delta", delta)
	c.run(0, func(in device.Stream) { d.cpu.Add(in, i, add) })
}

// AddBias is x += b, every row.
func (d *Device) AddBias(s device.Stream, x, b device.Mat) {
	c := d.call("AddBias", s)
	i, add := c.mat("x", x), c.mat("b", b)
	c.run(0, func(in device.Stream) { d.cpu.AddBias(in, i, add) })
}

// MatMul is out = x * w^T.
func (d *Device) MatMul(s device.Stream, out, x, w device.Mat) {
	c := d.call("MatMul", s)
	o, i, f := c.mat("out", out), c.mat("x", x), c.mat("w", w)
	c.run(products(x.Rows, w.Rows, w.Cols), func(in device.Stream) { d.cpu.MatMul(in, o, i, f) })
}

// products is the flops of [m, k] * [n, k]^T.
func products(m, n, k int) int64 { return 2 * int64(m) * int64(n) * int64(k) }

// Rope rotates in place.
func (d *Device) Rope(s device.Stream, x, positions, table device.Mat, p device.Rope) {
	c := d.call("Rope", s)
	i, pos, t := c.mat("x", x), c.mat("positions", positions), c.view("table", table)
	c.run(0, func(in device.Stream) { d.cpu.Rope(in, i, pos, t, p) })
}

// StoreRows writes rows of a cache.
func (d *Device) StoreRows(s device.Stream, cache device.KV, src, slots device.Mat) {
	c := d.call("StoreRows", s)
	kv, from, at := c.cache(cache), c.mat("src", src), c.mat("slots", slots)
	if !cache.Marks.Zero() {
		kv.Marks = c.view("cache.Marks", cache.Marks)
	}
	c.work.bytes += int64(src.Rows) * rowBytes(cache)
	c.run(0, func(in device.Stream) { d.cpu.StoreRows(in, kv, from, at) })
}

// CopyRows copies rows within the device.
func (d *Device) CopyRows(s device.Stream, dst, src device.Mat) {
	c := d.call("CopyRows", s)
	o, i := c.mat("dst", dst), c.mat("src", src)
	c.run(0, func(in device.Stream) { d.cpu.CopyRows(in, o, i) })
}

// MLAPrefill expands the keys and values of every row that is read.
func (d *Device) MLAPrefill(s device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, spans device.Spans, p device.MLA) {
	c := d.call("MLAPrefill", s)
	o, i, kv, w := c.mat("out", out), c.mat("q", q), c.cache(cache), c.kvB(kvB)
	own, keys, pairs := c.spans(spans, cache)
	heads := int64(p.Heads)
	flops := 2 * heads * (keys*int64(p.Nope+p.V)*int64(p.Rank) + pairs*int64(p.Nope+p.Rope+p.V))
	c.run(flops, func(in device.Stream) { d.cpu.MLAPrefill(in, o, i, kv, w, device.Spans{List: own}, p) })
}

// MLADecode brings queries and results through kv_b instead.
func (d *Device) MLADecode(s device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, spans device.Spans, p device.MLA) {
	c := d.call("MLADecode", s)
	o, i, kv, w := c.mat("out", out), c.mat("q", q), c.cache(cache), c.kvB(kvB)
	own, _, pairs := c.spans(spans, cache)
	rows := int64(0)
	for _, sp := range own {
		rows += int64(sp.Len)
	}
	flops := 2 * int64(p.Heads) * (rows*int64(p.Nope+p.V)*int64(p.Rank) + pairs*int64(2*p.Rank+p.Rope))
	c.run(flops, func(in device.Stream) { d.cpu.MLADecode(in, o, i, kv, w, device.Spans{List: own}, p) })
}

// GQA reads keys and values as they are.
func (d *Device) GQA(s device.Stream, out, q device.Mat, cache device.KV, spans device.Spans, p device.GQA) {
	c := d.call("GQA", s)
	o, i, kv := c.mat("out", out), c.mat("q", q), c.cache(cache)
	own, _, pairs := c.spans(spans, cache)
	c.run(4*pairs*int64(p.Heads)*int64(p.HeadDim), func(in device.Stream) { d.cpu.GQA(in, o, i, kv, device.Spans{List: own}, p) })
}

// RouteTopK chooses experts.
func (d *Device) RouteTopK(s device.Stream, ids, weights, logits, bias device.Mat, p device.Router) {
	c := d.call("RouteTopK", s)
	i, w, l, b := c.mat("ids", ids), c.mat("weights", weights), c.mat("logits", logits), c.mat("bias", bias)
	c.run(0, func(in device.Stream) { d.cpu.RouteTopK(in, i, w, l, b, p) })
}

// FFN is one network for all rows.
func (d *Device) FFN(s device.Stream, out, x device.Mat, e device.Expert) {
	c := d.call("FFN", s)
	o, i, w := c.mat("out", out), c.mat("x", x), c.expert(e)
	c.run(products(x.Rows, 3*e.Gate.Rows, x.Cols), func(in device.Stream) { d.cpu.FFN(in, o, i, w) })
}

// Experts are several networks, each for its rows.
func (d *Device) Experts(s device.Stream, y, x device.Mat, bank []device.Expert, work []device.ExpertRows, topK int) {
	c := d.call("Experts", s)
	c.routed(work, len(bank))
	o, i := c.view("y", y), c.mat("x", x)
	own, rows := list(work)
	inner := make([]device.Expert, len(bank))
	flops := int64(0)
	for _, w := range own {
		e := &bank[w.Expert]
		inner[w.Expert] = c.expert(*e)
		flops += products(len(w.Assign), 3*e.Gate.Rows, x.Cols)
	}
	c.work.bytes += rows * int64(y.Cols*y.DType.Size())
	c.run(flops, func(in device.Stream) { d.cpu.Experts(in, o, i, inner, own, topK) })
}

// WeightedSum joins what experts computed.
func (d *Device) WeightedSum(s device.Stream, out, y, weights, base device.Mat) {
	c := d.call("WeightedSum", s)
	o, i, w, b := c.mat("out", out), c.mat("y", y), c.mat("weights", weights), c.mat("base", base)
	c.run(0, func(in device.Stream) { d.cpu.WeightedSum(in, o, i, w, b) })
}

// WeightedSumOf joins what experts computed of some choices, into memory of the host: out
// is the operator's until the stream has come to it.
func (d *Device) WeightedSumOf(s device.Stream, out []float32, y device.Mat, weights []float32, ids []int32) {
	c := d.call("WeightedSumOf", s)
	i, w, own := c.mat("y", y), slices.Clone(weights), slices.Clone(ids)
	c.run(0, func(in device.Stream) { d.cpu.WeightedSumOf(in, out, i, w, own) })
}

// QuantizeRows makes integers of rows.
func (d *Device) QuantizeRows(s device.Stream, out device.QRows, x device.Mat) {
	c := d.call("QuantizeRows", s)
	o, i := c.rows("out", out), c.mat("x", x)
	c.run(0, func(in device.Stream) { d.cpu.QuantizeRows(in, o, i) })
}

// MatMulQ is MatMul in integers.
func (d *Device) MatMulQ(s device.Stream, out device.Mat, x device.QRows, w device.QMat) {
	c := d.call("MatMulQ", s)
	o, i, q := c.mat("out", out), c.rows("x", x), c.integers("w", w)
	c.run(products(x.Q.Rows, w.Rows, w.Cols), func(in device.Stream) { d.cpu.MatMulQ(in, o, i, q) })
}

// FFNQ is FFN in integers.
func (d *Device) FFNQ(s device.Stream, out device.Mat, x device.QRows, e device.QExpert) {
	c := d.call("FFNQ", s)
	o, i, w := c.mat("out", out), c.rows("x", x), c.quantised(e)
	c.run(products(x.Q.Rows, 3*e.W2.Cols, out.Cols), func(in device.Stream) { d.cpu.FFNQ(in, o, i, w) })
}

// ExpertsQ is Experts in integers.
func (d *Device) ExpertsQ(s device.Stream, y device.Mat, x device.QRows, bank []device.QExpert, work []device.ExpertRows, topK int) {
	c := d.call("ExpertsQ", s)
	c.routed(work, len(bank))
	o, i := c.view("y", y), c.rows("x", x)
	own, rows := list(work)
	inner := make([]device.QExpert, len(bank))
	flops := int64(0)
	for _, w := range own {
		e := &bank[w.Expert]
		inner[w.Expert] = c.quantised(*e)
		flops += products(len(w.Assign), 3*e.W2.Cols, y.Cols)
	}
	c.work.bytes += rows * int64(y.Cols*y.DType.Size())
	c.run(flops, func(in device.Stream) { d.cpu.ExpertsQ(in, o, i, inner, own, topK) })
}
