package route

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// The kernels of softplus.cu.
var (
	kSoftplusTopK = launch.Named("kr_softplus_top_k")
	kByToken      = launch.Named("kr_route_by_token")
)

// apart reports whether experts are chosen by a kernel of its own, not by those that compute logits.
func apart(p device.Router) bool { return p.Scoring == device.ScoreSqrtSoftplus }

// softplusTopK is TopK by scores sqrt(log(1 + exp(logit))).
func softplusTopK(l *launch.List, ids, weights, logits, bias launch.Mat, p device.Router) {
	r := routerArgs(p)
	l.Add(kSoftplusTopK, warps(logits.Rows),
		launch.P(ids.At), launch.I32(ids.Stride), launch.P(weights.At), launch.I32(weights.Stride), launch.P(logits.At), launch.I32(logits.Stride),
		launch.P(bias.At), launch.I32(logits.Rows), launch.I32(p.Experts), r[0], r[2], r[3], r[4], r[5], r[6])
}

// ByToken weighs the K experts that table [V, K] F32 has for each of tokens [T, 1] I32 by logits [T, E] F32: ids [T, K] I32 and weights
// [T, K] F32 as those of TopK. A token that is not in the table, or a number in it that is no expert's, becomes the nearest one.
func ByToken(l *launch.List, ids, weights, logits, tokens, table launch.Mat, p device.Router) {
	const op = "RouteByToken"
	t := logits.Rows
	if p.Experts < 1 || p.TopK < 1 || p.TopK > min(MaxTopK, p.Experts) || p.Scoring > device.ScoreSqrtSoftplus {
		refuse(op, "%+v", p)
	}
	typed(op, "logits", logits, tensor.F32, t, p.Experts)
	typed(op, "ids", ids, tensor.I32, t, p.TopK)
	typed(op, "weights", weights, tensor.F32, t, p.TopK)
	typed(op, "tokens", tokens, tensor.I32, t, 1)
	typed(op, "table", table, tensor.F32, table.Rows, p.TopK)
	if !tokens.Dense() || table.Rows < 1 {
		refuse(op, "tokens %v, %d apart, table %v", tokens, tokens.Stride, table)
	}
	if t == 0 {
		return
	}
	r := routerArgs(p)
	l.Add(kByToken, warps(t),
		launch.P(ids.At), launch.I32(ids.Stride), launch.P(weights.At), launch.I32(weights.Stride), launch.P(logits.At), launch.I32(logits.Stride),
		launch.P(tokens.At), launch.P(table.At), launch.I32(table.Stride), launch.I32(table.Rows), launch.I32(t), launch.I32(p.Experts),
		r[0], launch.I32(int(p.Scoring)), r[5], r[6])
}
