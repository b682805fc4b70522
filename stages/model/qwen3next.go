package model

import (
	"slices"

	"krater/kernels/device"
)

var _ = register("qwen3_next", parseQwen3Next)

// Names of Qwen3-Next's tensors: of layers with full attention, and of those with DeltaNet.
var (
	qwen3NextRoles  = Usual(qwen3Roles, qwen2MoERoles)
	qwen3DeltaRoles = Usual(qwen2MoERoles, deltaRoles)
)

// parseQwen3Next reads the Qwen3-Next family (Qwen3-Next-80B-A3B, Qwen3-Coder-Next): gated DeltaNet
// in most layers, gated attention in every full_attention_interval-th, experts with a shared one in
// all. Norms are stored as differences from 1. The release has a draft head (mtp), which is not used.
func parseQwen3Next(f fields) *Config {
	c, layers := common(f)
	c.CentredNorms, c.Foreign = true, []string{"mtp."}
	a, linear := gatedAttention(f, c), DeltaNet{deltaSizes(f), c.NormEps}
	linear.Sizes.ByKeyHead = true
	moe := softmaxExperts(f, expertsField(f), "moe_intermediate_size", f.boolOr("norm_topk_prob", true), layers)
	moe.SharedFF, moe.SharedGate = f.int("shared_expert_intermediate_size", 1, maxFF), true
	if has := qwenSparse(f); !f.failed() {
		for i := range layers {
			if !has(i) {
				f.fail("decoder_sparse_step", "layer %d has no experts: that is not supported", i)
				break
			}
		}
	}
	c.hybrid(layers, linearLayers(f, layers), a, qwen3NextRoles, linear, qwen3DeltaRoles, moe)
	return c
}

// hybrid gives the model layers with one network: those with full attention have a, and others linear.
// Each kind has names of its own.
func (c *Config) hybrid(layers int, full func(layer int) bool, a GQA, roles Roles, linear DeltaNet, deltaRoles Roles, ffn FFN) {
	c.Stack(layers, roles, func(i int) (Mixer, FFN) {
		if full(i) {
			return a, ffn
		}
		return linear, ffn
	})
	for i := range c.Layers {
		if !full(i) {
			c.Layers[i].Roles = deltaRoles
		}
	}
}

// gatedAttention reads Qwen3-Next's grouped-query attention: normed heads, of which a part is
// rotated, and a gate for every value of the output.
func gatedAttention(f fields, c *Config) GQA {
	f.refuseBias("attention_bias")
	a := gqaSizes(f, c.Hidden)
	a.QKNorm, a.NormEps, a.Gate = true, c.NormEps, true
	a.rotate(f, c, partialRotary(f, a.HeadDim, 0.25))
	return a
}

// maxTaps bounds the convolution's kernel; released models have 4.
const maxTaps = 16

// deltaSizes reads the sizes of gated DeltaNet with projections that are apart.
func deltaSizes(f fields) device.DeltaNet {
	p := device.DeltaNet{
		KeyHeads:   f.int("linear_num_key_heads", 1, maxHeads),
		ValueHeads: f.int("linear_num_value_heads", 1, maxHeads),
		KeyDim:     f.int("linear_key_head_dim", 1, maxHeadDim),
		ValueDim:   f.int("linear_value_head_dim", 1, maxHeadDim),
		Taps:       f.int("linear_conv_kernel_dim", 2, maxTaps),
	}
	if p.ValueHeads%p.KeyHeads != 0 {
		f.clash("linear_num_value_heads", []string{"linear_num_key_heads"}, "%d is no multiple of linear_num_key_heads %d", p.ValueHeads, p.KeyHeads)
		p.ValueHeads = p.KeyHeads
	}
	return p
}

// linearLayers reads which layers have full attention, which may have other names too; the others have DeltaNet.
func linearLayers(f fields, layers int, names ...string) (full func(layer int) bool) {
	names = append(names, "full_attention")
	if f.boolOr("use_sliding_window", false) {
		f.fail("use_sliding_window", "true is not supported: every layer attends to the whole context")
	}
	every := f.intOr("full_attention_interval", 4, 1, maxLayers)
	kinds := f.strings("layer_types", maxLayers)
	if kinds == nil {
		return func(i int) bool { return (i+1)%every == 0 }
	}
	if len(kinds) != layers {
		f.clash("layer_types", []string{"num_hidden_layers"}, "has %d entries for num_hidden_layers %d", len(kinds), layers)
	}
	for i, kind := range kinds {
		if kind != "linear_attention" && !slices.Contains(names, kind) {
			f.clash("layer_types", nil, "layer %d is %q: only full_attention and linear_attention are supported", i, clip(kind))
		}
	}
	return func(i int) bool { return i < len(kinds) && slices.Contains(names, kinds[i]) }
}
