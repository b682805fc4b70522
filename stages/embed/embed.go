// Package embed is the first stage of a step: token ids to hidden states.
package embed

import (
	"math"

	"krater/kernels/device"
	"krater/stages"
)

// Stage looks up embeddings.
type Stage struct {
	Dev      device.Device
	Table    device.Mat // [V, H] BF16 or F32
	Scale    float32    // of the embedding; 0: none (model.Config.EmbedScale)
	PerLayer PerLayer   // of the rows for single layers; absent in most models
}

// PerLayer makes rows for single layers, of Width values each: see model.Config.PerLayer.
type PerLayer struct {
	Width int
	Table device.Mat    // [V, layers*Width]
	Proj  device.Weight // [layers*Width, H]
	Norm  device.Mat    // [1, Width]
	Eps   float32
}

// Run writes st.Hidden and st.PerLayer from st.IDs.
func (e *Stage) Run(s device.Stream, st *stages.State, probe stages.Probe) {
	if st.Repeated() {
		return
	}
	p := st.On(e.Dev, s, probe)
	h := e.Table.Cols
	for at := 0; at < st.Hidden.Cols; at += h { // several residual streams begin alike
		p.GatherRows(st.Hidden.ColRange(at, at+h), e.Table, st.IDs)
	}
	if e.Scale != 0 {
		p.Scale(st.Hidden, e.Scale)
	}
	p.Observe(-1, "embed", st.Hidden.ColRange(0, h))
	e.PerLayer.run(p, st)
	p.Send()
}

func (e *PerLayer) run(p *stages.Program, st *stages.State) {
	if e.Width == 0 {
		return
	}
	root := func(n int) float32 { return float32(math.Sqrt(float64(n))) }
	p.GatherRows(st.PerLayer, e.Table, st.IDs)
	p.Scale(st.PerLayer, root(e.Width))
	p.MatMul(st.Context, st.Hidden, device.QRows{}, &e.Proj)
	p.Scale(st.Context, 1/root(st.Hidden.Cols))
	p.HeadNorm(st.Context, st.Context.Cols/e.Width, e.Norm, e.Eps)
	p.Add(st.PerLayer, st.Context)
	p.Scale(st.PerLayer, 1/root(2))
	p.Observe(-1, "per_layer_inputs", st.PerLayer)
}
