//go:build cuda

package cuda

import (
	"fmt"

	"krater/kernels/cuda/compressed"
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/hostcall"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/link"
	"krater/kernels/cuda/ops"
	"krater/kernels/cuda/sample"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// stream returns the GPU's stream of s, which must be this device's.
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
		if err == nil { // else the stream reports it
			d.profile(op, took)
		}
		return
	}
	f(own)
}

// single makes a list of one operator.
func (d *Device) single(k device.Kind) func(b *ops.Builder, o []device.Op) {
	switch k {
	case device.OpPickExperts:
		return func(b *ops.Builder, l []device.Op) {
			o := &l[0]
			link.Pick(b.List, mat(o.Out), mat(o.B), mat(o.C), mat(o.A), mat(o.X), mat(o.W))
		}
	case device.OpBringExperts:
		return func(b *ops.Builder, l []device.Op) {
			o := &l[0]
			link.Bring(b.List, mat(o.Out), mat(o.X), mat(o.A), mat(o.B), mat(o.C))
		}
	case device.OpAskHost:
		return func(b *ops.Builder, l []device.Op) {
			o := &l[0]
			hostcall.Post(b.List, d.box(k.String(), o.Calls), mat(o.X), mat(o.A), mat(o.B), mat(o.C))
		}
	case device.OpTakeAnswer:
		return func(b *ops.Builder, l []device.Op) {
			o := &l[0]
			if box := d.box(k.String(), o.Calls); o.A.Zero() {
				hostcall.Take(b.List, box, mat(o.Out))
			} else {
				hostcall.TakeRows(b.List, box, mat(o.Out), mat(o.A), mat(o.C))
			}
		}
	}
	return addSingle
}

// addStreams appends an operator on residual streams, or on a table of n-grams.
func addStreams(b *ops.Builder, o *device.Op) {
	switch o.Kind {
	case device.OpSigmoid:
		b.Sigmoid(mat(o.Out), o.Sigmoid, launch.Mat{}, device.Sigmoid{})
	case device.OpCollapse:
		b.Collapse(mat(o.Out), mat(o.X), mat(o.A))
	case device.OpSpread:
		b.Spread(mat(o.Out), mat(o.X), mat(o.A), mat(o.W))
	case device.OpStreamGates:
		b.StreamGates(mat(o.Out), mat(o.X), mat(o.A))
	case device.OpNGrams:
		if len(o.Shards) != 1 {
			refuse("NGrams", fmt.Sprintf("a table of %d shards", len(o.Shards)))
		}
		if !o.Out.Zero() { // the table does not have to be read ahead
			b.NGrams(mat(o.Out), mat(o.B), mat(o.A), mat(o.Shards[0]), mat(o.W), kv(&o.KV), o.Spans.List, mat(o.Spans.Table), o.Spans.Decode, o.NGrams)
		}
	default:
		b.TapConv(mat(o.Out), mat(o.X), mat(o.W), kv(&o.KV), o.Spans.List, mat(o.Spans.Table), o.Spans.Decode, *o.Taps)
	}
}

