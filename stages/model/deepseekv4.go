package model

import (
	json "encoding/json/v2"
	"slices"

	"krater/kernels/device"
)

var _ = register("deepseek_v4", parseDeepSeekV4)

// deepSeekV4Roles are the names of DeepSeek-V4's tensors.
var deepSeekV4Roles = Usual(compressedRoles, mixedRoles, Roles{
	"embed": "embed.weight",
	"norm":  "norm.weight",
	"head":  "head.weight",
	"layer": "layers.*.",

	"input_norm": "attn_norm.weight",
	"post_norm":  "ffn_norm.weight",

	"end_hc_fn":    "hc_head_fn",
	"end_hc_base":  "hc_head_base",
	"end_hc_scale": "hc_head_scale",

	"router":        "ffn.gate.weight",
	"correction":    "ffn.gate.bias",
	"token_experts": "ffn.gate.tid2eid",
	"expert.gate":   "ffn.experts.*.w1.weight",
	"expert.up":     "ffn.experts.*.w3.weight",
	"expert.down":   "ffn.experts.*.w2.weight",
	"shared.gate":   "ffn.shared_experts.w1.weight",
	"shared.up":     "ffn.shared_experts.w3.weight",
	"shared.down":   "ffn.shared_experts.w2.weight",
})

const (
	// maxRatio bounds compress_ratios; released models have 4 and 128.
	maxRatio = 1 << 12
	// overlapRatio is the ratio of the layers whose entries overlap and are chosen by an index.
	overlapRatio = 4
	maxSinkhorn  = 1 << 10
)

// parseDeepSeekV4 reads DeepSeek-V4: residual streams that are mixed, attention over the newest tokens and compressed
// entries, and experts in every layer, in the first ones by a table of tokens. The layers of mtp are not run.
func parseDeepSeekV4(f fields) *Config {
	c, layers := common(f)
	f.refuseBias("attention_bias")
	c.Foreign = []string{"mtp."}
	c.Streams = Streams{
		Count: f.int("hc_mult", 1, maxStreams), Iterations: f.int("hc_sinkhorn_iters", 1, maxSinkhorn), Eps: float32(f.float("hc_eps", 0, 1)),
	}
	a := Compressed{
		Heads: f.int("num_attention_heads", 1, maxHeads), HeadDim: f.int("head_dim", 2, maxHeadDim), RopeDim: f.int("qk_rope_head_dim", 2, maxHeadDim),
		QRank: f.int("q_lora_rank", 1, maxRank), Groups: f.int("o_groups", 1, maxHeads), OutRank: f.int("o_lora_rank", 1, maxRank),
		Window: f.int("sliding_window", 1, maxContext), NormEps: c.NormEps,
	}
	switch {
	case a.RopeDim > a.HeadDim || a.RopeDim%2 != 0:
		f.clash("qk_rope_head_dim", []string{"head_dim"}, "%d of heads of %d: rotation needs pairs of them", a.RopeDim, a.HeadDim)
	case a.Heads%a.Groups != 0:
		f.clash("o_groups", []string{"num_attention_heads"}, "%d does not divide num_attention_heads %d", a.Groups, a.Heads)
	case f.intOr("num_key_value_heads", 1, 1, maxHeads) != 1:
		f.clash("num_key_value_heads", nil, "only 1 is supported: all heads share a row")
	}
	index := Indexer{Heads: f.int("index_n_heads", 1, maxHeads), Dim: f.int("index_head_dim", 2, maxHeadDim), TopK: f.int("index_topk", 1, maxSelection)}
	if index.Dim < a.RopeDim {
		f.clash("index_head_dim", []string{"qk_rope_head_dim"}, "%d is less than qk_rope_head_dim %d, which are rotated", index.Dim, a.RopeDim)
	}
	plain, compress := deepSeekV4Ropes(f, a.RopeDim, c.MaxContext)
	ratio := compressRatios(f, layers)
	moe := deepSeekV4MoE(f, layers)
	byToken := moe
	byToken.Correction, byToken.Vocab = false, c.Vocab
	hashed := hashLayers(f, layers)
	c.Stack(layers, deepSeekV4Roles, func(i int) (Mixer, FFN) {
		m, ffn := a, moe
		m.Rope = plain
		if m.Ratio = ratio(i); m.Ratio > 0 {
			m.Rope = compress
		}
		if m.Ratio == overlapRatio {
			m.Overlap, m.Index = true, index
		}
		if hashed(i) {
			ffn = byToken
		}
		return m, ffn
	})
	return c
}

