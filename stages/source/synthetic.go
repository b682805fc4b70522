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
	Model string `help:"The model: its folder (config.json, safetensors and tokenizer files), a .gguf file, or ORG/MODEL[:QUANT][@REV] after krater pull; default: the built-in krater-tiny." type:"model" placeholder:"DIR"`
}

// Synthetic are the options of a model with random weights.
type Synthetic struct {
	Shape       string `help:"Use random weights in the shape of a known model; the answers are noise: deepseek-v2-lite, qwen2.5-7b, qwen3-30b-a3b, qwen3-235b-a22b, qwen3-coder-next, deepseek-v3, glm-4.5-air, gpt-oss-20b, gpt-oss-120b, kimi-k2, minimax-m2." placeholder:"NAME"`
	Layers      int    `help:"With --shape: number of layers to make; 0: all." default:"0"`
	Vocab       int    `help:"With --shape: size of the vocabulary to make; 0: that of the shape." default:"0"`
	RoutingSkew string `help:"With --shape: how tokens spread over experts: ${enum}. zipf sends half of them to a quarter of the experts." enum:"uniform,zipf" default:"uniform"`
	WeightsSeed uint64 `help:"With --shape: seed of the random weights." default:"1"`
}

// Make returns the model that the options choose.
func (f *Synthetic) Make() (*synth.Model, error) {
	if f.Shape == "" {
		return nil, fmt.Errorf("--shape: choose one of %s", strings.Join(synth.Shapes(), ", "))
	}
	return synth.New(f.Shape, synth.Options{Layers: f.Layers, Vocab: f.Vocab, Seed: f.WeightsSeed, Skew: synth.Skew(f.RoutingSkew)})
}

// Source returns the model as something that can be loaded. Its weights are generated where they
// are used.
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

// SourceOr returns the model of random weights that the options choose, or that of a folder ("":
// the built-in one).
func (f *Synthetic) SourceOr(dir string) (*Source, error) {
	switch {
	case f.Shape == "" && (f.Layers != 0 || f.Vocab != 0):
		return nil, errors.New("--layers and --vocab need --shape")
	case f.Shape == "":
		return Open(dir)
	case dir != "":
		return nil, errors.New("--model and --shape both name a model; use one of them")
	}
	return f.Source()
}

// MadeTokenizer returns a tokenizer.json of n tokens. Token 0 to 255 has the text of that byte;
// each later one is "t" and its number.
func MadeTokenizer(n int) []byte {
	vocab := make(map[string]int, n)
	next := rune(256)
	for b := range rune(min(n, 256)) {
		r := b // byte-level tokenizers write printable bytes as they are and the others as runes from 256 on
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

// Companions returns the files that serving a model needs: the tokenizer of the default model if
// the vocabulary has room for its tokens. Further tokens have no text.
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
