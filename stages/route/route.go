// Package route chooses the experts of each token.
package route

import (
	"krater/kernels/device"
	"krater/stages"
)

// Stage is the router of one layer.
type Stage struct {
	Gate     device.Weight // [E, H] mlp.gate.weight, floats
	GateBias device.Mat    // [1, E] of the logits, absent in most families
	Bias     device.Mat    // [1, E] F32 e_score_correction_bias, absent in DeepSeek-V2
	Factors  device.Mat    // [1, E] F32 of the weights, absent in most families
	Table    device.Mat    // [V, K] F32 experts of each token; absent where the router chooses them
	Params   device.Router
}

// Run appends that st.RouterLogits, RouterIDs and RouterWeights follow from st.Normed. The host
// reads the ids after State.FetchRouterIDs.
func (r *Stage) Run(p *stages.Program, st *stages.State, layer int) {
	st.Routing(layer)
	p.MatMul(st.RouterLogits, st.Normed, device.QRows{}, &r.Gate)
	if !r.GateBias.Zero() {
		p.AddBias(st.RouterLogits, r.GateBias)
	}
	if r.Table.Zero() {
		p.RouteTopK(st.RouterIDs, st.RouterWeights, st.RouterLogits, r.Bias, r.Factors, &r.Params)
	} else {
		p.RouteByToken(st.RouterIDs, st.RouterWeights, st.RouterLogits, st.IDs, r.Table, &r.Params)
	}
	p.Observe(layer, "router_logits", st.RouterLogits)
	p.Observe(layer, "router_ids", st.RouterIDs)
	p.Observe(layer, "router_weights", st.RouterWeights)
}
