package embed

import (
	"krater/kernels/device"
	"krater/stages"
)

// Join is the first stage of a draft layer (model.Draft): the embedding of a token and the hidden state
// of the token before it become one row. One step at a time may use it.
type Join struct {
	Dev                   device.Device
	Table                 device.Mat // [V, H] BF16 or F32
	EmbedNorm, HiddenNorm device.Mat // [1, H]
	Proj                  device.Weight
	Eps                   float32    // rms_norm_eps
	Both                  device.Mat // [Limits.Tokens, 2H] F32, memory for the rows that Proj [H, 2H] takes
}

// Run writes st.Hidden from st.IDs and hidden [T, H]: row t has the values that the model's head multiplied for
// the token before st.IDs[t].
func (j *Join) Run(s device.Stream, st *stages.State, hidden device.Mat, probe stages.Probe) {
	p, both, h := st.On(j.Dev, s, probe), j.Both.RowRange(0, st.T), hidden.Cols
	p.GatherRows(st.Hidden, j.Table, st.IDs)
	p.Observe(-1, "embed", st.Hidden)
	p.RMSNorm(both.ColRange(0, h), st.Hidden, j.EmbedNorm, j.Eps)
	p.RMSNorm(both.ColRange(h, 2*h), hidden, j.HiddenNorm, j.Eps)
	p.MatMul(st.Hidden, both, device.QRows{}, &j.Proj)
	p.Observe(-1, "proj", st.Hidden)
	p.Send()
}
