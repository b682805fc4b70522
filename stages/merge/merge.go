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

// partOps are of a device that leaves rows out of a sum.
type partOps interface {
	// WeightedSumOf is WeightedSum of the choices ids [T, K] whose expert is somewhere: not
	// below 0 in where [1, E] I32.
	WeightedSumOf(s device.Stream, out, y, weights, base, ids, where device.Mat)
}

// Run writes st.Delta, the output of the MoE block: the sum over the ranks
// 0..K-1, in that order, of st.RouterWeights times st.ExpertOut, plus st.Shared.
// Whoever computed a row of ExpertOut, and when, does not change a bit of it.
func Run(s device.Stream, ops Ops, st *stages.State, layer int, probe stages.Probe) {
	if probe != nil {
		sum(s, ops, st, device.Mat{})
		probe.Observe(s, layer, "experts_out", st.Delta, st)
	}
	sum(s, ops, st, st.Shared)
	st.Pending = true
	if probe != nil {
		probe.Observe(s, layer, "mlp_out", st.Delta, st)
	}
}

func sum(s device.Stream, ops Ops, st *stages.State, base device.Mat) {
	if !st.Where.Zero() {
		ops.(partOps).WeightedSumOf(s, st.Delta, st.ExpertOut, st.RouterWeights, base, st.RouterIDs, st.Where)
		return
	}
	ops.WeightedSum(s, st.Delta, st.ExpertOut, st.RouterWeights, base)
}
