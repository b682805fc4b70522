// Package expert holds the experts of a layer, the split of a batch by expert
// and the division of that work among pools.
package expert

import (
	"krater/kernels/device"
	"krater/stages"
)

// Ops are the operators the stage needs.
type Ops interface {
	FFN(s device.Stream, out, x device.Mat, e device.Expert)
	Experts(s device.Stream, y, x device.Mat, bank []device.Expert, work []device.ExpertRows, topK int)
}

// Bank holds the experts of one layer.
type Bank struct {
	Routed []device.Expert // [E]
	Shared device.Expert   // all shared experts as one network, F = n_shared * moe_intermediate_size; zero: none
}

// Run computes the rows of st.ExpertOut that work lists, from st.Normed. It may
// run on several streams at once with work lists that share no assignment.
func (b *Bank) Run(s device.Stream, ops Ops, st *stages.State, work []device.ExpertRows) {
	if len(work) > 0 {
		ops.Experts(s, st.ExpertOut, st.Normed, b.Routed, work, st.RouterIDs.Cols)
	}
}

// RunShared writes st.Shared from st.Normed; without shared experts it does
// nothing.
func (b *Bank) RunShared(s device.Stream, ops Ops, st *stages.State, layer int, probe stages.Probe) {
	if b.Shared.Gate.Zero() {
		return
	}
	ops.FFN(s, st.Shared, st.Normed, b.Shared)
	if probe != nil {
		probe.Observe(s, layer, "shared_out", st.Shared, st)
	}
}
