//go:build cuda

package moe

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
)

// adorn gives the experts biases and the activation of gpt-oss.
func (r *rig) adorn(rng *rand.Rand) {
	n := 2*r.width + r.hidden
	r.biases, r.act = cudatest.Normal(rng, r.experts*n), device.Activation{Alpha: 1.702, Limit: 7, Shift: 1}
	all := r.c.F32(r.biases, 1, len(r.biases))
	r.bank.Extra = launch.Extra{B13: all.At, B2: all.ColRange(2*r.width, n).At, BiasStep: int64(4 * n), Alpha: 1.702, Limit: 7, Shift: 1}
}

// bias are the biases of an expert, nil without.
func (r *rig) bias(e int32) (b13, b2 []float32) {
	if r.biases == nil {
		return nil, nil
	}
	b := r.biases[int(e)*(2*r.width+r.hidden):][:2*r.width+r.hidden]
	return b[:2*r.width], b[2*r.width:]
}

// TestBiasedExperts: biases and the activation of gpt-oss.
func TestBiasedExperts(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(6, 2))
	n := 0
	for _, k := range layouts {
		for _, v := range runnable(c) {
			if k.Group == 0 || v == A64 {
				continue
			}
			m := []mixture{{7, 3, 8, 256, 256, spread(8)}, {33, 1, 3, 256, 384, one}, {1, 2, 4, 320, 256, spread(4)}}[n%3]
			n++
			t.Run(fmt.Sprintf("%+v/%v", k, v), func(t *testing.T) { testExperts(t, c, rng, k, v, m, n%2 == 0, false, true) })
		}
	}
}
