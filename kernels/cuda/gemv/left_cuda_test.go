//go:build cuda

package gemv

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/route"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestChoiceLeft: a mixture that makes the router's choice itself has the bits of one that
// finds it made, and leaves the same ids, weights and logits.
func TestChoiceLeft(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(11, 5))
	turn := c.I32(make([]int32, route.TurnBytes/4), 1, route.TurnBytes/4).At
	int4, int8 := &cudatest.Layout{Bits: 4, Group: 128}, &cudatest.Layout{Bits: 8, Group: 128}
	bf16, channel := &cudatest.Layout{DType: tensor.BF16}, &cudatest.Layout{Bits: 8}
	for _, v := range []struct {
		routed, shared *cudatest.Layout
		hidden         int
		p              device.Router
		biased         bool
	}{
		{int4, int8, 1088, device.Router{Experts: 40, TopK: 6, Scale: 1}, false},
		{int4, int4, 320, device.Router{Experts: 64, TopK: 5, Normalize: true, Scale: 2}, false},
		{int4, bf16, 576, device.Router{Experts: 24, TopK: 4, Scoring: device.ScoreSigmoid, Groups: 4, TopGroups: 2, GroupScore: device.GroupTop2Sum, Normalize: true, Scale: 2.5}, true},
		{bf16, nil, 2112, device.Router{Experts: 8, TopK: 2, Groups: 4, TopGroups: 3, Scale: 1}, false},
		{channel, channel, 832, device.Router{Experts: 33, TopK: 3, Scoring: device.ScoreSigmoid, Scale: 1}, true},
	} {
		const width, shared = 128, 192
		e, k := v.p.Experts, v.p.TopK
		w13, w2 := c.RandomWeights(rng, joined(*v.routed), e, 2*width, v.hidden), c.RandomWeights(rng, *v.routed, e, v.hidden, width)
		bank := launch.Bank{Experts: e, W13: w13.Weight, W2: w2.Weight, Step: w13.Step, ScaleStep: w13.ScaleStep, Step2: w2.Step, ScaleStep2: w2.ScaleStep}
		var n Network
		size := 0
		if v.shared != nil {
			s13, s2 := c.RandomWeights(rng, joined(*v.shared), 1, 2*shared, v.hidden), c.RandomWeights(rng, *v.shared, 1, v.hidden, shared)
			n, size = Network{s13.Weight, s2.Weight}, shared
		}
		gate := c.F32(cudatest.Normal(rng, e*v.hidden), e, v.hidden)
		bias := launch.Mat{}
		if v.biased {
			bias = c.F32(cudatest.Normal(rng, e), 1, e)
		}
		norm := c.BF16(cudatest.Normal(rng, v.hidden), 1, v.hidden)
		for rows := 1; rows <= 3; rows++ {
			name := fmt.Sprintf("%+v and %+v, %+v, %d rows", v.routed, v.shared, v.p, rows)
			of := c.F32(cudatest.Normal(rng, rows*v.hidden), rows, v.hidden)
			in := c.BF16(cudatest.Normal(rng, rows*v.hidden), rows, v.hidden)
			scratch := c.Alloc(max(16, route.Scratch(rows, e, v.hidden)))
			memory, one := c.Alloc(MoEScratch(rows, k, v.hidden, width, size)), c.Alloc(16)
			type result struct {
				out, logits, weights []float32
				ids                  []int32
			}
			run := func(leave bool) result {
				x := c.Mat(tensor.BF16, rows, v.hidden)
				m := &Mixture{X: x, Bank: bank, Shared: n, IDs: c.Mat(tensor.I32, rows, k), Weights: c.Mat(tensor.F32, rows, k)}
				out, logits := c.Mat(tensor.F32, rows, v.hidden), c.Strided(tensor.F32, rows, e, e+3)
				c.Run(func(l *launch.List) {
					if rows <= route.MaxNormed {
						route.NormRoute(l, m.IDs, m.Weights, logits, x, of, norm, 1e-6, gate, bias, v.p, turn, scratch)
					} else {
						m.X = in
						route.Route(l, m.IDs, m.Weights, logits, in, gate, bias, v.p, 0, turn, scratch)
					}
					first := len(l.Ops) - 1
					if !leave {
						l.Fill(one, 1, 0)
					}
					MoE(l, h100, out, memory, m, Options{})
					if left := l.OpArgs(&l.Ops[first])[0] == launch.P(0); left != leave {
						t.Fatalf("%s: left %v, want %v", name, left, leave)
					}
				})
				return result{c.Floats(out), c.Floats(logits), c.Floats(m.Weights), cudatest.Download[int32](c, m.IDs.At, rows*k)}
			}
			a, b := run(false), run(true)
			if !slices.Equal(a.ids, b.ids) || !slices.Equal(a.weights, b.weights) {
				t.Errorf("%s: chose %v %v, want %v %v", name, b.ids, b.weights, a.ids, a.weights)
			}
			if !slices.Equal(a.logits, b.logits) {
				t.Errorf("%s: other logits", name)
			}
			if !slices.Equal(a.out, b.out) {
				t.Errorf("%s: other results", name)
			}
		}
	}
	if n := cudatest.Download[int32](c, turn, 1)[0]; n != 0 {
		t.Fatalf("the turn is %d", n)
	}
}
