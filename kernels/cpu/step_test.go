package cpu_test

import (
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

// step is one layer of a small model: every operator once, in the order of a forward pass. The tests
// of allocation and overhead run it.
type step struct {
	d *cpu.Device
	s device.Stream

	table, ids, positions, slots         device.Mat
	x, normed, q, kv, att, delta, out, y device.Mat
	normW, qW, kvW, kvB, oW, routerW     device.Mat
	angles, cache, bias                  device.Mat
	logits, expertIDs, weights           device.Mat
	bank                                 []device.Expert
	shared                               device.Expert
	work                                 []device.ExpertRows
	spans                                []device.Span
	p                                    device.MLA
}

const (
	stepHidden = 256
	stepTopK   = 4
)

func newStep(d *cpu.Device, s device.Stream) *step {
	seed := uint64(0)
	bf16 := func(rows, cols int) device.Mat {
		seed++
		m, _ := floats(d, tensor.BF16, kerneltest.Normal(kerneltest.Rand(seed), rows*cols, 0.06), rows, cols)
		return m
	}
	zeros := func(rows, cols int) device.Mat { return f32s(d, make([]float32, rows*cols), rows, cols) }
	p := device.MLA{Heads: 8, Nope: 32, Rope: 16, V: 32, Rank: 64, Scale: 0.144, BlockTokens: 16}
	c := &step{d: d, s: s, p: p,
		table: bf16(100, stepHidden), ids: wrap(d, tensor.I32, []int32{42}, 1, 1),
		positions: wrap(d, tensor.I32, []int32{20}, 1, 1), slots: wrap(d, tensor.I32, []int32{20}, 1, 1),
		x: zeros(1, stepHidden), normed: zeros(1, stepHidden), q: zeros(1, 384), kv: zeros(1, 80), att: zeros(1, 256),
		delta: zeros(1, stepHidden), out: zeros(1, stepHidden), y: zeros(stepTopK, stepHidden),
		normW: bf16(1, stepHidden), qW: bf16(384, stepHidden), kvW: bf16(80, stepHidden), kvB: bf16(512, 64),
		oW: bf16(stepHidden, 256), routerW: bf16(32, stepHidden),
		angles: f32s(d, kerneltest.Normal(kerneltest.Rand(99), 64*16, 1), 64, 16), cache: bf16(64, 80), bias: bf16(1, 80),
		logits: zeros(1, 32), expertIDs: wrap(d, tensor.I32, make([]int32, stepTopK), 1, stepTopK), weights: zeros(1, stepTopK),
		spans: []device.Span{{Row: 0, Len: 1, Pos: 20, Blocks: []int32{0, 1, 2, 3}}},
	}
	for i := range 8 {
		e, _ := newExpert(d, uint64(i), stepHidden, 64, tensor.BF16, tensor.BF16)
		c.bank = append(c.bank, e)
	}
	c.shared, _ = newExpert(d, 100, stepHidden, 128, tensor.BF16, tensor.BF16)
	c.work = assignments(1, 1, stepTopK, len(c.bank))
	return c
}

func (c *step) run() {
	d, s := c.d, c.s
	d.GatherRows(s, c.x, c.table, c.ids)
	d.RMSNorm(s, c.normed, c.x, c.normW, 1e-6)
	d.MatMul(s, c.q, c.normed, c.qW)
	d.MatMul(s, c.kv, c.normed, c.kvW)
	d.RMSNorm(s, c.kv.ColRange(0, 64), c.kv.ColRange(0, 64), c.normW.ColRange(0, 64), 1e-6)
	d.Rope(s, c.q, c.positions, c.angles, device.Rope{Heads: 8, HeadDim: 48, Offset: 32, Dim: 16, Interleaved: true})
	d.Rope(s, c.kv, c.positions, c.angles, device.Rope{Heads: 1, HeadDim: 80, Offset: 64, Dim: 16, Interleaved: true})
	d.StoreRows(s, device.KV{Mat: c.cache}, c.kv, c.slots)
	d.MLADecode(s, c.att, c.q, device.KV{Mat: c.cache}, device.KVB{F: c.kvB}, device.Spans{List: c.spans}, c.p)
	d.MLAPrefill(s, c.att, c.q, device.KV{Mat: c.cache}, device.KVB{F: c.kvB}, device.Spans{List: c.spans}, c.p)
	d.AddBias(s, c.kv, c.bias)
	d.GQA(s, c.att.ColRange(0, 160), c.q.ColRange(0, 160), device.KV{Mat: c.cache}, device.Mat{}, device.Spans{List: c.spans}, device.GQA{Heads: 8, KVHeads: 2, HeadDim: 20, Scale: 0.2, BlockTokens: 16})
	d.MatMul(s, c.delta, c.att, c.oW)
	d.AddRMSNorm(s, c.normed, c.x, c.delta, c.normW, 1e-6)
	d.MatMul(s, c.logits, c.normed, c.routerW)
	d.RouteTopK(s, c.expertIDs, c.weights, c.logits, device.Mat{}, device.Mat{}, device.Router{Experts: 32, TopK: stepTopK, Scale: 1})
	d.FFN(s, c.out, c.normed, c.shared)
	d.Experts(s, c.y, c.normed, c.bank, c.work, stepTopK)
	d.WeightedSum(s, c.out, c.y, c.weights, c.out)
	d.Add(s, c.x, c.out)
}

func BenchmarkStep(b *testing.B) {
	d, s := open(b, cpu.Options{Threads: 1})
	step := newStep(d, s)
	b.Run("layer", func(b *testing.B) {
		b.ReportAllocs()
		kerneltest.Report(b, kerneltest.Quartile(b, 1, step.run), 0, 0)
	})
	// Time of a call that has next to nothing to compute: checks, dispatch, one or two kernel
	// calls.
	one := f32s(d, make([]float32, 16), 1, 16)
	weights := f32s(d, make([]float32, 16*8), 8, 16)
	eight := f32s(d, make([]float32, 8), 1, 8)
	for name, f := range map[string]func(){
		"add":     func() { d.Add(s, one, one) },
		"rmsnorm": func() { d.RMSNorm(s, one, one, one, 1e-6) },
		"matmul":  func() { d.MatMul(s, eight, one, weights) },
		"rope":    func() { d.Rope(s, one, c0(d), one, device.Rope{Heads: 1, HeadDim: 16, Dim: 16}) },
	} {
		b.Run(name, func(b *testing.B) {
			ns := kerneltest.Quartile(b, 64, func() {
				for range 64 {
					f()
				}
			})
			kerneltest.Report(b, ns, 0, 0)
		})
	}
}

var zeroPosition device.Mat

// c0 returns a position of zero.
func c0(d *cpu.Device) device.Mat {
	if zeroPosition.Zero() {
		zeroPosition = wrap(d, tensor.I32, []int32{0}, 1, 1)
	}
	return zeroPosition
}
