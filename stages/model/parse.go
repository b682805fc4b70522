package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"krater/kernels/tensor"
)

// family reads the fields of one model_type. A fault is noted in f; the result
// counts only when there is none.
type family func(f fields) *Config

// families are the model types that can run. Each registers itself in its file.
var families = map[string]family{}

func register(modelType string, f family) bool {
	families[modelType] = f
	return true
}

// Families lists the known model types in order.
func Families() []string { return slices.Sorted(maps.Keys(families)) }

// Parse reads a config.json, in the style of released checkpoints (rope_theta,
// rope_scaling, torch_dtype) or of transformers 5 (rope_parameters, dtype). A
// model that wraps its language model (text_config) is read from there when the
// wrapper's own model_type is not known.
//
// Parse guesses nothing: a missing, contradicting or out-of-range field that would
// change the result is a *FieldError, and several are joined. Fields that have no
// influence on inference are ignored.
func Parse(configJSON []byte) (*Config, error) {
	f, err := readFields(configJSON)
	if err != nil {
		return nil, err
	}
	whole := f
	name := f.stringOr("model_type", "")
	if _, known := families[name]; !known {
		if text, ok := f.object("text_config"); ok {
			f = text
			name = f.stringOr("model_type", "")
		}
	}
	parse, known := families[name]
	if !known {
		if !f.has("model_type") {
			f.require("model_type")
			return nil, joinErrors(*f.errs, 0)
		}
		return nil, fmt.Errorf("%w: %w %q (known: %s)",
			&FieldError{Field: f.path + "model_type", Why: "cannot be run"}, ErrFamily, clip(name), strings.Join(Families(), ", "))
	}
	refuse(f)
	c, q := parse(f), quantization(whole)
	if f.failed() {
		return nil, joinErrors(*f.errs, 0)
	}
	c.Family, c.Quantization = name, q
	return c, nil
}

// refuse names what would need code that is not there, whatever the family:
// running without it would give plausible nonsense.
func refuse(f fields) {
	f.refuseBias("mlp_bias")
	f.oneOf("hidden_act", "silu", "silu")
}

// refuseBias refuses biases of products that have none here.
func (f fields) refuseBias(name string) {
	if f.boolOr(name, false) {
		f.fail(name, "true is not supported: no such biases are added")
	}
}

// Limits of sizes. They are far above every published model, and the product of
// any three of them fits into an int. So no size computed from a config can
// overflow.
const (
	maxLayers  = 1024
	maxHidden  = 1 << 17
	maxVocab   = 1 << 22
	maxContext = 1 << 24
	maxHeads   = 1 << 12
	maxHeadDim = 1 << 12
	maxRank    = 1 << 16
	maxFF      = 1 << 20
	maxExperts = 1 << 12
	maxShared  = 1 << 8
	// maxBankExperts bounds layers * experts: the lists of experts and of tensor
	// names are made from it before any weight is seen.
	maxBankExperts = 1 << 17
)

// common reads the fields that every family has under the same name, and the number of
// layers.
func common(f fields) (c *Config, layers int) {
	layers = f.int("num_hidden_layers", 1, maxLayers)
	c = &Config{
		Hidden:     f.int("hidden_size", 1, maxHidden),
		Vocab:      f.int("vocab_size", 1, maxVocab),
		MaxContext: f.int("max_position_embeddings", 1, maxContext),
		NormEps:    float32(f.float("rms_norm_eps", 1e-12, 1)),
		TieEmbed:   f.boolOr("tie_word_embeddings", false),
		DType:      dtype(f),
	}
	c.BOS = f.id("bos_token_id")
	c.EOS = f.ids("eos_token_id")
	c.Pad = f.id("pad_token_id")
	inVocab := func(name string, ids ...int32) {
		for _, id := range ids {
			if int(id) >= c.Vocab {
				f.clash(name, []string{"vocab_size"}, "token id %d is outside vocab_size %d", id, c.Vocab)
			}
		}
	}
	inVocab("bos_token_id", c.BOS)
	inVocab("eos_token_id", c.EOS...)
	inVocab("pad_token_id", c.Pad)
	return c, layers
}

// denseFF reads the network of layers without experts.
func denseFF(f fields) Dense { return Dense{FF: f.int("intermediate_size", 1, maxFF)} }

// dtype reads torch_dtype (release) or dtype (transformers 5).
func dtype(f fields) tensor.DType {
	known := map[string]tensor.DType{"bfloat16": tensor.BF16, "float16": tensor.F16, "float32": tensor.F32}
	out := tensor.Invalid
	for _, name := range []string{"torch_dtype", "dtype"} {
		if !f.has(name) {
			continue
		}
		d, ok := known[f.stringOr(name, "")]
		switch {
		case !ok:
			f.fail(name, "%s is not supported (known: bfloat16, float16, float32)", clip(string(f.raw[name])))
		case out != tensor.Invalid && d != out:
			f.fail(name, "contradicts torch_dtype")
		}
		out = d
	}
	return out
}
