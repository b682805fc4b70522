package device

import "fmt"

// Operators are the operators that the CPU computes, one method for each: see Kind for what they
// do. A device with these methods leaves the choice of the method to Op.On.
type Operators interface {
	GatherRows(s Stream, out, table, ids Mat)
	RMSNorm(s Stream, out, x, w Mat, eps float32)
	LayerNorm(s Stream, out, x, w, b Mat, eps float32)
	Add(s Stream, x, delta Mat)
	AddBias(s Stream, x, b Mat)
	QuantizeRows(s Stream, out QRows, x Mat)
	MatMul(s Stream, out, x, w Mat)
	MatMulQ(s Stream, out Mat, x QRows, w QMat)
	HeadNorm(s Stream, x Mat, heads int, w Mat, eps float32)
	Rope(s Stream, x, positions, table Mat, p Rope)
	StoreRows(s Stream, cache KV, src, slots Mat)
	CopyRows(s Stream, dst, src Mat)
	Sigmoid(s Stream, x Mat, p Sigmoid)
	MixWeights(s Stream, out, x, base, scale Mat, p StreamMix)
	Collapse(s Stream, out, x, weights Mat)
	Spread(s Stream, out, x, weights, base Mat)
	StreamGates(s Stream, out, x, y Mat)
	NGrams(s Stream, out, rows, ids Mat, shards []Mat, tail KV, spans Spans, p NGrams)
	TapConv(s Stream, out, x, w Mat, tail KV, spans Spans, p TapConv)
	SelectBlocks(s Stream, chosen, q Mat, keys KV, norm, table Mat, spans Spans, p BlockIndex)
	SparseGQA(s Stream, out, q Mat, cache KV, chosen Mat, spans Spans, p GQA)
	MLAPrefill(s Stream, out, q Mat, cache KV, kvB KVB, spans Spans, p MLA)
	MLADecode(s Stream, out, q Mat, cache KV, kvB KVB, spans Spans, p MLA)
	PoolKeys(s Stream, out, x, bias Mat, tail KV, spans Spans, p Index)
	Select(s Stream, chosen, q, weights Mat, keys KV, spans Spans, p Index)
	SparseMLA(s Stream, out, q Mat, cache KV, kvB KVB, chosen Mat, spans Spans, p MLA)
	GQA(s Stream, out, q Mat, cache KV, sinks Mat, spans Spans, p GQA)
	Compress(s Stream, entries KV, spans Spans, near KV, nearSpans Spans, norm, ape, table Mat, p Compress)
	Compressed(s Stream, out, q Mat, entries KV, spans Spans, near KV, nearSpans Spans, chosen, sinks Mat, p Compressed)
	RouteByToken(s Stream, ids, weights, logits, tokens, table Mat, p Router)
	RouteTopK(s Stream, ids, weights, logits, bias, factors Mat, p Router)
	FFN(s Stream, out, x Mat, e Expert)
	FFNQ(s Stream, out Mat, x QRows, e QExpert)
	Experts(s Stream, y, x Mat, bank []Expert, work []ExpertRows, topK int)
	ExpertsQ(s Stream, y Mat, x QRows, bank []QExpert, work []ExpertRows, topK int)
	Gate(s Stream, out, x Mat)
	Activate(s Stream, x, up Mat, act Activation)
	Scale(s Stream, x Mat, factor float32)
	Softcap(s Stream, x Mat, limit float32)
	Conv(s Stream, out, x, w Mat, tail KV, spans Spans, p DeltaNet)
	Delta(s Stream, out, x, ba, decay, bias Mat, states KV, spans Spans, p DeltaNet)
	GatedNorm(s Stream, out, x, w Mat, eps float32, p DeltaNet)
	GateRows(s Stream, out, x, w Mat)
	WeightedSum(s Stream, out, y, weights, base Mat)
}

// RunEach computes the operators of l one by one with those of d: Run of a device that fuses nothing.
func RunEach(d Operators, s Stream, l List) {
	for i := range l.Ops {
		o := l.Ops[i] // d may keep pointers to it
		o.On(d, s)
	}
}

