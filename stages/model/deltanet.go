package model

import "krater/kernels/device"

// DeltaNet is gated DeltaNet (arXiv 2412.06464, as Qwen3-Next and Qwen3.5 have it): linear attention whose state
// is a matrix for each value head, and a short convolution before it.
type DeltaNet struct {
	Sizes   device.DeltaNet
	NormEps float32 // of the norm of its output
}

// deltaRoles are the names of the tensors, with projections that are joined and those that are apart.
var deltaRoles = Roles{
	"qkvz":       "linear_attn.in_proj_qkvz.weight",
	"ba":         "linear_attn.in_proj_ba.weight",
	"qkv":        "linear_attn.in_proj_qkv.weight",
	"z":          "linear_attn.in_proj_z.weight",
	"b":          "linear_attn.in_proj_b.weight",
	"a":          "linear_attn.in_proj_a.weight",
	"conv":       "linear_attn.conv1d.weight",
	"a_log":      "linear_attn.A_log",
	"dt_bias":    "linear_attn.dt_bias",
	"delta_norm": "linear_attn.norm.weight",
	"o":          "linear_attn.out_proj.weight",
}

// Projection is a matrix that gives some of the columns of the rows that DeltaNet begins with.
type Projection struct {
	Role string
	Rows int
	Part Part
}

// Projections lists the matrices in the order of their columns: those of device.DeltaNet's input row,
// then those of its strengths and decays, which are no larger than a router, and as sensitive. Columns
// ordered by key head are joined in the files, others are apart.
func (d DeltaNet) Projections() []Projection {
	p := d.Sizes
	if p.ByKeyHead {
		return []Projection{{"qkvz", p.Width(), Attention}, {"ba", 2 * p.ValueHeads, Router}}
	}
	return []Projection{
		{"qkv", p.Channels(), Attention}, {"z", p.Values(), Attention},
		{"b", p.ValueHeads, Router}, {"a", p.ValueHeads, Router},
	}
}

// Tensors implements Mixer.
func (d DeltaNet) Tensors(h int) (list []TensorSpec) {
	p := d.Sizes
	for _, x := range d.Projections() {
		list = append(list, TensorSpec{Role: x.Role, Shape: []int{x.Rows, h}, Part: x.Part})
	}
	return append(list,
		TensorSpec{Role: "conv", Shape: []int{p.Channels(), 1, p.Taps}, Part: Router, F32: true},
		TensorSpec{Role: "a_log", Shape: []int{p.ValueHeads}, Part: Router, F32: true},
		TensorSpec{Role: "dt_bias", Shape: []int{p.ValueHeads}, Part: Router, F32: true},
		TensorSpec{Role: "delta_norm", Shape: []int{p.ValueDim}, Part: Router, F32: true},
		TensorSpec{Role: "o", Shape: []int{h, p.Values()}, Part: Attention},
	)
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

// Selects implements Mixer.
func (d DeltaNet) Selects() (topK int, shared bool) { return 0, false }

// Step implements Mixer.
func (d DeltaNet) Step(s *device.StepSizes, _ int) {
	if d.Sizes.KeyDim > s.Delta.KeyDim {
		s.Delta = d.Sizes
	}
}
