// Package merge joins what the experts of a token computed.
package merge

import (
	"krater/kernels/device"
	"krater/stages"
)

// Run appends that st.Delta is the output of the MoE block: the sum over the ranks
// 0..K-1, in that order, of st.RouterWeights times st.ExpertOut, plus st.Shared.
// Which device computed a row of ExpertOut, and when, does not change a bit of it.
// Choices of experts that where [1, E] has below 0 are left out; it may be absent.
func Run(p *stages.Program, st *stages.State, slots device.Mat, layer int) {
	if p.Probed() {
		p.WeightedSum(st.Delta, st.ExpertOut, st.RouterWeights, device.Mat{}, st.RouterIDs, slots)
		p.Observe(layer, "experts_out", st.Delta)
	}
	p.WeightedSum(st.Delta, st.ExpertOut, st.RouterWeights, st.Shared, st.RouterIDs, slots)
	p.Observe(layer, "mlp_out", st.Delta)
}
