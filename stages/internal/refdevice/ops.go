package refdevice

import (
	"krater/kernels/device"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

var (
	_ device.Operators = Device{}
)

// Run implements device.Device.
func (d Device) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

// Fused implements device.Device: every operator is computed by itself.
func (Device) Fused(device.List) int { return 1 }

// later enqueues f on s.
func later(s device.Stream, f func()) { s.(*stream).push(f) }

// GatherRows: see kernels/device, as all operators below.
func (Device) GatherRows(s device.Stream, out, table, ids device.Mat) {
	later(s, func() {
		v := make([]float32, out.Rows*out.Cols)
		ref.GatherRows(v, view(table), ints(ids), out.Cols)
		store(out, v)
	})
}

func (Device) RMSNorm(s device.Stream, out, x, w device.Mat, eps float32) {
	later(s, func() {
		v := make([]float32, out.Rows*out.Cols)
		ref.RMSNorm(v, floats(x), view(w), eps)
		store(out, v)
	})
}

func (Device) LayerNorm(s device.Stream, out, x, w, b device.Mat, eps float32) {
	later(s, func() {
		v := make([]float32, out.Rows*out.Cols)
		ref.LayerNorm(v, floats(x), view(w), view(b), eps)
		store(out, v)
	})
}

func (Device) HeadNorm(s device.Stream, x device.Mat, heads int, w device.Mat, eps float32) {
	later(s, func() {
		v := floats(x)
		ref.HeadNorm(v, view(w), eps)
		store(x, v)
	})
}

func (Device) Add(s device.Stream, x, delta device.Mat) {
	later(s, func() {
		v := floats(x)
		ref.Add(v, floats(delta))
		store(x, v)
	})
}

func (Device) AddBias(s device.Stream, x, b device.Mat) {
	later(s, func() {
		v := floats(x)
		ref.AddBias(v, floats(b))
		store(x, v)
	})
}

func (Device) GateRows(s device.Stream, out, x, w device.Mat) {
	later(s, func() {
		v := floats(out)
		ref.GateRows(v, floats(x), view(w), out.Cols)
		store(out, v)
	})
}

func (Device) MatMul(s device.Stream, out, x, w device.Mat) {
	later(s, func() {
		v := make([]float32, out.Rows*out.Cols)
		ref.MatMul(v, floats(x), view(w), x.Rows, w.Rows, w.Cols)
		store(out, v)
	})
}

func (Device) Rope(s device.Stream, x, positions, table device.Mat, p device.Rope) {
	later(s, func() {
		v := floats(x)
		ref.Rope(v, x.Cols, ints(positions), view(table), p)
		store(x, v)
	})
}

func (Device) StoreRows(s device.Stream, cache device.KV, src, slots device.Mat) {
	later(s, func() {
		storeRows(cache, floats(src), ints(slots))
		if !cache.Marks.Zero() {
			marks := ints(cache.Marks)
			for i, v := range floats(src) {
				if row := i / src.Cols; v-v != 0 && marks[row] == 0 {
					marks[row] = cache.Mark
				}
			}
			storeInts(cache.Marks, marks)
		}
	})
}

// storeRows writes rows of a cache.
func storeRows(cache device.KV, rows []float32, slots []int32) {
	first := []int32{0}
	for i, slot := range slots {
		row, to := rows[i*cache.Cols:(i+1)*cache.Cols], rowOf(cache.Mat, slot)
		switch cache.DType {
		case tensor.F8E4M3:
			v := make([]uint8, cache.Cols)
			ref.StoreRowsF8(v, row, first, cache.Cols)
			storeCells(to, v)
		case tensor.I8:
			v, scales := make([]int8, cache.Cols), make([]float32, cache.Scales.Cols)
			ref.StoreRowsI8(v, scales, row, first, cache.Cols, cache.Group)
			storeCells(to, v)
			store(rowOf(cache.Scales, slot), scales)
		default:
			store(to, row)
		}
	}
}

// rowOf returns a row of a matrix.
func rowOf(m device.Mat, row int32) device.Mat {
	m.Off, m.Rows = m.Off+int(row)*m.Stride*m.DType.Size(), 1
	return m
}

func (Device) CopyRows(s device.Stream, dst, src device.Mat) {
	later(s, func() {
		rows := make([][]byte, 0, src.Rows)
		eachRow(src, func(_ int, row []byte) { rows = append(rows, row) })
		change(dst, func(r int, row []byte) { copy(row, rows[r]) })
	})
}

// cached returns the values in a cache.
func cached(c device.KV) []float32 {
	switch c.DType {
	case tensor.F8E4M3:
		return ref.WidenF8(cells[uint8](c.Mat))
	case tensor.I8:
		return ref.WidenI8(cells[int8](c.Mat), floats(c.Scales), c.Cols, c.Group)
	}
	return view(c.Mat)
}

// cells copies a matrix of single bytes to a dense slice.
func cells[E int8 | uint8](m device.Mat) []E {
	out := make([]E, 0, m.Rows*m.Cols)
	eachRow(m, func(_ int, row []byte) {
		for _, b := range row {
			out = append(out, E(b))
		}
	})
	return out
}

func storeCells[E int8 | uint8](m device.Mat, v []E) {
	change(m, func(r int, row []byte) {
		for c := range row {
			row[c] = byte(v[r*m.Cols+c])
		}
	})
}

func integerKVB(w device.KVB) (out ref.KVB) {
	for h := range w.K {
		out.K, out.V = append(out.K, integers(w.K[h])), append(out.V, integers(w.V[h]))
	}
	return out
}

func (Device) MLAPrefill(s device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, spans device.Spans, p device.MLA) {
	later(s, func() {
		v := floats(out) // rows of other spans stay
		var w []float32
		if kvB.Integer() {
			w = integerKVB(kvB).Widen(p)
		} else {
			w = view(kvB.F)
		}
		ref.MLA(v, floats(q), cached(cache), w, spans.List, p)
		store(out, v)
	})
}

func (d Device) MLADecode(s device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, spans device.Spans, p device.MLA) {
	if !kvB.Integer() {
		d.MLAPrefill(s, out, q, cache, kvB, spans, p)
		return
	}
	later(s, func() {
		v := floats(out) // rows of other spans stay
		ref.MLAAbsorbed(v, floats(q), cached(cache), integerKVB(kvB), spans.List, p)
		store(out, v)
	})
}

func (Device) PoolKeys(s device.Stream, out, x, bias device.Mat, tail device.KV, spans device.Spans, p device.Index) {
	later(s, func() {
		v, kept := floats(out), floats(tail.Mat) // rows of other spans stay
		ref.PoolKeys(v, floats(x), floats(bias), kept, spans.List, p)
		store(out, v)
		store(tail.Mat, kept)
	})
}

func (Device) Select(s device.Stream, chosen, q, weights device.Mat, keys device.KV, spans device.Spans, p device.Index) {
	later(s, func() {
		v := ints(chosen) // rows of other spans stay
		ref.Select(v, floats(q), floats(weights), cached(keys), spans.List, p)
		storeInts(chosen, v)
	})
}

func (Device) SparseMLA(s device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, chosen device.Mat, spans device.Spans, p device.MLA) {
	later(s, func() {
		v := floats(out) // rows of other spans stay
		if !kvB.Integer() {
			ref.SparseMLA(v, floats(q), cached(cache), view(kvB.F), ints(chosen), chosen.Cols, spans.List, p)
			store(out, v)
			return
		}
		absorbed := integerKVB(kvB)
		expanded := absorbed.Widen(p)
		ref.SparseRows(cached(cache), ints(chosen), chosen.Cols, spans.List, cache.Cols, p.BlockTokens, func(rows []float32, one device.Span, all bool) {
			if all && !spans.Decode {
				ref.MLA(v, floats(q), rows, expanded, []device.Span{one}, p)
			} else {
				ref.MLAAbsorbed(v, floats(q), rows, absorbed, []device.Span{one}, p)
			}
		})
		store(out, v)
	})
}

func (Device) GQA(s device.Stream, out, q device.Mat, cache device.KV, sinks device.Mat, spans device.Spans, p device.GQA) {
	later(s, func() {
		v := floats(out) // rows of other spans stay
		ref.GQA(v, floats(q), cached(cache), maybe(sinks), spans.List, p)
		store(out, v)
	})
}

func (Device) Gate(s device.Stream, out, x device.Mat) {
	later(s, func() {
		v := floats(out)
		ref.Gate(v, floats(x))
		store(out, v)
	})
}

func (Device) Activate(s device.Stream, x, up device.Mat, act device.Activation) {
	later(s, func() {
		v := floats(x)
		ref.Activate(v, floats(up), act)
		store(x, v)
	})
}

func (Device) Scale(s device.Stream, x device.Mat, factor float32) {
	later(s, func() {
		v := floats(x)
		ref.Scale(v, factor)
		store(x, v)
	})
}

func (Device) Softcap(s device.Stream, x device.Mat, limit float32) {
	later(s, func() {
		v := floats(x)
		ref.Softcap(v, limit)
		store(x, v)
	})
}

func (Device) Conv(s device.Stream, out, x, w device.Mat, tail device.KV, spans device.Spans, p device.DeltaNet) {
	later(s, func() {
		v, kept := floats(out), floats(tail.Mat) // rows of other spans stay
		ref.Conv(v, floats(x), view(w), kept, spans.List, p)
		store(out, v)
		store(tail.Mat, kept)
	})
}

func (Device) Delta(s device.Stream, out, x, ba, decay, bias device.Mat, states device.KV, spans device.Spans, p device.DeltaNet) {
	later(s, func() {
		v, kept := floats(out), floats(states.Mat) // rows of other spans stay
		ref.Delta(v, floats(x), floats(ba), floats(decay), floats(bias), kept, spans.List, p)
		store(out, v)
		store(states.Mat, kept)
	})
}

func (Device) GatedNorm(s device.Stream, out, x, w device.Mat, eps float32, p device.DeltaNet) {
	later(s, func() {
		v := floats(out)
		ref.GatedNorm(v, floats(x), view(w), eps, p)
		store(out, v)
	})
}

func (Device) RouteTopK(s device.Stream, ids, weights, logits, bias, factors device.Mat, p device.Router) {
	later(s, func() {
		chosen, w := make([]int32, ids.Rows*ids.Cols), make([]float32, ids.Rows*ids.Cols)
		ref.RouteTopK(chosen, w, floats(logits), maybe(bias), maybe(factors), p)
		storeInts(ids, chosen)
		store(weights, w)
	})
}

// maybe is view of m, nil if it is absent.
func maybe(m device.Mat) []float32 {
	if m.Zero() {
		return nil
	}
	return view(m)
}

func extra(e device.Extra) ref.Extra {
	return ref.Extra{Act: e.Act, B13: maybe(e.B13), B2: maybe(e.B2)}
}

func wide(e device.Expert) ref.Expert {
	return ref.Expert{Gate: view(e.Gate), Up: view(e.Up), Down: view(e.Down), Extra: extra(e.Extra)}
}

func (Device) FFN(s device.Stream, out, x device.Mat, e device.Expert) {
	later(s, func() {
		v := make([]float32, out.Rows*out.Cols)
		ref.FFN(v, floats(x), wide(e), x.Cols)
		store(out, v)
	})
}

func (Device) Experts(s device.Stream, y, x device.Mat, bank []device.Expert, work []device.ExpertRows, topK int) {
	later(s, func() {
		experts := make([]ref.Expert, len(bank))
		for _, w := range work {
			experts[w.Expert] = wide(bank[w.Expert])
		}
		v := floats(y)
		ref.Experts(v, floats(x), experts, work, topK, x.Cols)
		store(y, v)
	})
}

func (Device) WeightedSum(s device.Stream, out, y, weights, base device.Mat) {
	later(s, func() {
		v := make([]float32, out.Rows*out.Cols)
		ref.WeightedSum(v, floats(y), floats(weights), maybe(base), weights.Cols, out.Cols)
		store(out, v)
	})
}
