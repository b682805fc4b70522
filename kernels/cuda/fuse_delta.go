//go:build cuda

package cuda

import (
	"krater/kernels/cuda/ops"
	"krater/kernels/device"
)

// isMatMulPair finds two products of the same rows, of which the second follows the first in memory: a matrix of integers, and one of
// a few rows that is not.
func isMatMulPair(d *Device, l device.List) int {
	if !kinds(l, device.OpMatMul, device.OpMatMul) || !d.adds(l.Ops[0].Out.Rows, l.Generated) {
		return 0
	}
	one, two := &l.Ops[0], &l.Ops[1]
	behind := one.Out
	behind.Off += one.Out.Cols * one.Out.DType.Size()
	behind.Cols = two.Out.Cols
	if one.X != two.X || two.Out != behind || one.Weight.Q.Zero() || two.Weight.F.Zero() {
		return 0
	}
	return 2
}

func addMatMulPair(b *ops.Builder, o []device.Op) {
	out := mat(o[0].Out)
	out.Cols += o[1].Out.Cols
	b.MatMulPair(out, mat(o[0].X), weight(o[0].Weight), weight(o[1].Weight))
}

// isDeltaStep finds the convolution and the rule of gated DeltaNet for a batch that has generated rows only.
func isDeltaStep(_ *Device, l device.List) int {
	if !kinds(l, device.OpConv, device.OpDelta) {
		return 0
	}
	conv, rule := &l.Ops[0], &l.Ops[1]
	if !conv.Spans.Decode || !rule.Spans.Decode || rule.X != conv.Out || *rule.Delta != *conv.Delta || !unread(l.From(2), conv.Out) {
		return 0
	}
	return 2
}

func addDeltaStep(b *ops.Builder, o []device.Op) {
	conv, rule := &o[0], &o[1]
	b.DeltaStep(mat(rule.Out), mat(conv.Out), mat(conv.X), mat(conv.W), kv(&conv.KV), mat(rule.A), mat(rule.W), mat(rule.B), kv(&rule.KV),
		rule.Spans.List, mat(rule.Spans.Table), *rule.Delta)
}
