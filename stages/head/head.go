// Package head is the last stage of a step: hidden states to logits.
package head

import (
	"krater/kernels/device"
	"krater/stages"
)

// Ops are the operators the stage needs.
type Ops interface {
	GatherRows(s device.Stream, out, table, ids device.Mat)
	RMSNorm(s device.Stream, out, x, w device.Mat, eps float32)
	stages.Products
}

// chooser is a device that chooses tokens itself.
type chooser interface {
	ChangeLogits(s device.Stream, logits device.Mat, c *device.LogitChanges)
	Choose(s device.Stream, ids, logits, draws device.Mat)
}

// Stage holds the final norm and the output projection.
type Stage struct {
	Ops  Ops
	Norm device.Mat    // [1, H]
	Proj device.Weight // [V, H] lm_head, or the embedding table where they are tied
	Eps  float32       // rms_norm_eps
}

// fetch enqueues the copy of what the host wants of the step.
func fetch(s device.Stream, st *stages.State) {
	st.FetchMarks(s)
	if _, _, ok := st.Draws(); ok {
		st.FetchChosen(s)
		return
	}
	st.FetchLogits(s)
}

// Run writes st.Final and st.Logits for the rows of st.Wanted and, on devices
// whose memory the host cannot address, starts their copy: after s is
// synchronised st.LogitRow gives them. Where the batch has the device choose, only the
// chosen tokens are copied: st.ChosenID.
func (h *Stage) Run(s device.Stream, st *stages.State, probe stages.Probe) {
	if len(st.Wanted) == 0 {
		st.FetchMarks(s)
		return
	}
	if st.Repeated() {
		fetch(s, st)
		return
	}
	x := st.Hidden
	if len(st.Wanted) < st.T {
		h.Ops.GatherRows(s, st.Picked, st.Hidden, st.WantedRows)
		x = st.Picked
	}
	h.Ops.RMSNorm(s, st.Final, x, h.Norm, h.Eps)
	if probe != nil {
		probe.Observe(s, -1, "final_norm", st.Final, st)
	}
	st.Output.Changed()
	if f, ok := h.Ops.(stages.FormOps); ok {
		f.Generated(s, st.WantedGenerated())
	}
	st.Output.Mul(s, h.Ops, st.Logits, &h.Proj)
	if ids, draws, ok := st.Draws(); ok {
		c := h.Ops.(chooser)
		if changes, ok := st.LogitChanges(); ok {
			c.ChangeLogits(s, st.Logits, &changes)
		}
		c.Choose(s, ids, st.Logits, draws)
	}
	fetch(s, st)
}
