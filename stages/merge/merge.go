// Package merge joins what the experts of a token computed.
package merge

import (
	"krater/kernels/device"
	"krater/stages"
)

// Run appends that st.Delta is the output of the MoE block: the sum over the ranks
// 0..K-1, in that order, of st.RouterWeights times st.ExpertOut, plus shared unless that is absent.
// Which device computed a row of ExpertOut, and when, does not change a bit of it.
// Choices of experts that slots [1, E] has below 0 are left out; it may be absent.
// st.HostSum is added to st.Delta, and is absent afterwards.
func Run(p *stages.Program, st *stages.State, shared, slots device.Mat, layer int) {
	if p.Probed() {
		sum(p, st, device.Mat{}, slots)
		p.Observe(layer, "experts_out", st.Delta)
	}
	sum(p, st, shared, slots)
	st.HostSum = device.Mat{}
}

func sum(p *stages.Program, st *stages.State, base, slots device.Mat) {
	p.WeightedSum(st.Delta, st.ExpertOut, st.RouterWeights, base, st.RouterIDs, slots)
	if !st.HostSum.Zero() {
		p.Add(st.Delta, st.HostSum)
	}
}
