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

// clipped is the activation of gpt-oss.
var clipped = device.Activation{Alpha: 1.702, Limit: 7, Shift: 1}

// adorn gives the experts an activation and, but for GELU, biases.
func (r *rig) adorn(rng *rand.Rand, act device.Activation) {
	r.act = act
	r.bank.Extra = launch.Extra{Alpha: act.Alpha, Limit: act.Limit, Shift: act.Shift, Cubic: act.Cubic}
	if act == device.GELUTanh {
		return
	}
	n := 2*r.width + r.hidden
	r.biases = cudatest.Normal(rng, r.experts*n)
	all := r.c.F32(r.biases, 1, len(r.biases))
	r.bank.B13, r.bank.B2, r.bank.BiasStep = all.At, all.ColRange(2*r.width, n).At, int64(4*n)
}

// bias are the biases of an expert, nil without.
func (r *rig) bias(e int32) (b13, b2 []float32) {
	if r.biases == nil {
		return nil, nil
	}
	b := r.biases[int(e)*(2*r.width+r.hidden):][:2*r.width+r.hidden]
	return b[:2*r.width], b[2*r.width:]
}

// TestBiasedExperts: biases and the activation of gpt-oss, and GELU without biases.
func TestBiasedExperts(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(6, 2))
	n := 0
	for _, k := range layouts {
		for _, v := range runnable(c) {
			m := []mixture{{7, 3, 8, 256, 256, spread(8)}, {33, 1, 3, 256, 384, one}, {1, 2, 4, 320, 256, spread(4)}}[n%3]
			n++
			for _, act := range []device.Activation{clipped, device.GELUTanh} {
				both := k.Group > 0 && v != A64
				if act == clipped && !both || both && testing.Short() && (act == clipped) == (n%2 == 0) {
					continue
				}
				t.Run(fmt.Sprintf("%+v/%v/%+v", k, v, act), func(t *testing.T) { testExperts(t, c, rng, k, v, m, n%2 == 0, false, act) })
			}
		}
	}
}
