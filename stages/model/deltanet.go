package model

import "krater/kernels/device"

// DeltaNet is gated DeltaNet (arXiv 2412.06464, as Qwen3-Next and Qwen3.5 have it): linear attention whose state
// is a matrix for each value head, and a short convolution before it. With Sizes.Floor it is Kimi Delta Attention (KDA;
// arXiv 2510.26692, as GLM-5.3-Flash has it): queries, keys and values come from matrices of their own, each with its
// convolution, and decays and gates from two matrices each, with KeyDim values between them.
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

// kdaRoles are the names of the tensors of KDA.
var kdaRoles = Roles{
	"q":          "self_attn.q_proj.weight",
	"k":          "self_attn.k_proj.weight",
	"v":          "self_attn.v_proj.weight",
	"z_low":      "self_attn.g_a_proj.weight",
	"z":          "self_attn.g_b_proj.weight",
	"b":          "self_attn.b_proj.weight",
	"a_low":      "self_attn.f_a_proj.weight",
	"a":          "self_attn.f_b_proj.weight",
	"q_conv":     "self_attn.q_conv1d.weight",
	"k_conv":     "self_attn.k_conv1d.weight",
	"v_conv":     "self_attn.v_conv1d.weight",
	"a_log":      "self_attn.A_log",
	"dt_bias":    "self_attn.dt_bias",
	"delta_norm": "self_attn.o_norm.weight",
	"o":          "self_attn.o_proj.weight",
}

// Projection is a matrix that gives some of the columns of the rows that DeltaNet begins with.
type Projection struct {
	Role string
	Rows int
	Part Part
	// Low, unless 0, says that the input is not the row itself, but its product with a matrix of Low rows, whose role is LowRole.
	Low int
}

// LowRole returns the role of the matrix before one with Low.
func (p Projection) LowRole() string { return p.Role + "_low" }

// KDA reports whether d is Kimi Delta Attention.
func (d DeltaNet) KDA() bool { return d.Sizes.Floor < 0 }

// Convolutions lists the roles of the convolutions, in the order of their channels, and the number of channels of each.
func (d DeltaNet) Convolutions() []Projection {
	p := d.Sizes
	if d.KDA() {
		return []Projection{{Role: "q_conv", Rows: p.KeyHeads * p.KeyDim}, {Role: "k_conv", Rows: p.KeyHeads * p.KeyDim}, {Role: "v_conv", Rows: p.Values()}}
	}
	return []Projection{{Role: "conv", Rows: p.Channels()}}
}

// Projections lists the matrices in the order of their columns: those of device.DeltaNet's input row,
// then those of its strengths and decays, which are no larger than a router, and as sensitive. Columns
// ordered by key head are joined in the files, others are apart.
func (d DeltaNet) Projections() []Projection {
	p := d.Sizes
	switch {
	case p.ByKeyHead:
		return []Projection{{Role: "qkvz", Rows: p.Width(), Part: Attention}, {Role: "ba", Rows: p.Numbers(), Part: Router}}
	case d.KDA():
		return []Projection{
			{Role: "q", Rows: p.KeyHeads * p.KeyDim, Part: Attention}, {Role: "k", Rows: p.KeyHeads * p.KeyDim, Part: Attention},
			{Role: "v", Rows: p.Values(), Part: Attention}, {Role: "z", Rows: p.Values(), Part: Router, Low: p.KeyDim},
			{Role: "b", Rows: p.ValueHeads, Part: Router}, {Role: "a", Rows: p.StateRows(), Part: Router, Low: p.KeyDim},
		}
	}
	return []Projection{
		{Role: "qkv", Rows: p.Channels(), Part: Attention}, {Role: "z", Rows: p.Values(), Part: Attention},
		{Role: "b", Rows: p.ValueHeads, Part: Router}, {Role: "a", Rows: p.ValueHeads, Part: Router},
	}
}

// Tensors implements Mixer.
func (d DeltaNet) Tensors(h int) (list []TensorSpec) {
	p := d.Sizes
	for _, x := range d.Projections() {
		in := h
		if x.Low > 0 {
			in = x.Low
			list = append(list, TensorSpec{Role: x.LowRole(), Shape: []int{in, h}, Part: x.Part})
		}
		list = append(list, TensorSpec{Role: x.Role, Shape: []int{x.Rows, in}, Part: x.Part})
	}
	for _, x := range d.Convolutions() {
		list = append(list, TensorSpec{Role: x.Role, Shape: []int{x.Rows, 1, p.Taps}, Part: Router, F32: true})
	}
	return append(list,
		TensorSpec{Role: "a_log", Shape: []int{p.ValueHeads}, Part: Router, F32: true},
		TensorSpec{Role: "dt_bias", Shape: []int{p.ValueHeads * p.Rates()}, Part: Router, F32: true},
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
	list := []Scratch{{p.Width(), false}, {p.Numbers(), false}, {p.Channels(), false}, {p.Values(), true}}
	for _, x := range d.Projections() {
		if x.Low > 0 {
			list = append(list, Scratch{x.Low, false})
		}
	}
	return list
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
