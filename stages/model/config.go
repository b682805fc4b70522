// Package model turns a config.json of any family into one Config. Nothing in
// it is tied to a single model: families differ in the values only.
package model

import (
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// Config is what the rest of the program knows about a model. Sizes are in
// elements, counts in pieces. The comment names the config.json field.
type Config struct {
	Family     string // the model_type: "deepseek_v2", "qwen2"
	Layers     int    // num_hidden_layers
	Hidden     int    // hidden_size
	Vocab      int    // vocab_size
	MaxContext int    // max_position_embeddings
	NormEps    float32
	TieEmbed   bool         // tie_word_embeddings
	DType      tensor.DType // torch_dtype or dtype, Invalid when absent: what most weights are stored as

	Attention Attention
	Rope      RopeConfig
	DenseFF   int // intermediate_size
	MoE       MoE

	BOS int32   // bos_token_id, -1 when absent
	EOS []int32 // eos_token_id, one or several
	Pad int32   // -1 when absent
}

// AttentionKind selects the attention stage.
type AttentionKind uint8

const (
	AttentionMLA AttentionKind = iota // multi-head latent attention
	AttentionGQA                      // grouped-query attention; multi-head and multi-query are cases of it
)

// Attention holds the sizes of the attention block.
type Attention struct {
	Kind  AttentionKind
	Heads int // num_attention_heads
	// GQA only.
	KVHeads int  // num_key_value_heads
	HeadDim int  // head_dim, else hidden_size / num_attention_heads
	QKVBias bool // q_proj, k_proj and v_proj have biases (o_proj has none)
	// MLA only.
	QRank     int     // q_lora_rank, 0 = direct q_proj
	KVRank    int     // kv_lora_rank
	Nope      int     // qk_nope_head_dim
	RopeDim   int     // qk_rope_head_dim
	VDim      int     // v_head_dim
	LatentEps float32 // eps of q_a_layernorm and kv_a_layernorm

	Scale float32 // softmax scale with YaRN's mscale(mscale_all_dim)^2
}

// KVWidth is the number of values a token adds to the KV cache of one layer.
func (a Attention) KVWidth() int {
	if a.Kind == AttentionGQA {
		return 2 * a.KVHeads * a.HeadDim
	}
	return a.KVRank + a.RopeDim
}

// KVGroup is the number of values of a cached row that share a scale where the
// cache is kept as INT8: a head, or what divides both the compressed and the
// rotated part.
func (a Attention) KVGroup() int {
	if a.Kind == AttentionGQA {
		return a.HeadDim
	}
	x, y := a.KVRank, a.RopeDim
	for y != 0 {
		x, y = y, x%y
	}
	return x
}

// QKDim is the length of one query or key head.
func (a Attention) QKDim() int {
	if a.Kind == AttentionGQA {
		return a.HeadDim
	}
	return a.Nope + a.RopeDim
}

// OutDim is the length of the attention output that o_proj takes.
func (a Attention) OutDim() int {
	if a.Kind == AttentionGQA {
		return a.Heads * a.HeadDim
	}
	return a.Heads * a.VDim
}

// RopeConfig holds what the cos/sin tables are made from.
type RopeConfig struct {
	Dim         int
	Theta       float64
	Interleaved bool
	InvFreq     []float64 // [Dim/2], after scaling (YaRN, linear, NTK)
	CosSinScale float64   // attention factor on cos and sin
}

// MoE holds the sizes of the mixture of experts; Experts == 0 means dense.
type MoE struct {
	Experts    int // n_routed_experts
	Shared     int // n_shared_experts
	FF         int // moe_intermediate_size
	FirstDense int // first_k_dense_replace: layers before it are dense
	LayerFreq  int // moe_layer_freq
	Router     device.Router
}

// MoELayer reports whether layer i (from 0) has experts.
func (c *Config) MoELayer(i int) bool {
	return c.MoE.Experts > 0 && i >= c.MoE.FirstDense && i%max(1, c.MoE.LayerFreq) == 0
}
