package model

import (
	"math"
	"slices"

	"krater/kernels/device"
)

var (
	_ = register("glm5_next", parseGLM5Next)
	_ = register("glm5_next_text", parseGLM5NextText)
)

// Names of GLM-5.3's tensors: of layers with latent attention, and of those with KDA.
var (
	glm5NextRoles    = Usual(mlaRoles, indexerRoles, mixedRoles)
	glm5NextKDARoles = Usual(kdaRoles, mixedRoles)
)

// Bounds of GLM-5.3: releases have pools of 4 tokens, 4 streams that are mixed 20 times, and decays of at least exp(-5).
const (
	maxPool       = 1 << 10
	maxIterations = 1 << 8
	maxFloor      = 64
)

// parseGLM5Next reads the GLM-5.3 family for text and images (GLM-5.3-Flash).
func parseGLM5Next(f fields) *Config { return qwen35Text(f, "glm5_next_text", parseGLM5NextText) }

// parseGLM5NextText reads a model that is stored without the part for images: Kimi Delta Attention in most
// layers, in the others latent attention without positions over pools of tokens that an indexer chooses; residual
// streams that are mixed; SwiGLU with a limit in all networks. Layers that predict tokens further ahead are not run.
func parseGLM5NextText(f fields) *Config {
	c, layers := common(f)
	for _, name := range []string{"mhc", "mla_use_nope", "index_kpool_compress", "index_kpool_always_select_tail"} {
		if !f.boolOr(name, true) {
			f.fail(name, "false is not supported")
		}
	}
	c.Streams = Streams{Count: f.int("hc_mult", 1, maxStreams), MeanEnd: true, Eps: float32(f.float("hc_eps", 0, 1)),
		Iterations: f.int("hc_sinkhorn_iters", 1, maxIterations)}
	act := device.Activation{Limit: float32(f.float("swiglu_limit", 1e-3, 1e6))}
	dense := denseFF(f)
	dense.Act = act
	f.oneOf("scoring_func", "sigmoid", "sigmoid")
	f.oneOf("topk_method", "noaux_tc", "noaux_tc")
	f.oneOf("moe_router_dtype", "float32", "float32")
	moe, has := deepSeekMoE(f, layers, sigmoidRouter)
	moe.Act = act
	full := linearLayers(f, layers, "deepseek_sparse_attention", "indexed_attention") // the release's name, transformers'
	f.require("layer_types")
	networks(f, layers, has)
	a, linear := pooledLatent(f, c), DeltaNet{kdaSizes(f), c.NormEps}
	at := mixed(a, dense, moe, has)
	c.Stack(layers, glm5NextRoles, func(i int) (Mixer, FFN) {
		m, ffn := at(i)
		if !full(i) {
			m = linear
		}
		return m, ffn
	})
	for i := range c.Layers {
		if !full(i) {
			c.Layers[i].Roles = glm5NextKDARoles
		}
	}
	c.nextLayers(f.intOr("num_nextn_predict_layers", 0, 0, maxLayers))
	return c
}

// pooledLatent reads latent attention without positions, whose indexer chooses pools of tokens.
func pooledLatent(f fields, c *Config) MLA {
	f.refuseBias("attention_bias")
	a := mlaSizes(f, 0)
	if a.RopeDim > 0 {
		f.clash("qk_rope_head_dim", nil, "%d is not supported: only 0, no positions", a.RopeDim)
	}
	a.RopeDim, a.LatentEps, a.Scale = 0, c.NormEps, float32(1/math.Sqrt(float64(a.Nope)))
	a.Index = indexer(f, a, false)
	a.Index.Interleaved = false // nothing is rotated
	const pool, topK = "index_kpool", "index_topk"
	a.Index.Pool = f.int(pool, 1, maxPool)
	if a.Index.TopK%a.Index.Pool != 0 {
		f.clash(topK, []string{pool}, "%d is no multiple of %s %d", a.Index.TopK, pool, a.Index.Pool)
	}
	a.Index.TopK = max(1, a.Index.TopK/a.Index.Pool)
	if kinds := f.strings("indexer_types", maxLayers); slices.ContainsFunc(kinds, func(kind string) bool { return kind != "full" }) {
		f.fail("indexer_types", "only full is supported: each layer with latent attention has an indexer")
	}
	return a
}

// kdaSizes reads the sizes of Kimi Delta Attention. transformers repeats them beside the release's object.
func kdaSizes(f fields) device.DeltaNet {
	const object = "linear_attn_config"
	x, ok := f.object(object)
	if !ok {
		f.require(object)
		return device.DeltaNet{KeyHeads: 1, ValueHeads: 1, KeyDim: 1, ValueDim: 1, Taps: 2, Floor: -1} // harmless
	}
	p := device.DeltaNet{
		KeyHeads: x.int("num_heads", 1, maxHeads), KeyDim: x.int("head_dim", 1, maxHeadDim), Taps: x.int("short_conv_kernel_size", 2, maxTaps),
		Floor: float32(x.float("gate_lower_bound", -maxFloor, -1e-3)), SigmoidGate: true,
	}
	p.ValueHeads, p.ValueDim = p.KeyHeads, p.KeyDim
	return p
}
