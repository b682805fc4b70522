package model

import (
	"maps"
	"strconv"
	"strings"
)

// Draft is the layer with which a model predicts one token further ahead (multi-token prediction; arXiv
// 2412.19437, section 2.2). Row t enters it as join * [norm(embedding of token t+1) | norm(h)]; the model's head
// multiplies h [H] for token t. Its logits are of token t+2. The layer sees the rows before.
type Draft struct {
	Layer LayerSpec
	Roles Roles // beside the layer: embed, embed_norm, hidden_norm, join [H, 2H], norm and head
}

// DraftModel returns the config of the draft layer as a model of one layer, whose tensors are in the same files;
// nil: the model has none. The embedding and the head may be those of the model. Matrices that are packed
// need a store of their own: the layer counts as layer 0.
func (c *Config) DraftModel() *Config {
	if c.Draft == nil {
		return nil
	}
	d := *c
	d.Draft, d.Joined, d.Layers, d.Roles = nil, true, []LayerSpec{c.Draft.Layer}, c.Draft.Roles
	d.TieEmbed = d.Roles["head"] == d.Roles["embed"]
	d.Foreign = []string{""} // the rest of the files
	return &d
}

// joinTensors lists what makes the rows that enter a draft layer. They stay as the files have them, like a router.
func (c *Config) joinTensors() (list []TensorSpec) {
	for _, t := range []TensorSpec{
		{Role: "embed_norm", Shape: []int{c.Hidden}, Norm: true},
		{Role: "hidden_norm", Shape: []int{c.Hidden}, Norm: true},
		{Role: "join", Shape: []int{c.Hidden, 2 * c.Hidden}},
	} {
		t.Name, t.Part = c.Roles[t.Role], Router
		list = append(list, t)
	}
	return list
}

// nextLayers counts n layers behind the others as foreign: they predict tokens further ahead
// (num_nextn_predict_layers).
func (c *Config) nextLayers(n int) {
	for i := range n {
		c.Foreign = append(c.Foreign, c.nextLayer(i))
	}
}

// nextLayer returns the prefix of layer i behind the others.
func (c *Config) nextLayer(i int) string {
	return strings.Replace(c.Roles["layer"], "*", strconv.Itoa(len(c.Layers)+i), 1)
}

// deepSeekDraft returns the first of DeepSeek-V3's layers behind the others, which has an embedding and a head of its own.
func (c *Config) deepSeekDraft(m Mixer, ffn FFN) *Draft {
	p := c.nextLayer(0)
	return &Draft{LayerSpec{Mixer: m, FFN: ffn, Prefix: p, Roles: c.Roles}, Roles{
		"embed": p + "embed_tokens.weight", "embed_norm": p + "enorm.weight", "hidden_norm": p + "hnorm.weight",
		"join": p + "eh_proj.weight", "norm": p + "shared_head.norm.weight", "head": p + "shared_head.head.weight",
	}}
}

// qwenDraft returns the first of Qwen3.5's draft layers (mtp), which has the embedding and the head of the model.
func (c *Config) qwenDraft(m Mixer, roles Roles, ffn FFN) *Draft {
	top := c.Names()
	return &Draft{LayerSpec{Mixer: m, FFN: ffn, Prefix: "mtp.layers.0.", Roles: roles}, Roles{
		"embed": top.Embed, "embed_norm": "mtp.pre_fc_norm_embedding.weight", "hidden_norm": "mtp.pre_fc_norm_hidden.weight",
		"join": "mtp.fc.weight", "norm": "mtp.norm.weight", "head": top.Head,
	}}
}

// rename gives the tensors other names, as a model has them whose config is within another's.
func (c *Config) rename(to func(name string) string) {
	c.Roles = maps.Clone(c.Roles)
	for _, role := range []string{"embed", "norm", "head", "layer", "end_hc_norm", "end_hc_down", "end_hc_up"} {
		if name, ok := c.Roles[role]; ok {
			c.Roles[role] = to(name)
		}
	}
	for i := range c.Layers {
		c.Layers[i].Prefix = to(c.Layers[i].Prefix)
	}
	for i, name := range c.Foreign {
		c.Foreign[i] = to(name)
	}
	if d := c.Draft; d != nil {
		d.Layer.Prefix = to(d.Layer.Prefix)
		for role, name := range d.Roles {
			d.Roles[role] = to(name)
		}
	}
}