// compressRatios reads the ratio of each layer: compress_ratios, which may go on for the layers of mtp, or transformers' layer_types
// and compress_rates.
func compressRatios(f fields, layers int) func(layer int) int {
	const name, kinds = "compress_ratios", "layer_types"
	var list []int
	switch types := f.strings(kinds, maxLayers); {
	case f.has(name):
		if json.Unmarshal(f.raw[name], &list) != nil || len(list) < layers || len(list) > 2*maxLayers {
			f.clash(name, []string{"num_hidden_layers"}, "want a ratio for each of %d layers, got %s", layers, clip(string(f.raw[name])))
		}
	case len(types) != layers:
		f.require(name)
	case f.require("compress_rates"):
		rates, ok := f.object("compress_rates")
		if !ok {
			break
		}
		for _, kind := range types {
			switch kind {
			case "sliding_attention":
				list = append(list, 0)
			case "compressed_sparse_attention", "heavily_compressed_attention":
				list = append(list, rates.int(kind, 1, maxRatio))
				if n := list[len(list)-1]; (n == overlapRatio) != (kind == "compressed_sparse_attention") {
					rates.fail(kind, "%d is not supported: entries overlap and are chosen where the ratio is %d, and nowhere else", n, overlapRatio)
				}
			default:
				f.fail(kinds, "%q is not supported", clip(kind))
				list = append(list, 0)
			}
		}
	}
	for _, n := range list {
		if n < 0 || n > maxRatio {
			f.fail(name, "%d is outside 0 to %d", n, maxRatio)
		}
	}
	return func(i int) int {
		if i >= len(list) || f.failed() {
			return 0
		}
		return list[i]
	}
}

// deepSeekV4Ropes reads the rotation of layers without entries, which is never scaled, and of the others. YaRN changes frequencies
// alone here.
func deepSeekV4Ropes(f fields, dim, context int) (plain, compress *RopeConfig) {
	read := func(theta float64) *RopeConfig {
		return &RopeConfig{Dim: dim, Theta: theta, Interleaved: true, CosSinScale: 1, InvFreq: inverseFrequencies(dim, theta)}
	}
	const lo, hi = 1.001, 1e12
	plain, compress = read(f.float("rope_theta", lo, hi)), read(f.float("compress_rope_theta", lo, hi))
	scaling, ok := f.object("rope_scaling")
	if p, given := f.object("rope_parameters"); given { // transformers 5 has both there
		main, _ := p.object("main")
		other, _ := p.object("compress")
		if main.floatOr("rope_theta", plain.Theta, lo, hi) != plain.Theta {
			f.fail("rope_parameters.main", "rope_theta contradicts rope_theta %g", plain.Theta)
		}
		if other.floatOr("rope_theta", compress.Theta, lo, hi) != compress.Theta {
			f.fail("rope_parameters.compress", "rope_theta contradicts compress_rope_theta %g", compress.Theta)
		}
		if kind := main.stringOr("rope_type", "default"); kind != "default" {
			f.fail("rope_parameters.main", "rope_type %q is not supported", clip(kind))
		}
		scaling, ok = other, other.stringOr("rope_type", "default") != "default"
	}
	if !ok || f.failed() {
		return plain, compress
	}
	if kind := ropeKind(scaling); kind != "yarn" {
		if kind != "default" {
			scaling.fail("type", "%q is not supported", clip(kind))
		}
		return plain, compress
	}
	y := parseYarn(scaling)
	if scaling.floatOr("attention_factor", 1, 1e-3, 1e3) != 1 {
		scaling.fail("attention_factor", "only 1 is supported")
	}
	if y.original > float64(context) {
		f.clash("max_position_embeddings", []string{"rope_scaling.original_max_position_embeddings"}, "%d is less than the original %g", context, y.original)
	}
	y.scaleFrequencies(compress)
	return plain, compress
}

// deepSeekV4MoE reads the experts of layers whose router chooses them.
func deepSeekV4MoE(f fields, layers int) MoE {
	m := MoE{Experts: f.int("n_routed_experts", 1, maxExperts), FF: f.int("moe_intermediate_size", 1, maxFF), Correction: true}
	m.SharedFF = m.FF * f.int("n_shared_experts", 0, maxShared)
	m.Act = device.Activation{Limit: float32(f.float("swiglu_limit", 1e-3, 1e6))}
	f.oneOf("scoring_func", "sqrtsoftplus", "sqrtsoftplus")
	f.oneOf("topk_method", "noaux_tc", "noaux_tc")
	if !f.boolOr("norm_topk_prob", true) {
		f.fail("norm_topk_prob", "false is not supported")
	}
	m.Router = device.Router{
		Experts: m.Experts, TopK: f.int("num_experts_per_tok", 1, maxExperts), Scoring: device.ScoreSqrtSoftplus, Normalize: true,
		Scale: float32(f.float("routed_scaling_factor", 1e-6, 1e6)),
	}
	f.checkExperts(m, "n_routed_experts", "num_experts_per_tok", layers)
	return m
}

// hashLayers reads which layers have a table of experts: the first num_hash_layers, or those that transformers' mlp_layer_types names.
func hashLayers(f fields, layers int) func(layer int) bool {
	const name, kinds = "num_hash_layers", "mlp_layer_types"
	types := f.strings(kinds, maxLayers)
	if f.has(name) || len(types) != layers {
		n := f.int(name, 0, maxLayers)
		return func(i int) bool { return i < n }
	}
	for _, kind := range types {
		if !slices.Contains([]string{"moe", "hash_moe"}, kind) {
			f.fail(kinds, "%q is not supported", clip(kind))
		}
	}
	return func(i int) bool { return types[i] == "hash_moe" }
}