func addSingle(b *ops.Builder, l []device.Op) {
	switch o := &l[0]; o.Kind {
	case device.OpGatherRows:
		b.GatherRows(mat(o.Out), mat(o.W), mat(o.A))
	case device.OpRMSNorm:
		b.RMSNorm(mat(o.Out), mat(o.X), mat(o.W), o.Eps)
	case device.OpAdd:
		b.Add(mat(o.Out), mat(o.X))
	case device.OpAddBias:
		b.AddBias(mat(o.Out), mat(o.W))
	case device.OpMatMul:
		b.MatMul(mat(o.Out), mat(o.X), weight(o.Weight))
	case device.OpHeadNorm:
		b.HeadNorm(mat(o.Out), o.Heads, mat(o.W), o.Eps)
	case device.OpRope:
		b.Rope(mat(o.Out), mat(o.A), mat(o.W), *o.Rope)
	case device.OpStoreRows:
		b.StoreRows(kv(&o.KV), mat(o.X), mat(o.A))
	case device.OpCopyRows:
		if o.Out.DType != o.X.DType || o.Out.Rows != o.X.Rows || o.Out.Cols != o.X.Cols {
			refuse("CopyRows", fmt.Sprintf("%s to %s", o.X, o.Out))
		}
		b.CopyRows(mat(o.Out), mat(o.X))
	case device.OpMLA, device.OpLayerNorm, device.OpPoolKeys, device.OpSelect, device.OpSparseMLA:
		addMLA(b, o)
	case device.OpMixWeights:
		b.MixWeights(mat(o.Out), mat(o.X), mat(o.W), mat(o.A), o.Mix)
	case device.OpGQA, device.OpSelectBlocks, device.OpSparseGQA:
		addGQA(b, o)
	case device.OpRouteTopK:
		b.TopK(mat(o.Out), mat(o.A), mat(o.X), mat(o.W), *o.Router)
		b.WeighChosen(mat(o.Out), mat(o.A), mat(o.B))
	case device.OpCompress, device.OpCompressed, device.OpRouteByToken:
		addCompressed(b, o)
	case device.OpFFN:
		b.FFN(mat(o.Out), mat(o.X), network(o.FFN))
	case device.OpExpertsOn:
		b.Experts(mat(o.Out), mat(o.X), bank(o.Bank), mat(o.A))
	case device.OpConv:
		b.Conv(mat(o.Out), mat(o.X), mat(o.W), kv(&o.KV), o.Spans.List, mat(o.Spans.Table), o.Spans.Decode, *o.Delta)
	case device.OpDelta:
		b.Delta(mat(o.Out), mat(o.X), mat(o.A), mat(o.W), mat(o.B), kv(&o.KV), o.Spans.List, mat(o.Spans.Table), o.Spans.Decode, *o.Delta)
	case device.OpGatedNorm:
		b.GatedNorm(mat(o.Out), mat(o.X), mat(o.W), o.Eps, *o.Delta)
	case device.OpGateRows:
		b.GateRows(mat(o.Out), mat(o.X), mat(o.W))
	case device.OpWeightedSum:
		if !o.C.Zero() {
			b.WeightedSumOf(mat(o.Out), mat(o.X), mat(o.A), mat(o.W), mat(o.B), mat(o.C))
			return
		}
		b.WeightedSum(mat(o.Out), mat(o.X), mat(o.A), mat(o.W))
	case device.OpChangeLogits:
		c := o.Changes
		b.ChangeLogits(mat(o.Out), &sample.Changes{Rows: mat(c.Draws).At, Table: mat(c.Table), IDs: mat(c.IDs),
			Wanted: mat(c.Rows), Store: mat(c.Store), Masks: mat(c.Masks), Limit: c.Limit})
	case device.OpChoose:
		b.Choose(mat(o.Out), mat(o.X), mat(o.A))
	case device.OpGate, device.OpActivate, device.OpScale, device.OpSoftcap:
		addMap(b, o)
	case device.OpSigmoid, device.OpCollapse, device.OpSpread, device.OpStreamGates, device.OpNGrams, device.OpTapConv:
		addStreams(b, o)
	case device.OpQuantizeRows:
		refuse(o.Kind.String(), "rows of integers are the processor's")
	default:
		refuse(o.Kind.String(), "work lists are the host's: a GPU's experts lie in a bank")
	}
}

// addMap appends an operator on single elements.
func addMap(b *ops.Builder, o *device.Op) {
	switch o.Kind {
	case device.OpGate:
		b.Gate(mat(o.Out), mat(o.X))
	case device.OpActivate:
		b.Activate(mat(o.Out), mat(o.X), activation(o.Act))
	case device.OpScale:
		b.Scale(mat(o.Out), o.Factor)
	case device.OpSoftcap:
		b.Softcap(mat(o.Out), o.Factor)
	}
}

