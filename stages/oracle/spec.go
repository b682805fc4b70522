package oracle

import (
	"reflect"
	"slices"
	"strings"

	"krater/kernels/device"
	"krater/stages/model"
)

// Spec describes a layer to the definitions: sizes, and tensors by role. Fields of other kinds of
// attention or networks are zero.
type Spec struct {
	Heads  int
	QKDim  int     // of a query or key head
	OutDim int     // of a head in the output of attention
	Scale  float64 // of the scores
	Rope   model.RopeConfig

	KVHeads, HeadDim int // of grouped-query attention
	Window           int // how many tokens a token sees; 0: all
	Sinks            bool
	Gated            bool // the output has gates, which come with the queries
	QNorm, KNorm     int  // how many values are normed at once

	QRank, KVRank, Nope, RopeDim, VDim int // latent attention
	LatentEps                          float64
	Indexer                            model.Indexer

	Delta    device.DeltaNet // gated DeltaNet
	DeltaEps float64         // of the norm of its output

	NormsAfter, OwnNorms bool             // model.LayerSpec.NormsAfter, model.MoE.OwnNorms
	PerLayer             int              // model.LayerSpec.PerLayer
	ValueNorm            bool             // of grouped-query attention
	KV                   int              // the layer whose keys and values are read
	Borrows              bool             // that is another layer
	Streams              model.Streams    // residual streams, if there are several
	NGrams               *model.NGrams    // the layer's table; nil: none
	Blocks               model.BlockIndex // of grouped-query attention

	Routed        bool // a mixture of experts
	Dense, Shared model.FFNNames

	mixer  mixer  // nil: not defined here
	prefix string // of the names
	names  map[string]string
}

// definitions holds the definition of each type of mixer.
var definitions = map[reflect.Type]func(s *Spec, m any) mixer{}

// define registers the definition of mixers of type M: f enters the mixer's sizes into s.
func define[M model.Mixer](f func(s *Spec, m M) mixer) bool {
	definitions[reflect.TypeFor[M]()] = func(s *Spec, m any) mixer { return f(s, m.(M)) }
	return true
}

// specOf reads a layer of a config. Layer -1 stands for the parts outside the layers.
func specOf(cfg *model.Config, layer int) Spec {
	if layer < 0 {
		n := cfg.Names()
		s := Spec{Streams: cfg.Streams, PerLayer: cfg.PerLayer, names: map[string]string{"embed": n.Embed, "head": n.Head,
			"embed_norm": n.EmbedNorm, "hidden_norm": n.HiddenNorm, "join": n.Join,
			"per_layer_embed": n.PerLayer, "per_layer_model_proj": n.PerLayerProj, "per_layer_model_norm": n.PerLayerNorm}}
		for _, t := range cfg.Outer() {
			s.names[t.Role] = t.Name
		}
		return s
	}
	l := &cfg.Layers[layer]
	s := Spec{prefix: l.Prefix, names: map[string]string{}, Routed: l.FFN.Routed() > 0,
		NormsAfter: l.NormsAfter, PerLayer: l.PerLayer, KV: l.KV, Streams: l.Streams, NGrams: l.NGrams}
	s.OwnNorms = s.Routed && cfg.MoE.OwnNorms
	for _, t := range slices.Concat(l.Mixer.Tensors(cfg.Hidden), l.FFN.Tensors(cfg.Hidden), l.Blocks(cfg.Hidden)) {
		s.names[t.Role] = l.Name(t.Role)
	}
	s.Dense, s.Shared = s.network(""), s.network("shared.")
	if r := l.Mixer.Rotary(); r != nil {
		s.Rope = *r
	}
	if define := definitions[reflect.TypeOf(l.Mixer)]; define != nil {
		s.mixer = define(&s, l.Mixer)
	}
	return s
}

// network returns the matrices whose roles start with prefix.
func (s *Spec) network(prefix string) model.FFNNames {
	return model.FFNNames{Gate: s.names[prefix+"gate"], Up: s.names[prefix+"up"], Down: s.names[prefix+"down"]}
}

// Tensor returns the name of the tensor with a role, "" if the layer has none.
func (s *Spec) Tensor(role string) string { return s.names[role] }

