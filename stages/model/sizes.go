package model

import (
	"math"

	"krater/kernels/device"
)

// Sizes reads the config.json of a family that Krater cannot run, known or unknown, for planning memory
// and time: layers, attention and experts under the names that published models use. The result must
// not be loaded. For layers that do not see the whole context Sizes assumes that they keep nothing for
// a token (Bounded).
//
// Use Parse for a family that Krater can run. A missing field is a *FieldError, as in Parse.
func Sizes(configJSON []byte) (*Config, error) {
	f, err := readFields(configJSON)
	if err != nil {
		return nil, err
	}
	if text, ok := f.object("text_config"); ok && !f.has("num_hidden_layers") {
		f = text
	}
	layers := f.int("num_hidden_layers", 1, maxLayers)
	c := &Config{
		Family:     f.stringOr("model_type", ""),
		Hidden:     f.int("hidden_size", 1, maxHidden),
		Vocab:      f.int("vocab_size", 1, maxVocab),
		MaxContext: f.int("max_position_embeddings", 1, maxContext),
		TieEmbed:   f.boolOr("tie_word_embeddings", false),
		DType:      dtype(f),
		BOS:        -1, Pad: -1,
	}
	moe, has := sizesMoE(f, layers)
	dense := Dense{FF: f.intOr("intermediate_size", max(1, moe.FF), 1, maxFF)}
	var mixer Mixer
	roles := Usual(gqaRoles)
	if f.has("kv_lora_rank") {
		a := mlaSizes(f, 2)
		a.Rope, a.Scale = &RopeConfig{Dim: a.RopeDim}, float32(1/math.Sqrt(float64(a.QKDim())))
		mixer, roles = a, Usual(mlaRoles)
	} else {
		a := gqaSizes(f, c.Hidden)
		a.Rope, a.Scale = &RopeConfig{Dim: a.HeadDim}, float32(1/math.Sqrt(float64(a.HeadDim)))
		mixer = a
	}
	full := fullLayers(f, layers)
	if f.failed() {
		return nil, joinErrors(*f.errs, 0)
	}
	c.Stack(layers, roles, func(i int) (Mixer, FFN) {
		m, ffn := mixer, FFN(dense)
		if !full[i] {
			m = Bounded{mixer}
		}
		if has(i) {
			ffn = moe
		}
		return m, ffn
	})
	return c, nil
}

// Bounded stands for a mixer whose state does not grow with the sequence. It has the tensors of the
// embedded mixer. A model with it can be planned, but not run.
type Bounded struct{ Mixer }

// State implements Mixer.
func (Bounded) State() []State { return nil }

// Cost implements Mixer.
func (Bounded) Cost() Cost { return Cost{} }

// firstOf returns the first of several names of a field that is there, the first of all if
// none is.
func (f fields) firstOf(names ...string) string {
	for _, name := range names {
		if f.has(name) {
			return name
		}
	}
	return names[0]
}

// sizesMoE reads the experts, and which layers have them.
func sizesMoE(f fields, layers int) (m MoE, has func(layer int) bool) {
	experts := f.firstOf("n_routed_experts", "num_experts", "num_local_experts")
	n := f.intOr(experts, 0, 0, maxExperts)
	if n == 0 {
		return m, func(int) bool { return false }
	}
	m = MoE{
		Experts: n,
		FF:      f.int(f.firstOf("moe_intermediate_size", "intermediate_size"), 1, maxFF),
	}
	m.SharedFF = f.intOr("shared_expert_intermediate_size", m.FF*f.intOr("n_shared_experts", 0, 0, maxShared), 0, maxShared*maxFF)
	first := f.intOr("first_k_dense_replace", 0, 0, layers)
	every := f.intOr(f.firstOf("moe_layer_freq", "decoder_sparse_step"), 1, 1, maxLayers)
	topK := f.firstOf("num_experts_per_tok", "experts_per_token")
	m.Router = device.Router{Experts: n, TopK: f.int(topK, 1, maxExperts)}
	f.checkExperts(m, experts, topK, layers)
	return m, func(i int) bool { return i >= first && i%every == 0 }
}

// fullLayers tells which layers attend to everything; at least one does.
func fullLayers(f fields, layers int) []bool {
	full, any := make([]bool, layers), false
	kinds, every := f.strings("layer_types", maxLayers), f.intOr("full_attention_interval", 1, 1, maxLayers)
	for i := range full {
		if len(kinds) > 0 {
			full[i] = i < len(kinds) && kinds[i] == "full_attention"
		} else {
			full[i] = (i+1)%every == 0
		}
		any = any || full[i]
	}
	full[layers-1] = full[layers-1] || !any
	return full
}
