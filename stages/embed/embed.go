// Package embed is the first stage of a step: token ids to hidden states.
package embed

import (
	"krater/kernels/device"
	"krater/stages"
)

// Stage looks up embeddings.
type Stage struct {
	Dev   device.Device
	Table device.Mat // [V, H] BF16 or F32
}

// Run writes st.Hidden from st.IDs.
func (e *Stage) Run(s device.Stream, st *stages.State, probe stages.Probe) {
	if st.Repeated() {
		return
	}
	p := st.On(e.Dev, s, probe)
	p.GatherRows(st.Hidden, e.Table, st.IDs)
	p.Observe(-1, "embed", st.Hidden)
	p.Send()
}
