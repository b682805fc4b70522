package source

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"krater/models"
	"krater/stages/synth"
)

// Folder chooses the model.
type Folder struct {
	Model string `help:"Model folder: config.json, safetensors, tokenizer.json. Without it the embedded krater-tiny." type:"existingdir" placeholder:"DIR"`
}

// Synthetic choose a model of random weights.
type Synthetic struct {
	Shape       string `help:"Shape of a model of random weights, whose answers are noise: deepseek-v2-lite, qwen2.5-7b, qwen3-30b-a3b, qwen3-235b-a22b, qwen3-coder-next, kimi-k2." placeholder:"NAME"`
	Layers      int    `help:"Layers of the shape that are made; 0: all." default:"0"`
	Vocab       int    `help:"Tokens of the shape that are made; 0: all." default:"0"`
	RoutingSkew string `help:"How the work is divided among experts: ${enum}. zipf gives half of it to a quarter of them." enum:"uniform,zipf" default:"uniform"`
	WeightsSeed uint64 `help:"Seed of the random weights." default:"1"`
}

// Make is the model that the flags choose.
func (f *Synthetic) Make() (*synth.Model, error) {
	if f.Shape == "" {
		return nil, fmt.Errorf("--shape: choose one of %s", strings.Join(synth.Shapes(), ", "))
	}
	return synth.New(f.Shape, synth.Options{Layers: f.Layers, Vocab: f.Vocab, Seed: f.WeightsSeed, Skew: synth.Skew(f.RoutingSkew)})
}

// Source is the model as something that can be loaded: its weights are made where
// they are used.
func (f *Synthetic) Source() (*Source, error) {
	m, err := f.Make()
	if err != nil {
		return nil, err
	}
	name := m.Shape
	if f.Layers > 0 {
		name = fmt.Sprintf("%s, %d layers", name, f.Layers)
	}
	files := MemoryFiles{"config.json": m.JSON, "tokenizer.json": MadeTokenizer(m.Config.Vocab)}
	return &Source{Name: name, Files: files, Synth: m}, nil
}

// SourceOr is the model of random weights that the flags choose, or that of a folder ("": the
// built-in one).
func (f *Synthetic) SourceOr(dir string) (*Source, error) {
	switch {
	case f.Shape == "" && (f.Layers != 0 || f.Vocab != 0):
		return nil, errors.New("--layers and --vocab belong to --shape")
	case f.Shape == "":
		return Open(dir)
	case dir != "":
		return nil, errors.New("--model and --shape name two models")
	}
	return f.Source()
}

// MadeTokenizer is a tokenizer.json of n tokens, each with a text: a byte the first 256, t
// and its number the others.
func MadeTokenizer(n int) []byte {
	vocab := make(map[string]int, n)
	next := rune(256)
	for b := range rune(min(n, 256)) {
		r := b // as byte-level tokenizers write it: printable ones as they are, others from 256 on
		if b < '!' || b > '~' && b < 0xa1 || b == 0xad {
			r, next = next, next+1
		}
		vocab[string(r)] = int(b)
	}
	for i := 256; i < n; i++ {
		vocab["t"+strconv.Itoa(i)] = i
	}
	byteLevel := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
	text, _ := json.Marshal(map[string]any{ // plain data
		"version": "1.0", "model": map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}},
		"pre_tokenizer": byteLevel, "decoder": byteLevel, "added_tokens": []any{},
	})
	return text
}

// Companions are the files that a model needs to be served: the tokenizer of the
// default model, where the vocabulary has room for its tokens. The other tokens
// have no text.
func Companions(m *synth.Model) map[string][]byte {
	files, err := models.Default()
	if err != nil {
		return nil
	}
	s := &Source{Name: models.Name, Files: files}
	tok, config, err := s.Tokenizer()
	if err != nil || tok.VocabSize() > m.Config.Vocab {
		return nil
	}
	text, err := s.Read("tokenizer.json", false)
	if err != nil {
		return nil
	}
	return map[string][]byte{"tokenizer.json": text, "tokenizer_config.json": config}
}
