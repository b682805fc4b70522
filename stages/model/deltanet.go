package model

import "krater/kernels/device"

// DeltaNet is gated DeltaNet (arXiv 2412.06464, as Qwen3-Next has it): linear attention whose state
// is a matrix for each value head, and a short convolution before it.
type DeltaNet struct {
	Sizes   device.DeltaNet
	NormEps float32 // of the norm of its output
}

// deltaRoles are the names of the tensors where the projections are joined (ByKeyHead).
var deltaRoles = Roles{
	"qkvz":       "linear_attn.in_proj_qkvz.weight",
	"ba":         "linear_attn.in_proj_ba.weight",
	"conv":       "linear_attn.conv1d.weight",
	"a_log":      "linear_attn.A_log",
	"dt_bias":    "linear_attn.dt_bias",
	"delta_norm": "linear_attn.norm.weight",
	"o":          "linear_attn.out_proj.weight",
}

// Tensors implements Mixer. Strengths and decays are no larger than a router, and as sensitive.
func (d DeltaNet) Tensors(h int) []TensorSpec {
	p := d.Sizes
	return []TensorSpec{
		{Role: "qkvz", Shape: []int{p.Width(), h}, Part: Attention},
		{Role: "ba", Shape: []int{2 * p.ValueHeads, h}, Part: Router},
		{Role: "conv", Shape: []int{p.Channels(), 1, p.Taps}, Part: Router, F32: true},
		{Role: "a_log", Shape: []int{p.ValueHeads}, Part: Router, F32: true},
		{Role: "dt_bias", Shape: []int{p.ValueHeads}, Part: Router, F32: true},
		{Role: "delta_norm", Shape: []int{p.ValueDim}, Part: Router},
		{Role: "o", Shape: []int{h, p.Values()}, Part: Attention},
	}
}

// State implements Mixer: the newest inputs of the convolution, and the states of the heads.
func (d DeltaNet) State() []State {
	p := d.Sizes
	return []State{
		{Kind: Recurrent, Width: p.Channels(), Rows: p.Taps},
		{Kind: Recurrent, Width: p.ValueDim, Rows: p.StateRows()},
	}
}

// Scratch implements Mixer.
func (d DeltaNet) Scratch() []Scratch {
	p := d.Sizes
	return []Scratch{{p.Width(), false}, {2 * p.ValueHeads, false}, {p.Channels(), false}, {p.Values(), true}}
}

// Cost implements Mixer.
func (d DeltaNet) Cost() Cost {
	p := d.Sizes
	return Cost{Row: float64(7*p.StateRows()*p.ValueDim + 2*p.Taps*p.Channels())}
}

// Rotary implements Mixer.
func (d DeltaNet) Rotary() *RopeConfig { return nil }

// TwoForms implements Mixer.
func (d DeltaNet) TwoForms() bool { return false }

// Step implements Mixer.
func (d DeltaNet) Step(s *device.StepSizes, _ int) {
	if d.Sizes.KeyDim > s.Delta.KeyDim {
		s.Delta = d.Sizes
	}
}
