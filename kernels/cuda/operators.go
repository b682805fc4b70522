//go:build cuda

package cuda

import (
	"fmt"

	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/ops"
	"krater/kernels/cuda/sample"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// stream is the card's stream behind s, which must be this device's.
func (d *Device) stream(op string, s device.Stream) *Stream {
	own, ok := s.(*Stream)
	if !ok || own.dev != d {
		panic(&device.ShapeError{Op: op, Why: "a stream of another device"})
	}
	if own.copies {
		panic(&device.ShapeError{Op: op, Why: "a stream for copies"})
	}
	return own
}

// do appends an operator's launches.
func (d *Device) do(op string, s device.Stream, f func(s *Stream)) {
	own := d.stream(op, s)
	own.s.Begin()
	if d.profile != nil {
		took, err := own.s.Timed(func() { f(own) })
		if err == nil { // else the stream tells
			d.profile(op, took)
		}
		return
	}
	f(own)
}

// GatherRows is out[i] = table[ids[i]].
func (d *Device) GatherRows(s device.Stream, out, table, ids device.Mat) {
	d.do("GatherRows", s, func(s *Stream) { s.ops.GatherRows(mat(out), mat(table), mat(ids)) })
}

// RMSNorm is out = x / sqrt(mean(x^2) + eps) * w.
func (d *Device) RMSNorm(s device.Stream, out, x, w device.Mat, eps float32) {
	d.do("RMSNorm", s, func(s *Stream) { s.ops.RMSNorm(mat(out), mat(x), mat(w), eps) })
}

// AddRMSNorm is x += delta; out = RMSNorm(x).
func (d *Device) AddRMSNorm(s device.Stream, out, x, delta, w device.Mat, eps float32) {
	d.do("AddRMSNorm", s, func(s *Stream) { s.ops.AddRMSNorm(mat(out), mat(x), mat(delta), mat(w), eps) })
}

// Add is x += delta.
func (d *Device) Add(s device.Stream, x, delta device.Mat) {
	d.do("Add", s, func(s *Stream) { s.ops.Add(mat(x), mat(delta)) })
}

// AddBias is x += b in every row.
func (d *Device) AddBias(s device.Stream, x, b device.Mat) {
	d.do("AddBias", s, func(s *Stream) { s.ops.AddBias(mat(x), mat(b)) })
}

// MatMul is out = x * w^T for plain rows w.
func (d *Device) MatMul(s device.Stream, out, x, w device.Mat) {
	d.do("MatMul", s, func(s *Stream) { s.ops.MatMul(mat(out), mat(x), launch.Weight{F: mat(w)}) })
}

// MatMulT is MatMul for tiles.
func (d *Device) MatMulT(s device.Stream, out, x device.Mat, w device.Tiles) {
	d.do("MatMulT", s, func(s *Stream) { s.ops.MatMul(mat(out), mat(x), launch.Weight{A: tiles(&w)}) })
}

// Generated says how many of the rows to come are generated ones (stages.FormOps).
func (d *Device) Generated(s device.Stream, rows int) { d.stream("Generated", s).ops.Generated = rows }

// Adds: few rows (stages.AddProducts), or, where bits must not hang on their number, any of
// which some are generated.
func (d *Device) Adds(s device.Stream, rows int) bool {
	if d.F32 {
		return false
	}
	return rows <= ops.AddRows || d.invariant && d.stream("Adds", s).ops.Generated > 0
}

// AddMatMul is x += in * w^T.
func (d *Device) AddMatMul(s device.Stream, x, delta, in device.Mat, w *device.Weight) {
	d.do("AddMatMul", s, func(s *Stream) { s.ops.AddMatMul(mat(x), mat(delta), mat(in), weight(w)) })
}

// Norms: very few rows (stages.NormProducts).
func (d *Device) Norms(rows int) bool { return !d.F32 && rows <= ops.NormRows }

// NormMatMul is out = RMSNorm(x) * w^T.
func (d *Device) NormMatMul(s device.Stream, out, in, x, norm device.Mat, eps float32, w *device.Weight) {
	d.do("NormMatMul", s, func(s *Stream) { s.ops.NormMatMul(mat(out), mat(in), mat(x), mat(norm), eps, weight(w)) })
}

// FFN is one network of plain rows for all rows.
func (d *Device) FFN(s device.Stream, out, x device.Mat, e device.Expert) {
	d.do("FFN", s, func(s *Stream) {
		s.ops.FFN(mat(out), mat(x), network(&device.FFN{F: e}))
	})
}

// FFNT is one network in tiles for all rows.
func (d *Device) FFNT(s device.Stream, out, x device.Mat, e device.TExpert) {
	d.do("FFNT", s, func(s *Stream) {
		s.ops.FFN(mat(out), mat(x), network(&device.FFN{T: e}))
	})
}

// AddFFN is x += the network's result for in.
func (d *Device) AddFFN(s device.Stream, x, delta, in device.Mat, n *device.FFN) {
	d.do("AddFFN", s, func(s *Stream) { s.ops.AddFFN(mat(x), mat(delta), mat(in), network(n)) })
}

// ExpertsOn is a row of y for every choice of ids.
func (d *Device) ExpertsOn(s device.Stream, y, x device.Mat, b *device.Bank, ids device.Mat) {
	d.do("ExpertsOn", s, func(s *Stream) { s.ops.Experts(mat(y), mat(x), bank(b), mat(ids)) })
}

// Mix is a whole MoE block from the router's choice on (group.MixOps).
func (d *Device) Mix(s device.Stream, delta, y, shared, x device.Mat, b *device.Bank, n *device.FFN, ids, weights device.Mat) {
	d.do("Mix", s, func(s *Stream) {
		s.ops.Mix(mat(delta), mat(y), mat(shared), mat(x), bank(b), network(n), mat(ids), mat(weights))
	})
}

// AddMix is Mix added to hidden.
func (d *Device) AddMix(s device.Stream, hidden, delta, y, shared, x device.Mat, b *device.Bank, n *device.FFN, ids, weights device.Mat) {
	d.do("AddMix", s, func(s *Stream) {
		s.ops.AddMix(mat(hidden), mat(delta), mat(y), mat(shared), mat(x), bank(b), network(n), mat(ids), mat(weights))
	})
}

// NormRoute is Route of x = RMSNorm(of).
func (d *Device) NormRoute(s device.Stream, ids, weights, logits, x, of, norm device.Mat, eps float32, gate, bias device.Mat, p device.Router) {
	d.do("NormRoute", s, func(s *Stream) {
		s.ops.NormRoute(mat(ids), mat(weights), mat(logits), mat(x), mat(of), mat(norm), eps, mat(gate), mat(bias), p)
	})
}

// Route is router logits and the choice of experts.
func (d *Device) Route(s device.Stream, ids, weights, logits, x, gate, bias device.Mat, p device.Router) {
	d.do("Route", s, func(s *Stream) {
		s.ops.Route(mat(ids), mat(weights), mat(logits), mat(x), mat(gate), mat(bias), p)
	})
}

// RouteTopK chooses experts.
func (d *Device) RouteTopK(s device.Stream, ids, weights, logits, bias device.Mat, p device.Router) {
	d.do("RouteTopK", s, func(s *Stream) { s.ops.TopK(mat(ids), mat(weights), mat(logits), mat(bias), p) })
}

// WeightedSum is out[t] = the sum over k of weights[t, k] * y[t*K+k], plus base[t].
func (d *Device) WeightedSum(s device.Stream, out, y, weights, base device.Mat) {
	d.do("WeightedSum", s, func(s *Stream) { s.ops.WeightedSum(mat(out), mat(y), mat(weights), mat(base)) })
}

// WeightedSumOf is WeightedSum of the choices ids whose expert where has somewhere.
func (d *Device) WeightedSumOf(s device.Stream, out, y, weights, base, ids, where device.Mat) {
	d.do("WeightedSumOf", s, func(s *Stream) { s.ops.WeightedSumOf(mat(out), mat(y), mat(weights), mat(base), mat(ids), mat(where)) })
}

// ChangeLogits does penalties, biases and masks in place.
func (d *Device) ChangeLogits(s device.Stream, logits device.Mat, c *device.LogitChanges) {
	d.do("ChangeLogits", s, func(s *Stream) {
		s.ops.ChangeLogits(mat(logits), &sample.Changes{Rows: mat(c.Draws).At, Table: mat(c.Table), IDs: mat(c.IDs),
			Wanted: mat(c.Rows), Store: mat(c.Store), Masks: mat(c.Masks)})
	})
}

// Choose picks a token a row.
func (d *Device) Choose(s device.Stream, ids, logits, draws device.Mat) {
	d.do("Choose", s, func(s *Stream) { s.ops.Choose(mat(ids), mat(logits), mat(draws)) })
}

// Rope rotates x in place.
func (d *Device) Rope(s device.Stream, x, positions, table device.Mat, p device.Rope) {
	d.do("Rope", s, func(s *Stream) { s.ops.Rope(mat(x), mat(positions), mat(table), p) })
}

// CopyRows is dst = src.
func (d *Device) CopyRows(s device.Stream, dst, src device.Mat) {
	if dst.DType != src.DType || dst.Rows != src.Rows || dst.Cols != src.Cols {
		panic(&device.ShapeError{Op: "CopyRows", Why: fmt.Sprintf("%s to %s", src, dst)})
	}
	d.do("CopyRows", s, func(s *Stream) { s.ops.CopyRows(mat(dst), mat(src)) })
}

// MoveBlocks copies blocks of KV caches to pinned host memory or back with one kernel
// (device.BlockMover).
func (d *Device) MoveBlocks(s device.Stream, m *device.BlockMoves) (ok bool) {
	own := d.stream("MoveBlocks", s)
	own.parts = own.parts[:0]
	for _, p := range m.Parts {
		at, mapped := d.card.Mapped(p.Host)
		if !mapped {
			return false
		}
		own.parts = append(own.parts, elem.BlockPart{Cache: mat(p.Cache).At, Host: at, Bytes: p.Bytes})
	}
	d.do("MoveBlocks", s, func(s *Stream) {
		s.table = elem.BlockTable(s.table[:0], s.parts, m.From, m.To)
		s.s.CopyIn(s.blockTable(len(s.table)), s.table)
		elem.MoveBlocks(&s.s.List, s.blocks.at, len(s.parts), len(m.From), m.Save)
	})
	return true
}

// blockTable is room of the card for a table of so many bytes. Tables of a stream follow one
// another in its order.
func (s *Stream) blockTable(n int) launch.Ptr {
	if s.blocks == nil || s.blocks.size < n {
		if s.blocks != nil {
			if err := s.s.Synchronize(); err != nil { // the old one may be in use
				return s.blocks.at // nothing will run any more
			}
			s.blocks.Free()
		}
		b, err := s.dev.alloc(max(n, blockTableBytes), true)
		if err != nil {
			panic(fmt.Errorf("table of KV blocks: %w", err))
		}
		s.blocks = b
	}
	return s.blocks.at
}

// blockTableBytes is room for 64 layers and some 1,500 blocks.
const blockTableBytes = 16 << 10

// StoreRows writes rows of a cache.
func (d *Device) StoreRows(s device.Stream, cache device.KV, src, slots device.Mat) {
	d.do("StoreRows", s, func(s *Stream) { s.ops.StoreRows(kv(&cache), mat(src), mat(slots)) })
}

// Latent is norm, rotation and storing of latent attention in one go (attention.LatentOps).
func (d *Device) Latent(s device.Stream, cache device.KV, q, latent, norm device.Mat, eps float32, positions, slots, table device.Mat, qRope, kRope device.Rope) {
	d.do("Latent", s, func(s *Stream) {
		s.ops.Latent(kv(&cache), mat(q), mat(latent), mat(norm), eps, mat(positions), mat(slots), mat(table), qRope, kRope)
	})
}

// LatentDecode is Latent and MLADecode in one go (attention.LatentOps).
func (d *Device) LatentDecode(s device.Stream, out, q, latent, norm device.Mat, eps float32, cache device.KV, positions, slots, table device.Mat,
	qRope, kRope device.Rope, kvB device.KVB, in device.Spans, p device.MLA) {
	d.do("LatentDecode", s, func(s *Stream) {
		s.ops.LatentDecode(mat(out), mat(q), mat(latent), mat(norm), eps, kv(&cache), mat(positions), mat(slots), mat(table), qRope, kRope,
			launch.Weight{F: mat(kvB.F)}, in.List, mat(in.Table), p)
	})
}

// MLAPrefill is latent attention of prompts.
func (d *Device) MLAPrefill(s device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, in device.Spans, p device.MLA) {
	d.do("MLAPrefill", s, func(s *Stream) {
		s.ops.MLAPrefill(mat(out), mat(q), kv(&cache), launch.Weight{F: mat(kvB.F)}, in.List, mat(in.Table), p)
	})
}

// MLADecode is latent attention of generated rows.
func (d *Device) MLADecode(s device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, in device.Spans, p device.MLA) {
	d.do("MLADecode", s, func(s *Stream) {
		s.ops.MLADecode(mat(out), mat(q), kv(&cache), launch.Weight{F: mat(kvB.F)}, in.List, mat(in.Table), p)
	})
}

// HeadNorm is RMSNorm over each of the heads of x in place.
func (d *Device) HeadNorm(s device.Stream, x device.Mat, heads int, w device.Mat, eps float32) {
	d.do("HeadNorm", s, func(s *Stream) { s.ops.HeadNorm(mat(x), heads, mat(w), eps) })
}

// HeadStore is HeadNorm of queries and keys, where there are norms, Rope of both, and StoreRows
// of kv, in one go.
func (d *Device) HeadStore(s device.Stream, cache device.KV, q, rows, qNorm, kNorm device.Mat, eps float32, positions, slots, table device.Mat, qRope, kRope device.Rope) {
	d.do("HeadStore", s, func(s *Stream) {
		s.ops.HeadStore(kv(&cache), mat(q), mat(rows), mat(qNorm), mat(kNorm), eps, mat(positions), mat(slots), mat(table), qRope, kRope)
	})
}

// GQA is grouped-query attention.
func (d *Device) GQA(s device.Stream, out, q device.Mat, cache device.KV, in device.Spans, p device.GQA) {
	d.do("GQA", s, func(s *Stream) { s.ops.GQA(mat(out), mat(q), kv(&cache), in.List, mat(in.Table), in.Decode, p) })
}

// Operators on the host's own formats, which no weight on a card is kept in.

// QuantizeRows makes rows for MatMulQ.
func (d *Device) QuantizeRows(device.Stream, device.QRows, device.Mat) {
	refuse("QuantizeRows", foreign)
}

// MatMulQ multiplies with format B.
func (d *Device) MatMulQ(device.Stream, device.Mat, device.QRows, device.QMat) {
	refuse("MatMulQ", foreign)
}

// FFNQ is a network in format B.
func (d *Device) FFNQ(device.Stream, device.Mat, device.QRows, device.QExpert) {
	refuse("FFNQ", foreign)
}

// Experts are networks of a work list.
func (d *Device) Experts(device.Stream, device.Mat, device.Mat, []device.Expert, []device.ExpertRows, int) {
	refuse("Experts", "work lists of the host: a card's experts lie in a bank")
}

// ExpertsQ are networks in format B.
func (d *Device) ExpertsQ(device.Stream, device.Mat, device.QRows, []device.QExpert, []device.ExpertRows, int) {
	refuse("ExpertsQ", foreign)
}

const foreign = "format B is the processor's"

func refuse(op, why string) { panic(&device.ShapeError{Op: op, Why: why}) }

// tiles is a matrix of tiles as the kernels take it.
func tiles(t *device.Tiles) launch.Tiles {
	if t.Zero() {
		return launch.Tiles{}
	}
	at := func(b device.Buffer, off, n int) launch.Ptr {
		own, ok := b.(*buffer)
		if !ok || off < 0 || off+n > own.size {
			refuse("cuda", fmt.Sprintf("tiles [%d, %d] are not within a buffer of a card", t.Rows, t.Cols))
		}
		return own.at + launch.Ptr(off)
	}
	return launch.Tiles{FormatA: t.FormatA, Values: at(t.Values, t.ValueAt, t.ValueBytes()), Scales: at(t.Scales, t.ScaleAt, t.ScaleBytes())}
}

func weight(w *device.Weight) launch.Weight {
	return launch.Weight{F: mat(w.F), A: tiles(&w.T)}
}

func bank(b *device.Bank) launch.Bank {
	step := int64(b.Step)
	m := mat(b.Map)
	if !m.Zero() && (m.DType != tensor.I32 || m.Rows != 1 || m.Cols != b.Experts) {
		refuse("cuda", fmt.Sprintf("a bank of %d experts has the map %v", b.Experts, m))
	}
	return launch.Bank{Experts: b.Experts, W13: weight(&b.W13), W2: weight(&b.W2), Step: step, ScaleStep: step, Step2: step, ScaleStep2: step, Map: m.At}
}

func network(n *device.FFN) ops.Network {
	if n.F.Gate.Zero() {
		return ops.Network{W13: launch.Weight{A: tiles(&n.T.W13)}, W2: launch.Weight{A: tiles(&n.T.W2)}}
	}
	gate, up := mat(n.F.Gate), mat(n.F.Up)
	if !gate.Dense() || !up.Dense() || gate.DType != up.DType || up.At != gate.RowRange(gate.Rows, gate.Rows).At {
		refuse("FFN", "up does not follow gate in memory")
	}
	gate.Rows += up.Rows
	return ops.Network{W13: launch.Weight{F: gate}, W2: launch.Weight{F: mat(n.F.Down)}}
}

func kv(c *device.KV) launch.KV {
	return launch.KV{Mat: mat(c.Mat), Scales: mat(c.Scales), Group: c.Group, Marks: mat(c.Marks), Mark: int(c.Mark)}
}
