// Package route chooses the experts of each token.
package route

import (
	"krater/kernels/device"
	"krater/stages"
)

// Ops are the operators the stage needs.
type Ops interface {
	MatMul(s device.Stream, out, x, w device.Mat)
	RouteTopK(s device.Stream, ids, weights, logits, bias device.Mat, p device.Router)
	stages.Norms
}

// fused is a device that does both at once, with the same bits.
type fused interface {
	Route(s device.Stream, ids, weights, logits, x, gate, bias device.Mat, p device.Router)
}

// normed is a fused device that also makes the rows: x = RMSNorm(of) by norm.
type normed interface {
	NormRoute(s device.Stream, ids, weights, logits, x, of, norm device.Mat, eps float32, gate, bias device.Mat, p device.Router)
}

// Stage is the router of one layer.
type Stage struct {
	Gate   device.Mat // [E, H] mlp.gate.weight
	Bias   device.Mat // [1, E] F32 e_score_correction_bias, absent in DeepSeek-V2
	Params device.Router
}

// Run writes st.RouterLogits, RouterIDs and RouterWeights from st.Input, which is
// made if it is not there yet. The host reads the ids after State.FetchRouterIDs.
func (r *Stage) Run(s device.Stream, ops Ops, st *stages.State, layer int, probe stages.Probe) {
	st.Routing(layer)
	if n, ok := ops.(normed); ok {
		if of, norm, eps, ok := st.Input.Take(); ok {
			n.NormRoute(s, st.RouterIDs, st.RouterWeights, st.RouterLogits, st.Normed, of, norm, eps, r.Gate, r.Bias, r.Params)
			return // nobody looks at it
		}
	}
	st.Input.Made(s, ops)
	if f, ok := ops.(fused); ok {
		f.Route(s, st.RouterIDs, st.RouterWeights, st.RouterLogits, st.Normed, r.Gate, r.Bias, r.Params)
	} else {
		ops.MatMul(s, st.RouterLogits, st.Normed, r.Gate)
		ops.RouteTopK(s, st.RouterIDs, st.RouterWeights, st.RouterLogits, r.Bias, r.Params)
	}
	if probe != nil {
		probe.Observe(s, layer, "router_logits", st.RouterLogits, st)
		probe.Observe(s, layer, "router_ids", st.RouterIDs, st)
		probe.Observe(s, layer, "router_weights", st.RouterWeights, st)
	}
}
