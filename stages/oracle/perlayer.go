package oracle

import (
	"fmt"
	"math"

	"krater/kernels/device"
)

// PerLayerInputs returns the rows for single layers, [T, layers, PerLayer]: model.Config.PerLayer. What the token's own rows and what its
// embedding give is multiplied by token and embedding, which are 1.
func (l *Layer) PerLayerInputs(token, embedding float64) []float64 {
	width := l.PerLayer
	all := len(l.Config.Layers) * width
	table := l.Weight(l.Tensor("per_layer_embed"), l.Config.Vocab*all)
	x := Mul(l.Get("embed"), l.Weight(l.Tensor("per_layer_model_proj"), all*l.Config.Hidden), l.T)
	if table == nil || x == nil {
		return nil
	}
	for i := range x {
		x[i] /= math.Sqrt(float64(l.Config.Hidden))
	}
	x = RMSNorm(x, l.Weight(l.Tensor("per_layer_model_norm"), width), float64(l.Config.NormEps))
	for i := range x {
		own := table[l.row(l.IDs[i/all])*all+i%all]
		x[i] = (embedding*x[i] + token*float64(own)*math.Sqrt(float64(width))) / math.Sqrt2
	}
	return x
}

// perLayerOut returns what follows from the rows for this layer: model.LayerSpec.PerLayer.
func (l *Layer) perLayerOut() []float64 {
	rows, width, h := l.given(-1, "per_layer_inputs"), l.PerLayer, l.Config.Hidden
	if len(rows) != l.T*len(l.Config.Layers)*width {
		l.fail(fmt.Errorf("oracle: the rows for layer %d are not known", l.Index))
		return nil
	}
	x := Sum(Sum(l.In(), l.Get("mixer_out")), l.Get("mlp_out"))
	gate, act := Mul(x, l.Weight(l.Tensor("per_layer_gate"), width*h), l.T), activate(device.GELUTanh)
	own := part(rows, len(l.Config.Layers)*width, l.Index*width, width)
	for i, g := range gate {
		gate[i] = act(g, own[i])
	}
	return RMSNorm(Mul(gate, l.Weight(l.Tensor("per_layer_proj"), h*width), l.T), l.Weight(l.Tensor("per_layer_norm"), h), float64(l.Config.NormEps))
}

// out returns the residual stream that leaves the layer.
func (l *Layer) out() []float64 {
	x := Sum(Sum(l.In(), l.Get("mixer_out")), l.Get("mlp_out"))
	if l.PerLayer > 0 {
		x = Sum(x, l.Get("per_layer_out"))
	}
	name := l.Tensor("scalar")
	if name == "" {
		return x
	}
	by := l.Weight(name, 1)
	if by == nil {
		return nil
	}
	for i := range x {
		x[i] *= float64(by[0])
	}
	return x
}
