// Package merge joins what the experts of a token computed.
package merge

import (
	"krater/kernels/device"
	"krater/stages"
)

// Ops are the operators the stage needs.
type Ops interface {
	WeightedSum(s device.Stream, out, y, weights, base device.Mat)
}

// Run writes st.Delta, the output of the MoE block: the sum over the ranks
// 0..K-1, in that order, of st.RouterWeights times st.ExpertOut, plus st.Shared.
// Whoever computed a row of ExpertOut, and when, does not change a bit of it.
func Run(s device.Stream, ops Ops, st *stages.State, layer int, probe stages.Probe) {
	if probe != nil {
		ops.WeightedSum(s, st.Delta, st.ExpertOut, st.RouterWeights, device.Mat{})
		probe.Observe(s, layer, "experts_out", st.Delta, st)
	}
	ops.WeightedSum(s, st.Delta, st.ExpertOut, st.RouterWeights, st.Shared)
	st.Pending = true
	if probe != nil {
		probe.Observe(s, layer, "mlp_out", st.Delta, st)
	}
}
