package refdevice

import (
	"krater/kernels/device"
	"krater/kernels/ref"
)

func (Device) Sigmoid(s device.Stream, x device.Mat, p device.Sigmoid) {
	later(s, func() {
		v := floats(x)
		ref.Sigmoid(v, p)
		store(x, v)
	})
}

func (Device) MixWeights(s device.Stream, out, x, base, scale device.Mat, p device.StreamMix) {
	later(s, func() {
		v := floats(out)
		ref.MixWeights(v, floats(x), floats(base), floats(scale), p)
		store(out, v)
	})
}

func (Device) Collapse(s device.Stream, out, x, weights device.Mat) {
	later(s, func() {
		v := make([]float32, out.Rows*out.Cols)
		if weights.Cols != x.Cols {
			ref.CollapseWhole(v, floats(x), maybe(weights), x.Cols/out.Cols, out.Cols)
			store(out, v)
			return
		}
		ref.Collapse(v, floats(x), floats(weights), x.Cols/out.Cols, out.Cols)
		store(out, v)
	})
}

func (Device) Spread(s device.Stream, out, x, weights, base device.Mat) {
	later(s, func() {
		v := make([]float32, out.Rows*out.Cols)
		if n := out.Cols / x.Cols; weights.Cols != n {
			ref.SpreadMixed(v, floats(x), floats(weights), floats(base), n, x.Cols)
		} else {
			ref.Spread(v, floats(x), floats(weights), maybe(base), n, x.Cols)
		}
		store(out, v)
	})
}

func (Device) StreamGates(s device.Stream, out, x, y device.Mat) {
	later(s, func() {
		v := make([]float32, out.Rows*out.Cols)
		ref.StreamGates(v, floats(x), floats(y), x.Cols/out.Cols)
		store(out, v)
	})
}

func (Device) NGrams(s device.Stream, out, rows, ids device.Mat, shards []device.Mat, tail device.KV, spans device.Spans, p device.NGrams) {
	if out.Zero() {
		return
	}
	later(s, func() {
		var table []float32
		for _, m := range shards {
			table = append(table, view(m)...)
		}
		v, numbers, kept := floats(out), ints(rows), floats(tail.Mat) // rows of other spans stay
		ref.NGrams(v, numbers, ints(ids), table, kept, spans.List, p)
		store(out, v)
		storeInts(rows, numbers)
		store(tail.Mat, kept)
	})
}

func (Device) TapConv(s device.Stream, out, x, w device.Mat, tail device.KV, spans device.Spans, p device.TapConv) {
	later(s, func() {
		v, kept := floats(out), floats(tail.Mat) // rows of other spans stay
		ref.TapConv(v, floats(x), view(w), kept, spans.List, p, x.Cols)
		store(out, v)
		store(tail.Mat, kept)
	})
}

func (Device) SelectBlocks(s device.Stream, chosen, q device.Mat, keys device.KV, norm, table device.Mat, spans device.Spans, p device.BlockIndex) {
	later(s, func() {
		v := ints(chosen) // rows of other spans stay
		if p.Local == 0 {
			rows, slots := ref.BlockKeys(cached(keys), view(norm), view(table), spans.List, p)
			storeRows(keys, rows, slots)
		}
		ref.SelectBlocks(v, floats(q), cached(keys), spans.List, p)
		storeInts(chosen, v)
	})
}

func (Device) Compress(s device.Stream, entries device.KV, spans device.Spans, near device.KV, nearSpans device.Spans, norm, ape, table device.Mat, p device.Compress) {
	later(s, func() {
		rows, slots := ref.Compress(spans.List, cached(near), nearSpans.List, view(norm), view(ape), view(table), p)
		storeRows(entries, rows, slots)
	})
}

func (Device) Compressed(s device.Stream, out, q device.Mat, entries device.KV, spans device.Spans, near device.KV, nearSpans device.Spans, chosen, sinks device.Mat, p device.Compressed) {
	later(s, func() {
		v := floats(out) // rows of other spans stay
		var list []int32
		if !chosen.Zero() {
			list = ints(chosen)
		}
		var kept []float32
		if !entries.Zero() {
			kept = cached(entries)
		}
		ref.Compressed(v, floats(q), kept, spans.List, cached(near), nearSpans.List, list, chosen.Cols, floats(sinks), p)
		store(out, v)
	})
}

func (Device) RouteByToken(s device.Stream, ids, weights, logits, tokens, table device.Mat, p device.Router) {
	later(s, func() {
		id, w := make([]int32, ids.Rows*ids.Cols), make([]float32, weights.Rows*weights.Cols)
		ref.RouteByToken(id, w, floats(logits), ints(tokens), view(table), p)
		storeInts(ids, id)
		store(weights, w)
	})
}

func (Device) SparseGQA(s device.Stream, out, q device.Mat, cache device.KV, chosen device.Mat, spans device.Spans, p device.GQA) {
	later(s, func() {
		v := floats(out) // rows of other spans stay
		ref.SparseGQA(v, floats(q), cached(cache), ints(chosen), chosen.Cols, spans.List, p)
		store(out, v)
	})
}
