package model

import (
	"maps"

	"krater/kernels/device"
)

// Dense is a SwiGLU network for all tokens.
type Dense struct {
	FF  int // intermediate_size
	Act device.Activation
}

// MoE is a mixture of SwiGLU networks. The zero value means "none".
type MoE struct {
	Experts  int // n_routed_experts
	FF       int // moe_intermediate_size
	SharedFF int // width of the shared experts, which are one network: n_shared_experts * moe_intermediate_size; 0: none
	// SharedGate says that the output of the shared experts is multiplied by the sigmoid of the token's
	// product with a vector.
	SharedGate bool
	// Correction says that a vector is added to the router's scores for the choice of experts, but not for
	// their weights (e_score_correction_bias; arXiv 2412.19437, section 2.1.2).
	Correction bool
	// Vocab, unless 0, says that a table [Vocab, TopK] has the experts of each token (role "token_experts"). The router then computes
	// only their weights.
	Vocab      int
	RouterBias bool              // the logits of the router have a bias
	Biases     bool              // gate, up and down of routed experts have biases
	Act        device.Activation // of all experts
	Router     device.Router
	// OwnNorms says that the router, the routed experts and the shared ones each have a norm of their own for their
	// input, the residual stream (roles "router_norm", "expert_norm", and "post_norm" for the shared ones), and that
	// the outputs of the experts are normed before they are added (roles "experts_norm" and "shared_norm"). The
	// weight of the router's norm is divided by sqrt(H).
	OwnNorms bool
	// Factors says that each expert has a factor by which its weight is multiplied (role "factors").
	Factors bool
}

// usualRoles are the names that most releases use. Mixers and families add their own.
var usualRoles = Roles{
	"embed": "model.embed_tokens.weight",
	"norm":  "model.norm.weight",
	"head":  "lm_head.weight",
	"layer": "model.layers.*.",

	"input_norm": "input_layernorm.weight",
	"post_norm":  "post_attention_layernorm.weight",

	"gate":        "mlp.gate_proj.weight",
	"up":          "mlp.up_proj.weight",
	"down":        "mlp.down_proj.weight",
	"router":      "mlp.gate.weight",
	"correction":  "mlp.gate.e_score_correction_bias",
	"expert.gate": "mlp.experts.*.gate_proj.weight",
	"expert.up":   "mlp.experts.*.up_proj.weight",
	"expert.down": "mlp.experts.*.down_proj.weight",
	"shared.gate": "mlp.shared_experts.gate_proj.weight",
	"shared.up":   "mlp.shared_experts.up_proj.weight",
	"shared.down": "mlp.shared_experts.down_proj.weight",
}

// Usual returns the usual names and those of more, which take precedence.
func Usual(more ...Roles) Roles {
	r := maps.Clone(usualRoles)
	for _, m := range more {
		maps.Copy(r, m)
	}
	return r
}

// network lists the matrices of a SwiGLU network.
func network(prefix string, part Part, width, h int) []TensorSpec {
	return []TensorSpec{
		{Role: prefix + "gate", Shape: []int{width, h}, Part: part},
		{Role: prefix + "up", Shape: []int{width, h}, Part: part},
		{Role: prefix + "down", Shape: []int{h, width}, Part: part},
	}
}

// Tensors implements FFN.
func (d Dense) Tensors(h int) []TensorSpec { return network("", DenseFFN, d.FF, h) }

// Routed implements FFN.
func (d Dense) Routed() int { return 0 }

// Activation implements FFN.
func (d Dense) Activation() device.Activation { return d.Act }

// Tensors implements FFN.
func (m MoE) Tensors(h int) []TensorSpec {
	list := []TensorSpec{{Role: "router", Shape: []int{m.Experts, h}, Part: Router}}
	if m.Correction {
		list = append(list, TensorSpec{Role: "correction", Shape: []int{m.Experts}, Part: Router, F32: true})
	}
	if m.Vocab > 0 {
		list = append(list, TensorSpec{Role: "token_experts", Shape: []int{m.Vocab, m.Router.TopK}, Part: Router, F32: true})
	}
	if m.RouterBias {
		list = append(list, TensorSpec{Role: "router_bias", Shape: []int{m.Experts}, Part: Router, F32: true})
	}
	if m.OwnNorms {
		for _, role := range []string{"router_norm", "expert_norm", "experts_norm", "shared_norm"} {
			list = append(list, TensorSpec{Role: role, Shape: []int{h}, Part: Router, F32: role == "router_norm", Norm: true})
		}
	}
	if m.Factors {
		list = append(list, TensorSpec{Role: "factors", Shape: []int{m.Experts}, Part: Router, F32: true})
	}
	list = append(list, network("expert.", Experts, m.FF, h)...)
	if m.Biases {
		list = append(list,
			TensorSpec{Role: "expert.gate_bias", Shape: []int{m.FF}, Part: Experts, F32: true},
			TensorSpec{Role: "expert.up_bias", Shape: []int{m.FF}, Part: Experts, F32: true},
			TensorSpec{Role: "expert.down_bias", Shape: []int{h}, Part: Experts, F32: true})
	}
	if m.SharedFF > 0 {
		list = append(list, network("shared.", Shared, m.SharedFF, h)...)
		if m.SharedGate {
			list = append(list, TensorSpec{Role: "shared_gate", Shape: []int{1, h}, Part: Router})
		}
	}
	return list
}

// Routed implements FFN.
func (m MoE) Routed() int { return m.Experts }

// Activation implements FFN.
func (m MoE) Activation() device.Activation { return m.Act }

// mixed is layers of one mixer, some with experts.
func mixed(a Mixer, dense Dense, moe MoE, has func(layer int) bool) func(i int) (Mixer, FFN) {
	return func(i int) (Mixer, FFN) {
		if has(i) {
			return a, moe
		}
		return a, dense
	}
}

// expertsField returns the name that the number of experts has; transformers 5 writes the second.
func expertsField(f fields) string { return f.firstOf("num_experts", "num_local_experts") }

// softmaxExperts reads experts without shared ones, whose weights are a softmax over all of
// them. experts and width are the names of fields.
func softmaxExperts(f fields, experts, width string, normalize bool, layers int) MoE {
	m := MoE{Experts: f.int(experts, 1, maxExperts), FF: f.int(width, 1, maxFF)}
	m.Router = device.Router{
		Experts: m.Experts, TopK: f.int("num_experts_per_tok", 1, maxExperts), Scoring: device.ScoreSoftmax, Scale: 1,
		Normalize: normalize,
	}
	f.checkExperts(m, experts, "num_experts_per_tok", layers)
	return m
}

// checkExperts refuses what no model can have. Its errors use the names of the fields.
func (f fields) checkExperts(m MoE, experts, topK string, layers int) {
	if m.Router.TopK > m.Experts {
		f.clash(topK, []string{experts}, "%d is more than %s %d", m.Router.TopK, experts, m.Experts)
	}
	if m.Experts*layers > maxBankExperts {
		f.clash(experts, []string{"num_hidden_layers"}, "%d in %d layers: over %d experts in all", m.Experts, layers, maxBankExperts)
	}
}

// MoELayer reports whether layer i (from 0) has experts.
func (c *Config) MoELayer(i int) bool { return c.Layers[i].FFN.Routed() > 0 }

// DenseFF returns the width of the widest dense network, 0 if there is none.
func (c *Config) DenseFF() (n int) {
	for i := range c.Layers {
		if d, ok := c.Layers[i].FFN.(Dense); ok {
			n = max(n, d.FF)
		}
	}
	return n
}