// addGQA appends an operator of grouped-query attention or of its index.
func addGQA(b *ops.Builder, o *device.Op) {
	switch o.Kind {
	case device.OpGQA:
		b.GQA(mat(o.Out), mat(o.X), kv(&o.KV), mat(o.W), o.Spans.List, mat(o.Spans.Table), o.Spans.Decode, *o.GQA)
	case device.OpSelectBlocks:
		b.SelectBlocks(mat(o.Out), mat(o.X), kv(&o.KV), mat(o.W), mat(o.A), o.Spans.List, mat(o.Spans.Table), o.Spans.Decode, *o.Blocks)
	default:
		b.SparseGQA(mat(o.Out), mat(o.X), kv(&o.KV), mat(o.A), o.Spans.List, mat(o.Spans.Table), o.Spans.Decode, *o.GQA)
	}
}

// addMLA appends an operator of latent attention or of its indexer.
func addMLA(b *ops.Builder, o *device.Op) {
	switch o.Kind {
	case device.OpMLA:
		attend := b.MLAPrefill
		if o.Spans.Decode {
			attend = b.MLADecode
		}
		attend(mat(o.Out), mat(o.X), kv(&o.KV), kvB(o.KVB), o.Spans.List, mat(o.Spans.Table), *o.MLA)
	case device.OpLayerNorm:
		b.LayerNorm(mat(o.Out), mat(o.X), mat(o.W), mat(o.B), o.Eps)
	case device.OpPoolKeys:
		b.PoolKeys(mat(o.Out), mat(o.X), mat(o.W), kv(&o.KV), o.Spans.List, mat(o.Spans.Table), o.Spans.Decode, *o.Index)
	case device.OpSelect:
		b.Select(mat(o.Out), mat(o.X), mat(o.A), kv(&o.KV), o.Spans.List, mat(o.Spans.Table), o.Spans.Decode, *o.Index)
	default:
		b.SparseMLA(mat(o.Out), mat(o.X), kv(&o.KV), kvB(o.KVB), mat(o.A), o.Spans.List, mat(o.Spans.Table), o.Spans.Decode, *o.MLA)
	}
}

// addCompressed appends an operator of DeepSeek-V4.
func addCompressed(b *ops.Builder, o *device.Op) {
	switch o.Kind {
	case device.OpCompress:
		b.Compress(kv(&o.KV), mat(o.Spans.Table), kv(&o.Near.KV), mat(o.Near.Spans.Table), mat(o.W), mat(o.A), mat(o.B), o.Spans.List, o.Spans.Decode, *o.Compress)
	case device.OpCompressed:
		c := compressed.Caches{Near: kv(&o.Near.KV), Entries: kv(&o.KV), NearTable: mat(o.Near.Spans.Table), Table: mat(o.Spans.Table)}
		b.Compressed(mat(o.Out), mat(o.X), c, mat(o.A), mat(o.W), o.Spans.List, o.Spans.Decode, *o.Compressed)
	default:
		b.RouteByToken(mat(o.Out), mat(o.A), mat(o.X), mat(o.B), mat(o.W), *o.Router)
	}
}

