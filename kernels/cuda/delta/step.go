package delta

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// The kernels of src/delta_step.cu, by keep as kRules.
var kSteps = []launch.Kernel{launch.Named("kr_delta_step_8"), launch.Named("kr_delta_step_16"), launch.Named("kr_delta_step_32")}

const (
	stepTaps = 4
	// StepMost is the most sequences for which Step is faster than Conv and Rule: every block of a head computes the convolution of its keys.
	StepMost = 4
)

// CanStep reports whether Step takes these: rows of BF16, at most four taps, a decay for each head.
func CanStep(x launch.Mat, p device.DeltaNet) bool {
	return x.DType == tensor.BF16 && p.Taps <= stepTaps && p.Floor == 0 && Check(p) == nil
}

// Step computes Conv and Rule for the generated rows of list, with their bits, without writing the results of the convolution. early: the
// launch before lets this one begin only when all launches before that have ended, so what these wrote is loaded without waiting.
func Step(l *launch.List, out, x, w, tail, ba, decay, bias, states launch.Mat, list []device.Span, table launch.Mat, early bool, p device.DeltaNet) {
	const op = "Step"
	if !CanStep(x, p) {
		refuse(op, "no kernel for x %v, sizes %+v", x, p)
	}
	channels := x
	channels.Cols = p.Channels()
	checkRule(out, channels, ba, decay, bias, states, table, p)
	typed(op, "x", x.DType, x, x.Rows, p.Width())
	wide(op, "w", w, p.Taps, p.Channels())
	wide(op, "tail", tail, tail.Rows, p.Channels())
	if len(list) == 0 {
		return
	}
	i := 0
	for p.KeyDim > 4*kRules[i].keep {
		i++
	}
	l.Add(kSteps[i], launch.Config{Grid: ruleGrid(len(list), p), Block: launch.Dim{X: threads}, PDL: true},
		launch.P(out.At), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.P(ba.At), launch.I32(ba.Stride), launch.P(w.At), launch.I32(w.Stride),
		launch.P(tail.At), launch.I32(p.Taps), launch.P(decay.At), launch.P(bias.At), launch.P(states.At), launch.P(table.At),
		launch.I32(min(states.Rows/p.StateRows(), tail.Rows/p.Taps)), launch.I32(p.KeyHeads), launch.I32(p.Group()), launch.I32(p.KeyDim), launch.I32(p.ValueDim),
		at(p.Queries()), at(p.Keys()), at(p.Inputs()), at(p.Decays()), at(p.Strengths()), flag(early))
}
