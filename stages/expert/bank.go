// Package expert holds the experts of a layer, the split of a batch by expert
// and the division of that work among pools.
package expert

import (
	"krater/kernels/device"
	"krater/stages"
)

// Ops are the operators the stage needs.
type Ops interface {
	stages.Products
	FFN(s device.Stream, out, x device.Mat, e device.Expert)
	FFNQ(s device.Stream, out device.Mat, x device.QRows, e device.QExpert)
	Experts(s device.Stream, y, x device.Mat, bank []device.Expert, work []device.ExpertRows, topK int)
	ExpertsQ(s device.Stream, y device.Mat, x device.QRows, bank []device.QExpert, work []device.ExpertRows, topK int)
}

// Bank holds the experts of one layer.
type Bank struct {
	Routed   []device.Expert  // [E]
	Integers []device.QExpert // [E] instead of Routed
	Here     device.Bank      // instead of both: where the device finds experts by itself
	Away     int              // instead of all: the number of experts, whose place somebody else knows
	Shared   device.FFN       // all shared experts as one network, F = n_shared * moe_intermediate_size; zero: none
}

// Len is the number of routed experts.
func (b *Bank) Len() int { return max(len(b.Routed), len(b.Integers), b.Here.Experts, b.Away) }

// Resident reports whether the device finds the experts by itself.
func (b *Bank) Resident() bool { return !b.Here.Zero() }

// ExpertBytes is what a pass over one routed expert reads.
func (b *Bank) ExpertBytes() int {
	switch {
	case len(b.Integers) > 0:
		return b.Integers[0].Bytes()
	case len(b.Routed) > 0:
		return b.Routed[0].Bytes()
	case b.Resident():
		return b.Here.ExpertBytes()
	}
	return 0
}

// Prepare makes what Run and RunShared take from st and would otherwise make,
// several streams at once. It belongs to the stream that routed.
func (b *Bank) Prepare(s device.Stream, ops Ops, st *stages.State) {
	if len(b.Integers) > 0 || b.Shared.Integer() {
		st.Input.Quantized(s, ops)
	}
}

// Run computes the rows of st.ExpertOut that work lists, from st.Input. It may
// run on several streams at once with work lists that share no assignment, once
// they have passed Prepare.
func (b *Bank) Run(s device.Stream, ops Ops, st *stages.State, work []device.ExpertRows) {
	switch {
	case len(work) == 0:
	case len(b.Integers) > 0:
		ops.ExpertsQ(s, st.ExpertOut, st.Input.Quantized(s, ops), b.Integers, work, st.RouterIDs.Cols)
	default:
		ops.Experts(s, st.ExpertOut, st.Normed, b.Routed, work, st.RouterIDs.Cols)
	}
}

// HereOps are of a device that finds experts by itself.
type HereOps interface {
	ExpertsOn(s device.Stream, y, x device.Mat, b *device.Bank, ids device.Mat)
}

// RunOn computes every row of st.ExpertOut that the router chose and whose expert here has.
func RunOn(s device.Stream, ops Ops, st *stages.State, here *device.Bank) {
	ops.(HereOps).ExpertsOn(s, st.ExpertOut, st.Normed, here, st.RouterIDs)
}

// tileOps are of a device whose integers are tiles.
type tileOps interface {
	FFNT(s device.Stream, out, x device.Mat, e device.TExpert)
}

// FFN is out = the network's result for st.Input.
func FFN(s device.Stream, ops Ops, out device.Mat, st *stages.State, n *device.FFN) {
	if n.Integer() {
		ops.FFNQ(s, out, st.Input.Quantized(s, ops), n.Q)
		return
	}
	if !n.T.W13.Zero() {
		ops.(tileOps).FFNT(s, out, st.Normed, n.T)
		return
	}
	ops.FFN(s, out, st.Normed, n.F)
}

// addOps are of a device that adds to the residual stream where it computes.
type addOps interface {
	stages.AddProducts
	// AddFFN is x [T, H] F32 += the network's result for in; delta [T, H] is room for it.
	AddFFN(s device.Stream, x, delta, in device.Mat, n *device.FFN)
}

// AddFFN adds the network's result for st.Input to the residual stream: at once, or as the
// pending Delta, which a probe always finds there.
func AddFFN(s device.Stream, ops Ops, st *stages.State, n *device.FFN, probe stages.Probe) {
	if a, ok := ops.(addOps); ok && probe == nil && a.Adds(s, st.T) {
		a.AddFFN(s, st.Hidden, st.Delta, st.Normed, n)
		return
	}
	FFN(s, ops, st.Delta, st, n)
	st.Pending = true
}

// RunShared writes st.Shared from st.Input; without shared experts it does
// nothing. Beside Run on other streams it too must have passed Prepare.
func (b *Bank) RunShared(s device.Stream, ops Ops, st *stages.State, layer int, probe stages.Probe) {
	if b.Shared.Zero() {
		return
	}
	FFN(s, ops, st.Shared, st, &b.Shared)
	if probe != nil {
		probe.Observe(s, layer, "shared_out", st.Shared, st)
	}
}