// Short returns a tensor's name without its layer: "self_attn.q_proj.weight".
func (s *Spec) Short(name string) string { return strings.TrimPrefix(name, s.prefix) }

// Operators lists the operators of a layer in the order of their computation; -1 for those outside
// the layers.
func Operators(cfg *model.Config, layer int) []string {
	s := specOf(cfg, layer)
	return s.operators()
}

func (s *Spec) operators() []string {
	switch {
	case s.Tensor("join") != "":
		return []string{"embed", "embed_norm", "hidden_norm", "proj", "final_norm", "logits"}
	case s.PerLayer > 0 && s.Tensor("embed") != "":
		return []string{"embed", "per_layer_inputs", "final_norm", "logits"}
	case s.Tensor("embed") != "":
		return []string{"embed", "final_norm", "logits"}
	}
	list := []string{"ngram_rows", "ngram_embed", "ple_value", "ple_gate", "ple_conv_in", "ple_conv_state", "ple_out", "attn_hc_in", "input_norm", "attn_hc_post", "attn_hc_comb", "attn_hc_inject"}
	if s.mixer != nil {
		list = append(list, s.mixer.operators()...)
	}
	list = append(list, "mixer_raw", "mixer_out", "streams_mid", "mlp_hc_in", "post_norm", "mlp_hc_post", "mlp_hc_comb", "mlp_hc_inject")
	if s.Routed {
		list = append(list, "router_norm", "router_logits", "router_ids", "router_weights", "expert_norm", "experts_out", "shared_raw", "shared_gate_logit", "shared_out")
	}
	return slices.DeleteFunc(append(list, "mlp_raw", "mlp_out", "per_layer_out", "layer_out"), func(op string) bool {
		switch op {
		case "q_a", "q_norm", "k_norm":
			return s.Tensor(op) == ""
		case "q_resid":
			return s.QRank == 0
		case "indexer_query", "indexer_scores":
			return !s.Indexer.Own() && !s.Blocks.Chooses()
		case "index_q", "index_k", "indexer_keys":
			return !s.Indexer.Own() && s.Blocks.Local == 0
		case "index_weights", "indexer_weights":
			return !s.Indexer.Own()
		case "selected":
			return s.Indexer.TopK == 0
		case "q_and_gate", "gate", "attn_ungated":
			return !s.Gated
		case "in_proj_qkv":
			return s.Tensor("qkv") == "" && s.Delta.Floor == 0
		case "in_proj_q", "in_proj_k", "in_proj_v", "in_proj_qkvz", "in_proj_ba", "in_proj_z", "in_proj_b", "in_proj_a":
			return s.Tensor(strings.TrimPrefix(op, "in_proj_")) == ""
		case "mixer_raw", "mlp_raw":
			return !s.NormsAfter
		case "router_norm", "expert_norm":
			return !s.OwnNorms
		case "per_layer_out":
			return s.PerLayer == 0
		case "k", "v", "v_norm":
			return s.Borrows || op == "v_norm" && !s.ValueNorm
		case "ngram_rows", "ngram_embed", "ple_value", "ple_gate", "ple_conv_in", "ple_conv_state", "ple_out":
			return s.NGrams == nil
		case "attn_hc_inject", "mlp_hc_inject":
			return !s.Streams.Several() || s.Streams.Mixed()
		case "attn_hc_in", "attn_hc_post", "attn_hc_comb", "mlp_hc_in", "mlp_hc_post", "mlp_hc_comb":
			return !s.Streams.Mixed()
		case "streams_mid":
			return !s.Streams.Several()
		case "index_qk", "indexer_key_raw":
			return !s.Blocks.Chooses() || s.Blocks.Local > 0
		case "indexer_selected":
			return !s.Blocks.Chooses()
		case "indexer_block_keys":
			return (!s.Blocks.Chooses() || s.Blocks.Local > 0) && s.Indexer.Pool == 0
		case "indexer_key_gate":
			return s.Indexer.Pool == 0
		case "q_pe", "k_pe":
			return s.KVRank > 0 && s.RopeDim == 0 || op == "k_pe" && s.Borrows
		case "shared_raw", "shared_gate_logit":
			return s.Tensor("shared_gate") == ""
		}
		return op == "shared_out" && s.Shared.Gate == ""
	})
}
