// Package head is the last stage of a step: hidden states to logits.
package head

import (
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/streams"
)

// Stage holds the final norm and the output projection.
type Stage struct {
	Dev  device.Device
	Norm streams.Block // the final norm, or what makes several streams one row
	Proj device.Weight // [V, H] lm_head, or the embedding table where they are tied
	// Softcap c makes c * tanh(x / c) of each logit x; 0: none.
	Softcap float32
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
// chosen tokens are copied: st.ChosenID. The device waits for masks that come later (st.GiveMask).
func (h *Stage) Run(s device.Stream, st *stages.State, probe stages.Probe) {
	if len(st.Wanted) == 0 {
		st.FetchMarks(s)
		return
	}
	if st.Repeated() {
		fetch(s, st)
		return
	}
	p := st.On(h.Dev, s, probe)
	x := st.Hidden
	if len(st.Wanted) < st.T {
		p.GatherRows(st.Picked, st.Hidden, st.WantedRows)
		x = st.Picked
	}
	h.Norm.Enter(p, st.Final, x, st.MixWanted(), -1, "")
	p.Observe(-1, "final_norm", st.Final)
	p.Generated = st.WantedGenerated()
	st.Output.Prepare(&p.List, &h.Proj)
	st.Output.Mul(&p.List, st.Logits, &h.Proj)
	if h.Softcap > 0 {
		p.Observe(-1, "logits_before_softcap", st.Logits)
		p.Softcap(st.Logits, h.Softcap)
	}
	choose(p, st)
	p.Send()
	fetch(s, st)
}

// choose appends the choice of tokens, if the device makes it.
func choose(p *stages.Program, st *stages.State) {
	ids, draws, ok := st.Draws()
	if !ok {
		return
	}
	if changes, ok := st.LogitChanges(); ok {
		p.ChangeLogits(st.Logits, changes)
	}
	p.Choose(ids, st.Logits, draws)
}
