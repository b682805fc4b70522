package model

import (
	"math"

	"krater/kernels/device"
)

// Sizes reads a config.json of a family that cannot be run, or of one that nobody knows,
// as far as planning memory and time goes: layers, attention and experts under the names
// that published models use. The result must not be loaded. full is the number of
// layers that see the whole context; others keep little for each token.
//
// A family that can be run is Parse's. What is missing is a *FieldError, as there.
func Sizes(configJSON []byte) (c *Config, full int, err error) {
	f, err := readFields(configJSON)
	if err != nil {
		return nil, 0, err
	}
	if text, ok := f.object("text_config"); ok && !f.has("num_hidden_layers") {
		f = text
	}
	c = &Config{
		Family:     f.stringOr("model_type", ""),
		Layers:     f.int("num_hidden_layers", 1, maxLayers),
		Hidden:     f.int("hidden_size", 1, maxHidden),
		Vocab:      f.int("vocab_size", 1, maxVocab),
		MaxContext: f.int("max_position_embeddings", 1, maxContext),
		TieEmbed:   f.boolOr("tie_word_embeddings", false),
		DType:      dtype(f),
		BOS:        -1, Pad: -1,
	}
	c.MoE = sizesMoE(f, c.Layers)
	c.DenseFF = f.intOr("intermediate_size", max(1, c.MoE.FF), 1, maxFF)
	if f.has("kv_lora_rank") {
		c.Attention = deepSeekAttention(f)
		c.Rope.Dim = c.Attention.RopeDim
	} else {
		c.Attention = qwenAttention(f, c.Hidden)
		c.Rope.Dim = c.Attention.HeadDim
	}
	full = fullLayers(f, c.Layers)
	if f.failed() {
		return nil, 0, joinErrors(*f.errs, 0)
	}
	c.Attention.Scale = float32(1 / math.Sqrt(float64(c.Attention.QKDim())))
	return c, full, nil
}

// firstOf is the first of several names of a field that is there, the first of all if
// none is.
func (f fields) firstOf(names ...string) string {
	for _, name := range names {
		if f.has(name) {
			return name
		}
	}
	return names[0]
}

func sizesMoE(f fields, layers int) MoE {
	experts := f.firstOf("n_routed_experts", "num_experts", "num_local_experts")
	n := f.intOr(experts, 0, 0, maxExperts)
	if n == 0 {
		return MoE{}
	}
	m := MoE{
		Experts:    n,
		FF:         f.int(f.firstOf("moe_intermediate_size", "intermediate_size"), 1, maxFF),
		Shared:     f.intOr("n_shared_experts", 0, 0, maxShared),
		FirstDense: f.intOr("first_k_dense_replace", 0, 0, layers),
		LayerFreq:  f.intOr(f.firstOf("moe_layer_freq", "decoder_sparse_step"), 1, 1, maxLayers),
	}
	if width := f.intOr("shared_expert_intermediate_size", 0, 0, maxFF); width > 0 {
		m.Shared = max(1, (width+m.FF/2)/m.FF)
	}
	m.Router = device.Router{Experts: n, TopK: f.int(f.firstOf("num_experts_per_tok", "experts_per_token"), 1, maxExperts)}
	if m.Router.TopK > n {
		f.clash("num_experts_per_tok", []string{experts}, "%d is more than %s %d", m.Router.TopK, experts, n)
	}
	if n*layers > maxBankExperts {
		f.clash(experts, []string{"num_hidden_layers"}, "%d in %d layers: over %d experts in all", n, layers, maxBankExperts)
	}
	return m
}

// fullLayers counts the layers that attend to everything.
func fullLayers(f fields, layers int) int {
	if kinds := f.strings("layer_types", maxLayers); len(kinds) > 0 {
		n := 0
		for _, kind := range kinds {
			if kind == "full_attention" {
				n++
			}
		}
		return min(layers, max(1, n))
	}
	return max(1, layers/f.intOr("full_attention_interval", 1, 1, maxLayers))
}
