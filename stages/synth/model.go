// Package synth makes models of real shapes with random weights, for use where the real
// weights are not available or do not matter. It makes them in memory, as safetensors,
// as a GGUF file of random blocks, or as a cache of integer experts. Every tensor depends only on the seed and its own name, so the
// model is the same for any number of threads and any output. Only the part that is
// being written is held in memory.
package synth

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"

	"krater/stages/model"
)

// Skew says how a router shares out its work.
type Skew string

const (
	// Uniform routers take all experts alike.
	Uniform Skew = "uniform"
	// Zipf routers give about half of a layer's work to the hottest quarter of its
	// experts, whatever the prompt.
	Zipf Skew = "zipf"
)

// Options of a model.
type Options struct {
	Layers int // 0: as many as the shape has
	Vocab  int // 0: the shape's
	Seed   uint64
	Skew   Skew // "": Uniform
	Drift  int  // with Zipf: tokens after which other experts are the hottest (Text); 0: never
}

// Model is a model that can be made.
type Model struct {
	Shape  string
	Config *model.Config
	JSON   []byte // config.json; its krater_synth holds seed and skew
	Note   string // how the shape differs from the release that it is named for; "": not at all

	seed  uint64
	skew  Skew
	drift int
	rank  []float64 // of Zipf: what the logit of the nth hottest expert gains
}

// ErrShape: there is no shape of this name, or it does not allow the given options.
var ErrShape = errors.New("no such shape")

// The sizes come from config.json in these repositories on huggingface.co: deepseek-ai/DeepSeek-V2-Lite,
// deepseek-ai/DeepSeek-V3 (DeepSeek-R1 has the same), zai-org/GLM-4.5-Air, moonshotai/Kimi-K2-Instruct,
// MiniMaxAI/MiniMax-M2, and Qwen's of the same names; shapes/README.md says what they were compared with. Quantised releases are here without quantization_config.
//
//go:embed shapes/*.json
var shapes embed.FS

// Shapes are the names of all shapes, in order.
func Shapes() []string {
	list, err := fs.Glob(shapes, "shapes/*.json")
	if err != nil {
		return nil
	}
	for i, name := range list {
		list[i] = strings.TrimSuffix(strings.TrimPrefix(name, "shapes/"), ".json")
	}
	return list
}

// New returns the model of a named shape. A shape of a family that cannot be run yet
// is refused by model.ErrFamily.
func New(shape string, o Options) (*Model, error) {
	config, err := read(shape)
	if err != nil {
		return nil, err
	}
	return FromConfig(shape, config, o)
}

// Config returns the config.json of a named shape with the given number of layers (0: all),
// whether its family can be run or not.
func Config(shape string, layers int) ([]byte, error) {
	config, err := read(shape)
	if err != nil {
		return nil, err
	}
	return resize(config, Options{Layers: layers})
}

func read(shape string) ([]byte, error) {
	if !slices.Contains(Shapes(), shape) {
		return nil, fmt.Errorf("%w: %.40q (there are %s)", ErrShape, shape, strings.Join(Shapes(), ", "))
	}
	return shapes.ReadFile("shapes/" + shape + ".json")
}

// FromConfig returns the model of a config.json, which gets other sizes by o.
func FromConfig(shape string, config []byte, o Options) (*Model, error) {
	if o.Skew == "" {
		o.Skew = Uniform
	}
	if o.Skew != Uniform && o.Skew != Zipf {
		return nil, fmt.Errorf("%w: routing skew %.40q", ErrShape, string(o.Skew))
	}
	if o.Drift < 0 || o.Drift > 0 && o.Skew != Zipf {
		return nil, fmt.Errorf("%w: routing drift %d, with routing skew %s", ErrShape, o.Drift, o.Skew)
	}
	text, err := resize(config, o)
	if err != nil {
		return nil, fmt.Errorf("shape %s: %w", shape, err)
	}
	cfg, err := model.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("shape %s: %w", shape, err)
	}
	m := &Model{Shape: shape, Config: cfg, JSON: text, seed: o.Seed, skew: o.Skew, drift: o.Drift}
	var more struct {
		Note string `json:"krater_note"`
	}
	if err := json.Unmarshal(text, &more); err != nil {
		return nil, fmt.Errorf("shape %s: %w", shape, err)
	}
	m.Note = more.Note
	if m.skew == Zipf && cfg.MoE.Experts > 0 {
		m.rank = ranks(cfg.MoE.Experts, cfg.MoE.Router.TopK)
	}
	return m, nil
}

// resize writes a config with another number of layers and tokens, and with what
// else the weights depend on.
func resize(config []byte, o Options) ([]byte, error) {
	var fields map[string]any
	if err := json.Unmarshal(config, &fields); err != nil {
		return nil, err
	}
	whole := fields
	if text, ok := fields["text_config"].(map[string]any); ok && fields["num_hidden_layers"] == nil { // a wrapped model
		fields = text
	}
	for _, x := range []struct {
		name, field string
		to          int
	}{{"layers", "num_hidden_layers", o.Layers}, {"tokens", "vocab_size", o.Vocab}} {
		if x.to == 0 {
			continue
		}
		n, ok := fields[x.field].(float64)
		if !ok || x.to < 1 || float64(x.to) > n {
			return nil, fmt.Errorf("%w: %d %s, the shape has %v", ErrShape, x.to, x.name, fields[x.field])
		}
		fields[x.field] = x.to
	}
	sparse, _ := fields["sparse_attention_config"].(map[string]any)
	for _, name := range []string{"layer_types", "mlp_layer_types", "attn_type_list", "moe_layer_freq", "sparse_attention_freq"} { // an entry for each layer
		for _, in := range []map[string]any{fields, sparse} {
			if list, ok := in[name].([]any); ok && o.Layers > 0 {
				in[name] = list[:min(len(list), o.Layers)]
			}
		}
	}
	if o.Vocab > 0 { // special tokens that are not there any more
		gone := func(id any) bool { n, ok := id.(float64); return ok && n >= float64(o.Vocab) }
		for _, name := range []string{"bos_token_id", "eos_token_id", "pad_token_id"} {
			if list, ok := fields[name].([]any); ok && slices.ContainsFunc(list, gone) || gone(fields[name]) {
				fields[name] = nil
			}
		}
		if fields["eos_token_id"] == nil && fields["ple_layer_ids"] != nil { // n-grams begin with it
			fields["eos_token_id"] = o.Vocab - 1
		}
	}
	made := map[string]any{"seed": o.Seed, "routing_skew": o.Skew}
	if o.Drift > 0 {
		made["routing_drift"] = o.Drift
	}
	whole["krater_synth"] = made
	text, err := json.MarshalIndent(whole, "", "  ")
	return append(text, '\n'), err
}

// embedStd returns the spread of the embedding. It is 1, like that of the norms' outputs, except
// for a tied embedding, which is also the matrix of the head.
func (m *Model) embedStd() float64 {
	if m.Config.TieEmbed {
		return 1 / math.Sqrt(float64(m.Config.Hidden))
	}
	return 1
}

// outGain scales what the blocks add to the hidden states, so that all of them
// together add less than the embedding is: no model of any depth overflows, and
// the component that steers a skewed router (skew.go) stays what it is.
func (m *Model) outGain() float64 {
	return m.embedStd() * 0.25 / math.Sqrt(2*float64(len(m.Config.Layers)))
}
