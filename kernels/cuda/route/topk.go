package route

import (
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// Limits of the kernels.
const (
	MaxExperts = 512
	MaxTopK    = 32
	maxGroups  = 32
)

// TopK chooses K experts for every row of logits [T, E] F32: ids [T, K] I32 and weights [T, K]
// F32, by falling score, then rising id, as device.Router defines. bias [1, E] F32 or absent
// affects the choice only. Equal choices come by rising id; a score that is not a number is never
// preferred to one that is.
//
// rows is 0, or an I32 on the GPU: rows from that one on get ids -1 and weights 0.
func TopK(l *launch.List, ids, weights, logits, bias launch.Mat, p device.Router, rows launch.Ptr) {
	const op = "TopK"
	checkTopK(op, ids, weights, logits, bias, p)
	if apart(p) && rows != 0 {
		refuse(op, "scoring %d of some rows", p.Scoring)
	}
	if logits.Rows > 0 {
		topK(l, ids, weights, logits, bias, p, rows, 0, 1)
	}
}

// topK chooses by the sums of n parts in memory, which it writes to logits, or by logits.
func topK(l *launch.List, ids, weights, logits, bias launch.Mat, p device.Router, rows, parts launch.Ptr, n int) {
	if apart(p) {
		softplusTopK(l, ids, weights, logits, bias, p)
		return
	}
	r := routerArgs(p)
	l.Add(kTopK, warps(logits.Rows),
		launch.P(ids.At), launch.I32(ids.Stride), launch.P(weights.At), launch.I32(weights.Stride),
		launch.P(parts), launch.I32(n), launch.P(logits.At), launch.I32(logits.Stride), launch.P(bias.At), launch.P(rows),
		launch.I32(logits.Rows), launch.I32(p.Experts), r[0], r[1], r[2], r[3], r[4], r[5], r[6])
}

// MaxFused is the most tokens for which Route may be one launch; TurnBytes is the memory that
// such a launch needs.
const (
	MaxFused  = mostFew
	TurnBytes = (MaxFused/8 + 1) * 4
)

// Route computes Logits, plus the gate's bias, and TopK, in one launch for up to MaxFused tokens of BF16. turn is
// TurnBytes on the GPU that are zeros when the launch starts, and again when it ends; launches
// that may run at the same time need separate ones. scratch is Scratch bytes, aligned to 16.
func Route(l *launch.List, ids, weights, logits, x launch.Mat, gate launch.Weight, bias launch.Mat, p device.Router, rows, turn, scratch launch.Ptr) {
	const op = "Route"
	f := checkLogits(op, logits, x, gate.F, scratch)
	checkTopK(op, ids, weights, logits, bias, p)
	switch {
	case x.Rows == 0:
	case f&exact != exact || apart(p):
		Logits(l, logits, x, gate.F, scratch)
		if gate.Bias != 0 {
			elem.AddBias(l, logits, launch.Mat{At: gate.Bias, DType: tensor.F32, Rows: 1, Cols: logits.Cols, Stride: logits.Cols})
		}
		topK(l, ids, weights, logits, bias, p, rows, 0, 1)
	case x.Rows <= MaxFused && turn != 0:
		few(l, logits, x, &gate, scratch, turn, choiceOf(ids, weights, bias, p, rows))
	case x.Rows <= mostFew:
		few(l, logits, x, &gate, scratch, 0, noChoice)
		topK(l, ids, weights, logits, bias, p, rows, scratch, slicesOf(x.Cols))
	default:
		many(l, logits, x, &gate, scratch)
		topK(l, ids, weights, logits, bias, p, rows, scratch, slicesOf(x.Cols))
	}
}

func checkTopK(op string, ids, weights, logits, bias launch.Mat, p device.Router) {
	groups := max(1, p.Groups)
	switch {
	case p.Experts < 1 || p.Experts > MaxExperts || p.TopK < 1 || p.TopK > min(MaxTopK, p.Experts):
		refuse(op, "top %d of %d experts", p.TopK, p.Experts)
	case groups > maxGroups || p.Experts%groups != 0:
		refuse(op, "%d experts in %d groups", p.Experts, groups)
	case groups > 1 && (p.TopGroups < 1 || p.TopGroups > groups || p.TopK > p.TopGroups*(p.Experts/groups)):
		refuse(op, "top %d of %d experts from %d of %d groups", p.TopK, p.Experts, p.TopGroups, groups)
	case p.Scoring > device.ScoreSqrtSoftplus || p.GroupScore > device.GroupTop2Sum:
		refuse(op, "scoring %d, group score %d", p.Scoring, p.GroupScore)
	}
	t := logits.Rows
	typed(op, "logits", logits, tensor.F32, t, p.Experts)
	typed(op, "ids", ids, tensor.I32, t, p.TopK)
	typed(op, "weights", weights, tensor.F32, t, p.TopK)
	if !bias.Zero() {
		typed(op, "bias", bias, tensor.F32, 1, p.Experts)
	}
}

// routerArgs returns K and the arguments after it.
func routerArgs(p device.Router) [7]launch.Arg {
	return [7]launch.Arg{launch.I32(p.TopK), flag(p.Scoring == device.ScoreSigmoid), launch.I32(max(1, p.Groups)), launch.I32(p.TopGroups),
		flag(p.GroupScore == device.GroupTop2Sum), flag(p.Normalize), launch.F32(p.Scale)}
}

func flag(b bool) launch.Arg {
	if b {
		return launch.I32(1)
	}
	return launch.I32(0)
}