// MoveBlocks copies blocks of KV caches to pinned host memory or back with one kernel.
func (d *Device) MoveBlocks(s device.Stream, m *device.BlockMoves) (ok bool) {
	own := d.stream("MoveBlocks", s)
	own.parts = own.parts[:0]
	for _, p := range m.Parts {
		at, mapped := d.gpu.Mapped(p.Host)
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

// blockTable returns GPU memory for a table of that many bytes. The tables of a stream are used
// in its order.
func (s *Stream) blockTable(n int) launch.Ptr {
	if s.blocks == nil || s.blocks.size < n {
		if s.blocks != nil {
			if err := s.s.Synchronize(); err != nil { // the old one may be in use
				return s.blocks.at // the stream runs nothing any more
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

// blockTableBytes suffices for 64 layers and some 1,500 blocks.
const blockTableBytes = 16 << 10

func refuse(op, why string) { panic(&device.ShapeError{Op: op, Why: why}) }

// tiles converts a matrix of tiles for the kernels.
func tiles(t *device.QMat) launch.Tiles {
	if t.Zero() {
		return launch.Tiles{}
	}
	if t.For != tensor.GPU {
		refuse("cuda", fmt.Sprintf("%s [%d, %d] is packed for a %s", t.Format, t.Rows, t.Cols, t.For))
	}
	at := func(b device.Buffer, off, n int) launch.Ptr {
		own, ok := b.(*buffer)
		if !ok || off < 0 || off+n > own.size {
			refuse("cuda", fmt.Sprintf("tiles [%d, %d] are not within a buffer of a GPU", t.Rows, t.Cols))
		}
		return own.at + launch.Ptr(off)
	}
	return launch.Tiles{Layout: t.Layout, Values: at(t.Values, t.ValueAt, t.ValueBytes()), Scales: at(t.Scales, t.ScaleAt, t.ScaleBytes())}
}

func weight(w *device.Weight) launch.Weight {
	return launch.Weight{F: mat(w.F), A: tiles(&w.Q)}
}

func kvB(w *device.KVB) launch.Weight {
	if w.Integer() {
		refuse("MLA", "kv_b is packed")
	}
	return launch.Weight{F: mat(w.F)}
}

func bank(b *device.Bank) launch.Bank {
	step := int64(b.Step)
	m := mat(b.Map)
	if !m.Zero() && (m.DType != tensor.I32 || m.Rows != 1 || m.Cols != b.Experts) {
		refuse("cuda", fmt.Sprintf("a bank of %d experts has the map %v", b.Experts, m))
	}
	return launch.Bank{Experts: b.Experts, W13: weight(&b.W13), W2: weight(&b.W2), Step: step, ScaleStep: step, Step2: step, ScaleStep2: step, Map: m.At, Coming: mat(b.Coming).At, Extra: extra(b, step)}
}

// extra converts the biases and the activation of a bank.
func extra(b *device.Bank, step int64) launch.Extra {
	bias := func(m device.Mat, cols int) launch.Ptr {
		if !m.Zero() && (m.DType != tensor.F32 || m.Rows != 1 || m.Cols != cols) {
			refuse("cuda", fmt.Sprintf("a bias %v, want F32 [1, %d]", m, cols))
		}
		return mat(m).At
	}
	w13, w2 := weight(&b.W13), weight(&b.W2)
	x := activation(b.Act)
	x.B13, x.B2 = bias(b.B13, w13.Rows()), bias(b.B2, w2.Rows())
	if x.B13 != 0 || x.B2 != 0 {
		x.BiasStep = step
	}
	return x
}

func activation(a device.Activation) launch.Extra {
	return launch.Extra{Alpha: a.Alpha, Limit: a.Limit, Shift: a.Shift, Cubic: a.Cubic}
}

// unbiased returns the activation of a network, and refuses biases.
func unbiased(e *device.Extra) launch.Extra {
	if *e != (device.Extra{Act: e.Act}) {
		refuse("FFN", "biases are not supported")
	}
	return activation(e.Act)
}

func network(n *device.FFN) ops.Network {
	if n.F.Gate.Zero() {
		return ops.Network{W13: launch.Weight{A: tiles(&n.Q.W13)}, W2: launch.Weight{A: tiles(&n.Q.W2)}, Extra: unbiased(&n.Q.Extra)}
	}
	gate, up := mat(n.F.Gate), mat(n.F.Up)
	if !gate.Dense() || !up.Dense() || gate.DType != up.DType || up.At != gate.RowRange(gate.Rows, gate.Rows).At {
		refuse("FFN", "up does not follow gate in memory")
	}
	gate.Rows += up.Rows
	return ops.Network{W13: launch.Weight{F: gate}, W2: launch.Weight{F: mat(n.F.Down)}, Extra: unbiased(&n.F.Extra)}
}

// far reports whether a buffer lies in host memory.
func far(b device.Buffer) bool {
	own, ok := b.(*buffer)
	return ok && own.host != nil
}

func kv(c *device.KV) launch.KV {
	return launch.KV{Mat: mat(c.Mat), Scales: mat(c.Scales), Group: c.Group, Marks: mat(c.Marks), Mark: int(c.Mark), Far: far(c.Buf)}
}
