package model

import (
	"slices"
	"strings"
)

// Names are the tensors outside the layers.
type Names struct {
	Embed string // [Vocab, Hidden]
	Norm  string // [Hidden]
	Head  string // [Vocab, Hidden]; the same as Embed when the embedding is tied

	EmbedNorm, HiddenNorm, Join string // of a draft layer (Draft); "" in others

	// Of the rows for single layers, see Config.PerLayer.
	PerLayer     string // [Vocab, layers*PerLayer]
	PerLayerProj string // [layers*PerLayer, Hidden]
	PerLayerNorm string // [PerLayer]
}

// FFNNames are the matrices of one SwiGLU network: [FF, H], [FF, H], [H, FF]; and their biases, "" where it has none.
type FFNNames struct {
	Gate, Up, Down             string
	GateBias, UpBias, DownBias string
}

// Names returns the names of the tensors outside the layers.
func (c *Config) Names() Names {
	n := Names{Embed: c.Roles["embed"], Norm: c.Roles["norm"], Head: c.Roles["head"],
		PerLayer: c.Roles["per_layer_embed"], PerLayerProj: c.Roles["per_layer_model_proj"], PerLayerNorm: c.Roles["per_layer_model_norm"]}
	if c.Joined {
		n.EmbedNorm, n.HiddenNorm, n.Join = c.Roles["embed_norm"], c.Roles["hidden_norm"], c.Roles["join"]
	}
	if c.TieEmbed {
		n.Head = n.Embed
	}
	return n
}

// FFNNames returns the names of the matrices of the layer's network whose roles start with prefix: ""
// for a dense network, "shared." for the shared experts.
func (l *LayerSpec) FFNNames(prefix string) FFNNames {
	return FFNNames{Gate: l.Name(prefix + "gate"), Up: l.Name(prefix + "up"), Down: l.Name(prefix + "down")}
}

// ExpertNames returns the names of the matrices of a routed expert.
func (c *Config) ExpertNames(layer, expert int) FFNNames {
	l := &c.Layers[layer]
	n := FFNNames{Gate: l.Expert("expert.gate", expert), Up: l.Expert("expert.up", expert), Down: l.Expert("expert.down", expert)}
	if c.MoE.Biases {
		n.GateBias, n.UpBias, n.DownBias = l.Expert("expert.gate_bias", expert), l.Expert("expert.up_bias", expert), l.Expert("expert.down_bias", expert)
	}
	return n
}

// ignored reports whether a tensor may be present without being used: rotary
// tables are made from the config, and a tied head is the embedding.
func (c *Config) ignored(name string) bool {
	return strings.HasSuffix(name, ".rotary_emb.inv_freq") || c.TieEmbed && name == c.Roles["head"] ||
		slices.ContainsFunc(c.Foreign, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}
