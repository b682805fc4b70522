// Package delta launches gated DeltaNet (arXiv 2412.06464): the convolution over its inputs, the
// recurrence of its states, and the gated norm of its output. A row's bits depend on the rows of its
// sequence alone, however they are divided into steps, except for prompts in chunks (Chunks).
package delta

import (
	"fmt"

	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// The kernels, by the type of rows, and the sizes of src/delta.cu.
var (
	kConv      = map[tensor.DType]launch.Kernel{tensor.BF16: launch.Named("kr_delta_conv_bf16"), tensor.F32: launch.Named("kr_delta_conv_float")}
	kConvPairs = launch.Named("kr_delta_conv_pairs")
	kGatedNorm = launch.Named("kr_gated_norm")
	kRules     = []rule{
		{8, map[tensor.DType]launch.Kernel{tensor.BF16: launch.Named("kr_delta_rule_bf16_8"), tensor.F32: launch.Named("kr_delta_rule_float_8")}},
		{16, map[tensor.DType]launch.Kernel{tensor.BF16: launch.Named("kr_delta_rule_bf16_16"), tensor.F32: launch.Named("kr_delta_rule_float_16")}},
		{32, map[tensor.DType]launch.Kernel{tensor.BF16: launch.Named("kr_delta_rule_bf16_32"), tensor.F32: launch.Named("kr_delta_rule_float_32")}},
	}
	// Those with a decay for each row of a state.
	kRowRules = []rule{
		{8, map[tensor.DType]launch.Kernel{tensor.BF16: launch.Named("kr_kda_rule_bf16_8"), tensor.F32: launch.Named("kr_kda_rule_float_8")}},
		{16, map[tensor.DType]launch.Kernel{tensor.BF16: launch.Named("kr_kda_rule_bf16_16"), tensor.F32: launch.Named("kr_kda_rule_float_16")}},
		{32, map[tensor.DType]launch.Kernel{tensor.BF16: launch.Named("kr_kda_rule_bf16_32"), tensor.F32: launch.Named("kr_kda_rule_float_32")}},
	}
)

// rule is the kernels for keys of up to 4*keep values.
type rule struct {
	keep    int
	kernels map[tensor.DType]launch.Kernel
}

// KeysMax is the most values of a key.
const KeysMax = 128

// Check names the size that no kernel takes; the zero DeltaNet has none.
func Check(p device.DeltaNet) error {
	if p.KeyDim > KeysMax {
		return fmt.Errorf("gated DeltaNet: key heads of %d, a GPU takes at most %d", p.KeyDim, KeysMax)
	}
	return nil
}

const (
	sigmoidGate = 64 // a kernel's flag beside those of operands

	threads = 128
	columns = 32 // of a state, of a block
	tapsMax = 16
)

func refuse(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}

// floats panics unless m is F32 or BF16 [rows, cols]; the result is bit n of a kernel's flags if m is
// BF16.
func floats(op, name string, n int, m launch.Mat, rows, cols int) int {
	if m.Zero() || m.DType != tensor.F32 && m.DType != tensor.BF16 || m.Rows != rows || m.Cols != cols || m.Stride < cols {
		refuse(op, "%s is %v, need F32 or BF16 [%d, %d]", name, m, rows, cols)
	}
	if m.DType == tensor.BF16 {
		return 2 << n
	}
	return 0
}

// typed panics unless m is [rows, cols] of dt, which is F32 or BF16.
func typed(op, name string, dt tensor.DType, m launch.Mat, rows, cols int) {
	if floats(op, name, 0, m, rows, cols); m.DType != dt {
		refuse(op, "%s is %v, other rows are %s", name, m, dt)
	}
}

// wide panics unless m is F32 [rows, cols] without gaps.
func wide(op, name string, m launch.Mat, rows, cols int) {
	if m.Zero() || m.DType != tensor.F32 || m.Rows != rows || m.Cols != cols || !m.Dense() {
		refuse(op, "%s is %v, need dense F32 [%d, %d]", name, m, rows, cols)
	}
}

func check(op string, p device.DeltaNet, table launch.Mat) {
	if p.KeyHeads < 1 || p.ValueHeads < p.KeyHeads || p.ValueHeads%p.KeyHeads != 0 || p.KeyDim < 1 || p.ValueDim < 1 || p.Taps < 1 || p.Taps > tapsMax {
		refuse(op, "sizes %+v", p)
	}
	if table.Zero() || table.DType != tensor.I32 {
		refuse(op, "the table of spans is %v", table)
	}
}

// at is a struct Cols of the kernels.
func at(c device.Columns) launch.Arg { return launch.I64(int64(c.Step)<<32 | int64(c.At)) }

func flag(decode bool) launch.Arg {
	if decode {
		return launch.I32(1)
	}
	return launch.I32(0)
}

// Conv computes out [T, channels] = silu of the convolution w [taps, channels] F32 of x [T, width] for
// the spans of list, prompts or generated rows, whose table is table; tail [slots*taps, channels] F32
// keeps the newest rows of each sequence.
func Conv(l *launch.List, out, x, w, tail launch.Mat, list []device.Span, table launch.Mat, decode bool, p device.DeltaNet) {
	const op = "Conv"
	check(op, p, table)
	n := p.Channels()
	typed(op, "out", x.DType, out, x.Rows, n)
	typed(op, "x", x.DType, x, x.Rows, p.Width())
	wide(op, "w", w, p.Taps, n)
	wide(op, "tail", tail, tail.Rows, n)
	tiles := len(list)
	if !decode {
		tiles = 0
		for i := range list {
			tiles += spans.Tiles(&list[i])
		}
	}
	if tiles == 0 {
		return
	}
	kernel, each := kConv[x.DType], 1
	if x.DType == tensor.BF16 && p.Taps <= 4 && p.KeyDim%2 == 0 && p.ValueDim%2 == 0 && x.At%4 == 0 && x.Stride%2 == 0 && out.At%4 == 0 && out.Stride%2 == 0 {
		kernel, each = kConvPairs, 2 // channels of a thread
	}
	blocks := (n/each + threads - 1) / threads
	l.Add(kernel, launch.Config{Grid: launch.Dim{X: uint32(blocks), Y: uint32(tiles)}, Block: launch.Dim{X: threads}, PDL: true},
		launch.P(out.At), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.P(w.At), launch.I32(w.Stride),
		launch.P(tail.At), launch.P(table.At), flag(decode), launch.I32(tail.Rows/p.Taps), launch.I32(p.Taps), launch.I32(p.KeyHeads), launch.I32(p.KeyDim),
		launch.I32(p.Group()*p.ValueDim), at(p.Queries()), at(p.Keys()), at(p.Inputs()))
}

// Rule computes the gated delta rule (device.List.Delta) token by token for the spans of list: out [T,
// values] of the rows x [T, channels] of Conv and of ba [T, numbers]. decay [1, value heads], bias [1, value
// heads * rates] and states [slots*StateRows, value dim] are F32. Keys have at most 128 values.
func Rule(l *launch.List, out, x, ba, decay, bias, states launch.Mat, list []device.Span, table launch.Mat, decode bool, p device.DeltaNet) {
	checkRule(out, x, ba, decay, bias, states, table, p)
	rules, more := kRules, []launch.Arg{flag(decode)}
	if p.Floor < 0 {
		rules, more = kRowRules, append(more, launch.F32(p.Floor))
	}
	for p.KeyDim > 4*rules[0].keep {
		rules = rules[1:]
	}
	if len(list) == 0 {
		return
	}
	l.Add(rules[0].kernels[x.DType], launch.Config{Grid: ruleGrid(len(list), p), Block: launch.Dim{X: threads}, PDL: true},
		ruleArgs(out, x, ba, decay, bias, states, table, p, more...)...)
}

// checkRule panics unless the operands of the rule fit.
func checkRule(out, x, ba, decay, bias, states, table launch.Mat, p device.DeltaNet) {
	const op = "Delta"
	check(op, p, table)
	typed(op, "out", x.DType, out, x.Rows, p.Values())
	typed(op, "x", x.DType, x, x.Rows, p.Channels())
	typed(op, "ba", x.DType, ba, x.Rows, p.Numbers())
	wide(op, "decay", decay, 1, p.ValueHeads)
	wide(op, "bias", bias, 1, p.ValueHeads*p.Rates())
	wide(op, "states", states, states.Rows, p.ValueDim)
	if err := Check(p); err != nil || p.Floor > 0 || p.Floor < 0 && p.ByKeyHead {
		refuse(op, "sizes %+v: %v", p, err)
	}
}

// ruleGrid is a block for each slice of a value head's columns and each sequence.
func ruleGrid(sequences int, p device.DeltaNet) launch.Dim {
	return launch.Dim{X: uint32(p.ValueHeads * ((p.ValueDim + columns - 1) / columns)), Y: uint32(sequences)}
}

// ruleArgs are the arguments of the rule's kernels; some have others behind the table.
func ruleArgs(out, x, ba, decay, bias, states, table launch.Mat, p device.DeltaNet, more ...launch.Arg) []launch.Arg {
	args := []launch.Arg{launch.P(out.At), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.P(ba.At), launch.I32(ba.Stride),
		launch.P(decay.At), launch.P(bias.At), launch.P(states.At), launch.P(table.At)}
	return append(append(args, more...), launch.I32(states.Rows/p.StateRows()),
		launch.I32(p.KeyHeads), launch.I32(p.Group()), launch.I32(p.KeyDim), launch.I32(p.ValueDim), at(p.Decays()), at(p.Strengths()))
}

// GatedNorm computes RMSNorm over each value head of out [T, values] times silu, or the sigmoid, of its gates in x
// [T, width], in place; w [1, value dim].
func GatedNorm(l *launch.List, out, x, w launch.Mat, eps float32, p device.DeltaNet) {
	const op = "GatedNorm"
	f := floats(op, "out", 0, out, x.Rows, p.Values()) | floats(op, "x", 1, x, x.Rows, p.Width()) | floats(op, "w", 2, w, 1, p.ValueDim)
	if p.SigmoidGate {
		f |= sigmoidGate
	}
	if x.Rows == 0 {
		return
	}
	const warps = threads / 32
	l.Add(kGatedNorm, launch.Config{Grid: launch.Dim{X: uint32((x.Rows*p.ValueHeads + warps - 1) / warps)}, Block: launch.Dim{X: threads}, PDL: true},
		launch.P(out.At), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.P(w.At), launch.I32(x.Rows),
		launch.I32(p.ValueHeads), launch.I32(p.Group()), launch.I32(p.ValueDim), at(p.Gates()), launch.F32(eps), launch.I32(f))
}
