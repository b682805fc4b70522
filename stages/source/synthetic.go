package source

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"krater/models"
	"krater/stages/synth"
	"krater/stages/weights/gguf"
)

// Folder chooses the model.
type Folder struct {
	Model string `help:"The model: its folder (config.json, safetensors and tokenizer files), a .gguf file, or ORG/MODEL[:QUANT][@REV] after krater pull; default: the built-in krater-tiny." type:"model" placeholder:"DIR"`
}

// Synthetic are the options of a model with random weights.
type Synthetic struct {
	Shape        string `help:"Use random weights in the shape of a known model; the answers are noise: deepseek-v2-lite, qwen2.5-7b, qwen3-30b-a3b, qwen3-235b-a22b, qwen3-coder-next, qwen3.5-35b-a3b, flash-next, deepseek-v3, deepseek-v3.2, glm-4.5-air, glm-5, glm-5.3-flash, gemma-4-26b-a4b, gpt-oss-20b, gpt-oss-120b, kimi-k2, minimax-m2, minimax-m3, v4-flash." placeholder:"NAME"`
	Layers       int    `help:"With --shape: number of layers to make; 0: all." default:"0"`
	Vocab        int    `help:"With --shape: size of the vocabulary to make; 0: that of the shape." default:"0"`
	RoutingSkew  string `help:"With --shape: how tokens spread over experts: ${enum}. zipf sends half of them to a quarter of the experts." enum:"uniform,zipf" default:"uniform"`
	RoutingDrift int    `help:"With --routing-skew zipf: another quarter of the experts is the hottest for texts about something else, and texts that benchmarks make change after this many tokens; 0: one text." default:"0"`
	WeightsSeed  uint64 `help:"With --shape: seed of the random weights." default:"1"`
}

// Blocks are the options of a GGUF file of random blocks.
type Blocks struct {
	ExpertType string `help:"With --as gguf: type of routed experts, such as q4_k, iq2_xxs or mxfp4." default:"q4_k" placeholder:"TYPE"`
	OtherType  string `help:"With --as gguf: type of all other matrices but the embedding and routers; default: that of experts." placeholder:"TYPE"`
}

// WriteGGUF writes a model as one GGUF file with a tokenizer of bytes (MadeTokens).
func (b *Blocks) WriteGGUF(ctx context.Context, m *synth.Model, f synth.Folder) error {
	o := synth.GGUF{Tokens: MadeTokens(m.Config.Vocab)}
	for _, t := range []struct {
		flag, name string
		to         *gguf.Type
	}{{"--expert-type", b.ExpertType, &o.Experts}, {"--other-type", cmp.Or(b.OtherType, b.ExpertType), &o.Other}} {
		var ok bool
		if *t.to, ok = gguf.ParseType(t.name); !ok || !slices.Contains(synth.BlockTypes(), *t.to) {
			return fmt.Errorf("%s %.40q: choose one of %s", t.flag, t.name, strings.ToLower(fmt.Sprint(synth.BlockTypes())))
		}
	}
	f.Files = nil
	return m.WriteGGUF(ctx, f, o)
}

// Make returns the model that the options choose.
func (f *Synthetic) Make() (*synth.Model, error) {
	if f.Shape == "" {
		return nil, fmt.Errorf("--shape: choose one of %s", strings.Join(synth.Shapes(), ", "))
	}
	return synth.New(f.Shape, synth.Options{Layers: f.Layers, Vocab: f.Vocab, Seed: f.WeightsSeed, Skew: synth.Skew(f.RoutingSkew), Drift: f.RoutingDrift})
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
	if m.Note != "" {
		name += ", " + m.Note
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

// MadeTokens returns the texts of n tokens, as byte-level tokenizers write them. Token 0 to 255 has
// the text of that byte; each later one is "t" and its number.
func MadeTokens(n int) []string {
	tokens := make([]string, n)
	next := rune(256)
	for i := range tokens {
		r := rune(i) // printable bytes are written as they are and the others as runes from 256 on
		if i < '!' || i > '~' && i < 0xa1 || i == 0xad {
			r, next = next, next+1
		}
		if tokens[i] = string(r); i > 255 {
			tokens[i] = "t" + strconv.Itoa(i)
		}
	}
	return tokens
}

// MadeTokenizer returns a tokenizer.json of MadeTokens.
func MadeTokenizer(n int) []byte {
	vocab := make(map[string]int, n)
	for id, text := range MadeTokens(n) {
		vocab[text] = id
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