// On computes o with the operator of d.
func (o *Op) On(d Operators, s Stream) {
	switch o.Kind {
	case OpGatherRows:
		d.GatherRows(s, o.Out, o.W, o.A)
	case OpRMSNorm:
		d.RMSNorm(s, o.Out, o.X, o.W, o.Eps)
	case OpLayerNorm:
		d.LayerNorm(s, o.Out, o.X, o.W, o.B, o.Eps)
	case OpAdd:
		d.Add(s, o.Out, o.X)
	case OpAddBias:
		d.AddBias(s, o.Out, o.W)
	case OpQuantizeRows:
		d.QuantizeRows(s, o.Q, o.X)
	case OpHeadNorm:
		d.HeadNorm(s, o.Out, o.Heads, o.W, o.Eps)
	case OpRope:
		d.Rope(s, o.Out, o.A, o.W, *o.Rope)
	case OpStoreRows:
		d.StoreRows(s, o.KV, o.X, o.A)
	case OpCopyRows:
		d.CopyRows(s, o.Out, o.X)
	case OpPoolKeys:
		d.PoolKeys(s, o.Out, o.X, o.W, o.KV, o.Spans, *o.Index)
	case OpSelect:
		d.Select(s, o.Out, o.X, o.A, o.KV, o.Spans, *o.Index)
	case OpSparseMLA:
		d.SparseMLA(s, o.Out, o.X, o.KV, *o.KVB, o.A, o.Spans, *o.MLA)
	case OpGQA:
		d.GQA(s, o.Out, o.X, o.KV, o.W, o.Spans, *o.GQA)
	case OpRouteTopK:
		d.RouteTopK(s, o.Out, o.A, o.X, o.W, o.B, *o.Router)
	case OpRouteByToken:
		d.RouteByToken(s, o.Out, o.A, o.X, o.B, o.W, *o.Router)
	case OpGate:
		d.Gate(s, o.Out, o.X)
	case OpActivate:
		d.Activate(s, o.Out, o.X, o.Act)
	case OpScale:
		d.Scale(s, o.Out, o.Factor)
	case OpSoftcap:
		d.Softcap(s, o.Out, o.Factor)
	case OpConv:
		d.Conv(s, o.Out, o.X, o.W, o.KV, o.Spans, *o.Delta)
	case OpDelta:
		d.Delta(s, o.Out, o.X, o.A, o.W, o.B, o.KV, o.Spans, *o.Delta)
	case OpGatedNorm:
		d.GatedNorm(s, o.Out, o.X, o.W, o.Eps, *o.Delta)
	case OpGateRows:
		d.GateRows(s, o.Out, o.X, o.W)
	case OpWeightedSum:
		d.WeightedSum(s, o.Out, o.X, o.A, o.W)
	case OpSigmoid, OpMixWeights, OpCollapse, OpSpread, OpStreamGates, OpNGrams, OpTapConv, OpSelectBlocks, OpSparseGQA, OpCompress, OpCompressed:
		o.streams(d, s)
	case OpMatMul, OpFFN, OpExperts, OpMLA:
		o.weighed(d, s)
	default:
		panic(&ShapeError{Op: o.Kind.String(), Why: fmt.Sprintf("%s has no such operator", s.Device().Name())})
	}
}

// streams is On for operators of models with several residual streams.
func (o *Op) streams(d Operators, s Stream) {
	switch o.Kind {
	case OpSigmoid:
		d.Sigmoid(s, o.Out, o.Sigmoid)
	case OpMixWeights:
		d.MixWeights(s, o.Out, o.X, o.W, o.A, o.Mix)
	case OpCollapse:
		d.Collapse(s, o.Out, o.X, o.A)
	case OpSpread:
		d.Spread(s, o.Out, o.X, o.A, o.W)
	case OpStreamGates:
		d.StreamGates(s, o.Out, o.X, o.A)
	case OpNGrams:
		d.NGrams(s, o.Out, o.B, o.A, o.Shards, o.KV, o.Spans, *o.NGrams)
	case OpTapConv:
		d.TapConv(s, o.Out, o.X, o.W, o.KV, o.Spans, *o.Taps)
	case OpSelectBlocks:
		d.SelectBlocks(s, o.Out, o.X, o.KV, o.W, o.A, o.Spans, *o.Blocks)
	case OpSparseGQA:
		d.SparseGQA(s, o.Out, o.X, o.KV, o.A, o.Spans, *o.GQA)
	case OpCompress:
		d.Compress(s, o.KV, o.Spans, o.Near.KV, o.Near.Spans, o.W, o.A, o.B, *o.Compress)
	case OpCompressed:
		d.Compressed(s, o.Out, o.X, o.KV, o.Spans, o.Near.KV, o.Near.Spans, o.A, o.W, *o.Compressed)
	}
}

// weighed is On for operators whose weights may be floats or integers, or that differ for prompts
// and generated rows.
func (o *Op) weighed(d Operators, s Stream) {
	e := &o.Experts
	switch {
	case o.Kind == OpMatMul && o.Weight.Integer():
		d.MatMulQ(s, o.Out, o.Q, o.Weight.Q)
	case o.Kind == OpMatMul:
		d.MatMul(s, o.Out, o.X, o.Weight.F)
	case o.Kind == OpFFN && o.FFN.Integer():
		d.FFNQ(s, o.Out, o.Q, o.FFN.Q)
	case o.Kind == OpFFN:
		d.FFN(s, o.Out, o.X, o.FFN.F)
	case o.Kind == OpExperts && len(e.Q) > 0:
		d.ExpertsQ(s, o.Out, o.Q, e.Q, e.Work, e.TopK)
	case o.Kind == OpExperts:
		d.Experts(s, o.Out, o.X, e.F, e.Work, e.TopK)
	case o.Spans.Decode:
		d.MLADecode(s, o.Out, o.X, o.KV, *o.KVB, o.Spans, *o.MLA)
	default:
		d.MLAPrefill(s, o.Out, o.X, o.KV, *o.KVB, o.Spans, *o.MLA)
	}
}
