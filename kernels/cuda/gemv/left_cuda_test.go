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

// leftCase is a mixture behind a router.
type leftCase struct {
	routed, shared *cudatest.Layout
	hidden         int
	p              device.Router
	biased         bool
}

// TestChoiceLeft: a mixture that makes the router's choice itself has the bits of one that
// finds it made, and leaves the same ids, weights and logits.
func TestChoiceLeft(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(11, 5))
	turn := c.I32(make([]int32, route.TurnBytes/4), 1, route.TurnBytes/4).At
	int4, int8 := &cudatest.Layout{Bits: 4, Group: 128}, &cudatest.Layout{Bits: 8, Group: 128}
	bf16, channel := &cudatest.Layout{DType: tensor.BF16}, &cudatest.Layout{Bits: 8}
	for _, v := range []leftCase{
		{int4, int8, 1152, device.Router{Experts: 40, TopK: 6, Scale: 1}, false}, // whole units: shared blocks norm the rows
		{int4, int4, 320, device.Router{Experts: 64, TopK: 5, Normalize: true, Scale: 2}, false},
		{int4, bf16, 576, device.Router{Experts: 24, TopK: 4, Scoring: device.ScoreSigmoid, Groups: 4, TopGroups: 2, GroupScore: device.GroupTop2Sum, Normalize: true, Scale: 2.5}, true},
		{bf16, nil, 2112, device.Router{Experts: 8, TopK: 2, Groups: 4, TopGroups: 3, Scale: 1}, false},
		{channel, channel, 832, device.Router{Experts: 33, TopK: 3, Scoring: device.ScoreSigmoid, Scale: 1}, true},
	} {
		m := newLeftMixture(c, rng, v, turn)
		for rows := 1; rows <= 3; rows++ {
			name := fmt.Sprintf("%+v and %+v, %+v, %d rows", v.routed, v.shared, v.p, rows)
			m.in(rng, rows)
			a, b := m.run(t, name, false), m.run(t, name, true)
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

// leftMixture is the weights of a case and, after in, rows of input.
type leftMixture struct {
	leftCase
	c                        *cudatest.GPU
	bank                     launch.Bank
	n                        Network
	gate, bias, norm         launch.Mat
	normed, plain            launch.Mat // inputs: of NormRoute and of Route
	turn, scratch, room, one launch.Ptr
}

const leftWidth, leftShared = 128, 192

func newLeftMixture(c *cudatest.GPU, rng *rand.Rand, v leftCase, turn launch.Ptr) *leftMixture {
	e := v.p.Experts
	w13, w2 := c.RandomWeights(rng, joined(*v.routed), e, 2*leftWidth, v.hidden), c.RandomWeights(rng, *v.routed, e, v.hidden, leftWidth)
	m := &leftMixture{leftCase: v, c: c, turn: turn, one: c.Alloc(16),
		bank: launch.Bank{Experts: e, W13: w13.Weight, W2: w2.Weight, Step: w13.Step, ScaleStep: w13.ScaleStep, Step2: w2.Step, ScaleStep2: w2.ScaleStep}}
	if v.shared != nil {
		m.n = Network{c.RandomWeights(rng, joined(*v.shared), 1, 2*leftShared, v.hidden).Weight, c.RandomWeights(rng, *v.shared, 1, v.hidden, leftShared).Weight}
	}
	m.gate = c.F32(cudatest.Normal(rng, e*v.hidden), e, v.hidden)
	if v.biased {
		m.bias = c.F32(cudatest.Normal(rng, e), 1, e)
	}
	m.norm = c.BF16(cudatest.Normal(rng, v.hidden), 1, v.hidden)
	return m
}

// in makes rows of input.
func (m *leftMixture) in(rng *rand.Rand, rows int) {
	shared := 0
	if m.shared != nil {
		shared = leftShared
	}
	m.normed = m.c.F32(cudatest.Normal(rng, rows*m.hidden), rows, m.hidden)
	m.plain = m.c.BF16(cudatest.Normal(rng, rows*m.hidden), rows, m.hidden)
	m.scratch = m.c.Alloc(max(16, route.Scratch(rows, m.p.Experts, m.hidden)))
	m.room = m.c.Alloc(MoEScratch(rows, m.p.TopK, m.hidden, leftWidth, shared))
}

type leftResult struct {
	out, logits, weights []float32
	ids                  []int32
}

// run computes the rows. Another launch between router and mixture keeps the choice with the router.
func (m *leftMixture) run(t *testing.T, name string, leave bool) leftResult {
	t.Helper()
	c, rows, e, k := m.c, m.plain.Rows, m.p.Experts, m.p.TopK
	x := &Mixture{X: c.Mat(tensor.BF16, rows, m.hidden), Bank: m.bank, Shared: m.n, IDs: c.Mat(tensor.I32, rows, k), Weights: c.Mat(tensor.F32, rows, k)}
	out, logits := c.Mat(tensor.F32, rows, m.hidden), c.Strided(tensor.F32, rows, e, e+3)
	c.Run(func(l *launch.List) {
		if rows <= route.MaxNormed {
			route.NormRoute(l, x.IDs, x.Weights, logits, x.X, m.normed, m.norm, 1e-6, launch.Weight{F: m.gate}, m.bias, m.p, m.turn, m.scratch)
		} else {
			x.X = m.plain
			route.Route(l, x.IDs, x.Weights, logits, m.plain, launch.Weight{F: m.gate}, m.bias, m.p, 0, m.turn, m.scratch)
		}
		first := len(l.Ops) - 1
		if !leave {
			l.Fill(m.one, 1, 0)
		}
		MoE(l, h100, out, m.room, x, Options{})
		if left := l.OpArgs(&l.Ops[first])[0] == launch.P(0); left != leave {
			t.Fatalf("%s: left %v, want %v", name, left, leave)
		}
	})
	return leftResult{c.Floats(out), c.Floats(logits), c.Floats(x.Weights), cudatest.Download[int32](c, x.IDs.At, rows*k)}
}
