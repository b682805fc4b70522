package model

import (
	"strconv"
	"strings"
)

// Names are the tensors outside the layers.
type Names struct {
	Embed string // [Vocab, Hidden]
	Norm  string // [Hidden]
	Head  string // [Vocab, Hidden]; the same as Embed when the embedding is tied
}

// FFNNames are the matrices of one SwiGLU network.
type FFNNames struct{ Gate, Up, Down string }

// LayerNames are the tensors of one layer, its experts aside; a tensor the
// layer does not have is "". Shapes are [out, in]; H hidden, n heads, kv key
// heads, d head size.
type LayerNames struct {
	InputNorm string // [H]
	PostNorm  string // [H]

	Q      string // [n*(nope+rope), H] without query compression; GQA: [n*d, H]
	QA     string // [QRank, H]
	QANorm string // [QRank]
	QB     string // [n*(nope+rope), QRank]
	KVA    string // [KVRank+rope, H]
	KVNorm string // [KVRank]
	KVB    string // [n*(nope+v), KVRank]
	O      string // [H, n*v]; GQA: [H, n*d]

	K, V         string // [kv*d, H], GQA
	QBias        string // [n*d]
	KBias, VBias string // [kv*d]

	Dense  FFNNames // [DenseFF, H], [DenseFF, H], [H, DenseFF]
	Router string   // [Experts, H]
	Shared FFNNames // [Shared*FF, H], [Shared*FF, H], [H, Shared*FF]
}

// Names gives the tensors outside the layers.
func (c *Config) Names() Names {
	n := Names{Embed: "model.embed_tokens.weight", Norm: "model.norm.weight", Head: "lm_head.weight"}
	if c.TieEmbed {
		n.Head = n.Embed
	}
	return n
}

// LayerNames gives the tensors of layer i, counted from 0.
func (c *Config) LayerNames(i int) LayerNames {
	layer := layerPrefix(i)
	n := LayerNames{
		InputNorm: layer + "input_layernorm.weight",
		PostNorm:  layer + "post_attention_layernorm.weight",
	}
	if c.Attention.Kind == AttentionGQA {
		n.gqa(layer+"self_attn.", c.Attention)
	} else {
		n.mla(layer+"self_attn.", c.Attention)
	}
	if !c.MoELayer(i) {
		n.Dense = ffnNames(layer + "mlp.")
		return n
	}
	n.Router = layer + "mlp.gate.weight"
	if c.MoE.Shared > 0 {
		n.Shared = ffnNames(layer + "mlp.shared_experts.")
	}
	return n
}

func (n *LayerNames) mla(attn string, a Attention) {
	n.KVA = attn + "kv_a_proj_with_mqa.weight"
	n.KVNorm = attn + "kv_a_layernorm.weight"
	n.KVB = attn + "kv_b_proj.weight"
	n.O = attn + "o_proj.weight"
	if a.QRank == 0 {
		n.Q = attn + "q_proj.weight"
	} else {
		n.QA, n.QANorm, n.QB = attn+"q_a_proj.weight", attn+"q_a_layernorm.weight", attn+"q_b_proj.weight"
	}
}

func (n *LayerNames) gqa(attn string, a Attention) {
	n.Q, n.K, n.V, n.O = attn+"q_proj.weight", attn+"k_proj.weight", attn+"v_proj.weight", attn+"o_proj.weight"
	if a.QKVBias {
		n.QBias, n.KBias, n.VBias = attn+"q_proj.bias", attn+"k_proj.bias", attn+"v_proj.bias"
	}
}

// ExpertNames gives the matrices of one routed expert: [FF, H], [FF, H], [H, FF].
func (c *Config) ExpertNames(layer, expert int) FFNNames {
	return ffnNames(layerPrefix(layer) + "mlp.experts." + strconv.Itoa(expert) + ".")
}

func layerPrefix(i int) string { return "model.layers." + strconv.Itoa(i) + "." }

func ffnNames(prefix string) FFNNames {
	return FFNNames{Gate: prefix + "gate_proj.weight", Up: prefix + "up_proj.weight", Down: prefix + "down_proj.weight"}
}

// ignored reports whether a tensor may be present without being used: rotary
// tables are made from the config, and a tied head is the embedding.
func (c *Config) ignored(name string) bool {
	return strings.HasSuffix(name, ".rotary_emb.inv_freq") || c.TieEmbed && name == "lm_head.weight"
}
