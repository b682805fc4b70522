package model

import (
	"slices"
	"strings"

	"krater/kernels/device"
)

var _ = register("minimax_m3_vl", parseMiniMaxM3)

// miniMaxM3Roles are the names of MiniMax-M3's tensors.
var miniMaxM3Roles = Usual(miniMaxRoles, localIndexRoles, Roles{
	"shared.gate": "block_sparse_moe.shared_experts.gate_proj.weight",
	"shared.up":   "block_sparse_moe.shared_experts.up_proj.weight",
	"shared.down": "block_sparse_moe.shared_experts.down_proj.weight",
})

// parseMiniMaxM3 reads MiniMax-M3, a model for text, images and videos, by its text_config: grouped-query attention with
// normed heads, in most layers over blocks that an index chooses for each key head, and experts with a shared one behind
// dense layers. The vision tower is not run.
func parseMiniMaxM3(f fields) *Config {
	text, ok := f.object("text_config")
	if !ok {
		f.require("text_config")
		return nil
	}
	text.oneOf("model_type", "minimax_m3_vl_text", "minimax_m3_vl_text")
	text.refuseBias("mlp_bias")
	text.oneOf("hidden_act", "swigluoai", "swigluoai", "silu") // transformers writes the second; the function is the same
	c := miniMaxM3Text(text)
	const tie = "tie_word_embeddings"
	if outer := f.boolOr(tie, c.TieEmbed); text.has(tie) && outer != c.TieEmbed {
		f.fail(tie, "%t contradicts text_config.%s %t", outer, tie, c.TieEmbed)
	} else {
		c.TieEmbed = outer
	}
	c.rename(func(name string) string { return "language_model." + name })
	c.Foreign = append(c.Foreign, "vision_tower.", "multi_modal_projector.", "patch_merge_mlp.")
	return c
}

// miniMaxM3Text reads the language model.
func miniMaxM3Text(f fields) *Config {
	c, layers := common(f)
	c.CentredNorms = f.boolOr("use_gemma_norm", true)
	f.refuseBias("attention_bias")
	full := gqaSizes(f, c.Hidden)
	full.rotate(f, c, miniMaxRotary(f, full.HeadDim))
	f.oneOf("qk_norm_type", "per_head", "per_head")
	if full.NormEps = c.NormEps; !f.boolOr("use_qk_norm", true) {
		f.fail("use_qk_norm", "false is not supported")
	}
	full.QKNorm = true
	index, chooses := miniMaxM3Index(f, full, layers)
	sparse := full
	sparse.Index = index
	act := device.Activation{Alpha: float32(f.floatOr("swiglu_alpha", 1.702, 1e-3, 1e3)), Limit: float32(f.floatOr("swiglu_limit", 7, 1e-3, 1e6)), Shift: 1}
	dense := Dense{FF: f.int("dense_intermediate_size", 1, maxFF), Act: act}
	f.oneOf("scoring_func", "sigmoid", "sigmoid")
	moe := softmaxExperts(f, "num_local_experts", "intermediate_size", true, layers)
	moe.Router.Scoring, moe.Act = device.ScoreSigmoid, act
	moe.Router.Scale = float32(f.floatOr("routed_scaling_factor", 1, 1e-6, 1e6))
	moe.Correction = f.boolOr("use_routing_bias", true)
	if n := f.intOr("n_shared_experts", 1, 0, maxShared); n > 1 {
		f.fail("n_shared_experts", "%d is not supported: shared_intermediate_size is of one", n)
	} else if n == 1 {
		moe.SharedFF = f.int("shared_intermediate_size", 1, maxFF)
	}
	routed := layerFlags(f, "moe_layer_freq", "mlp_layer_types", "sparse", "dense", layers)
	c.Stack(layers, miniMaxM3Roles, func(i int) (Mixer, FFN) {
		a := full
		if chooses(i) {
			a = sparse
		}
		return mixed(a, dense, moe, routed)(i)
	})
	return c
}

// miniMaxM3Index reads the index, and which layers have it. The release has sparse_attention_config, transformers fields of
// their own.
func miniMaxM3Index(f fields, a GQA, layers int) (x BlockIndex, chooses func(layer int) bool) {
	x.NormEps = a.NormEps
	heads, dim, block, topK, local := "index_n_heads", "index_head_dim", "index_block_size", "index_topk_blocks", "index_local_blocks"
	p, freq := f, "sparse_attention_freq"
	if s, ok := f.object("sparse_attention_config"); ok {
		p, heads, dim, block, topK, local = s, "sparse_num_index_heads", "sparse_index_dim", "sparse_block_size", "sparse_topk_blocks", "sparse_local_block"
		p.oneOf("sparse_score_type", "max", "max")
		if p.intOr("sparse_init_block", 0, 0, maxIndexBudget) != 0 {
			p.fail("sparse_init_block", "is not supported: only the newest blocks are always chosen")
		}
		if !p.boolOr("use_sparse_attention", true) {
			return BlockIndex{}, func(int) bool { return false }
		}
	}
	x.Heads, x.Dim = p.int(heads, 1, maxHeads), p.int(dim, 2, maxHeadDim)
	x.Block, x.Chosen, x.Local = p.int(block, 1, maxIndexBlock), p.int(topK, 1, maxIndexBudget), p.int(local, 1, maxIndexBudget)
	switch {
	case x.Local > x.Chosen:
		p.clash(local, []string{topK}, "%d is more than %s %d", x.Local, topK, x.Chosen)
	case x.Heads != a.KVHeads:
		p.clash(heads, []string{"num_key_value_heads"}, "%d is not num_key_value_heads %d: that is not supported", x.Heads, a.KVHeads)
	case x.Dim < a.Rope.Dim:
		p.clash(dim, []string{"rotary_dim"}, "%d is less than the %d values that are rotated", x.Dim, a.Rope.Dim)
	}
	chooses = layerFlags(p, freq, "layer_types", "minimax_m3_sparse", "full_attention", layers)
	const disable = "sparse_disable_index_value"
	for i, off := range p.flags(disable, maxLayers) {
		if !off && chooses(i) {
			p.fail(disable, "layer %d has values of its index: they are not supported", i)
			break
		}
	}
	return x, chooses
}

// layerFlags reads which layers are of a kind: a list of 0 and 1 in the release, of names in transformers. Either has to be there.
func layerFlags(f fields, flags, names, yes, no string, layers int) func(layer int) bool {
	var is []bool
	name := names
	if f.has(flags) {
		name, is = flags, f.flags(flags, maxLayers)
	} else if f.require(names) {
		for i, kind := range f.strings(names, maxLayers) {
			if !slices.Contains([]string{yes, no}, kind) {
				f.fail(names, "layer %d is %q: only %s are supported", i, clip(kind), strings.Join([]string{yes, no}, " and "))
			}
			is = append(is, kind == yes)
		}
	}
	if len(is) != layers && !f.bad(name) {
		f.clash(name, []string{"num_hidden_layers"}, "has %d entries for num_hidden_layers %d", len(is), layers)
	}
	return func(i int) bool { return i < len(is) && is[i] }
}
