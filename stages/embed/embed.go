// Package embed is the first stage of a step: token ids to hidden states.
package embed

import (
	"krater/kernels/device"
	"krater/stages"
)

// Ops are the operators the stage needs.
type Ops interface {
	GatherRows(s device.Stream, out, table, ids device.Mat)
}

// Stage looks up embeddings.
type Stage struct {
	Ops   Ops
	Table device.Mat // [V, H] BF16 or F32
}

// Run writes st.Hidden from st.IDs.
func (e *Stage) Run(s device.Stream, st *stages.State, probe stages.Probe) {
	if st.Repeated() {
		return
	}
	e.Ops.GatherRows(s, st.Hidden, e.Table, st.IDs)
	if probe != nil {
		probe.Observe(s, -1, "embed", st.Hidden, st)
	}
}
