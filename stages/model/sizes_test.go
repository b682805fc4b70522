package model

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"krater/kernels/tensor"
)

// shape reads a published config.json.
func shape(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "synth", "shapes", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// parameters counts all of a model.
func parameters(c *Config) (n float64) {
	for _, t := range c.Expected() {
		x := 1.0
		for _, s := range t.Shape {
			x *= float64(s)
		}
		n += x
	}
	return n
}

// full counts the layers that see the whole context.
func full(c *Config) (n int) {
	for i := range c.Layers {
		if len(c.Layers[i].Mixer.State()) > 0 {
			n++
		}
	}
	return n
}

// TestSizes: published models have as many parameters as their publishers say, whatever
// family they are of.
func TestSizes(t *testing.T) {
	for name, want := range map[string]struct {
		billions, within float64
		experts, topK    int
		full             int
	}{
		"deepseek-v2-lite": {15.7, 0.01, 64, 6, 27},
		"qwen3-30b-a3b":    {30.5, 0.01, 128, 8, 48},
		"qwen3-235b-a22b":  {235, 0.01, 128, 8, 94},
		"qwen3-coder-next": {80, 0.02, 512, 10, 12}, // linear layers count as others do
		"qwen3.5-35b-a3b":  {35, 0.03, 256, 8, 10},  // so they do here, and its 35 billion have a vision tower
		"kimi-k2":          {1026, 0.01, 384, 8, 61},
		"deepseek-v3":      {671, 0.01, 256, 8, 61},
		"deepseek-v3.2":    {671, 0.01, 256, 8, 61},
		"glm-4.5-air":      {106.9, 0.01, 128, 8, 46},
		"minimax-m2":       {228.7, 0.01, 256, 8, 62},
		"gpt-oss-20b":      {20.9, 0.01, 32, 4, 12},
		"gpt-oss-120b":     {116.8, 0.01, 128, 4, 18},
		"qwen2.5-7b":       {7.6, 0.01, 0, 0, 28},
	} {
		c, err := Sizes(shape(t, name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if n := parameters(c) / 1e9; math.Abs(n-want.billions) > want.within*want.billions {
			t.Errorf("%s: %.2f billion parameters, want %g", name, n, want.billions)
		}
		if c.MoE.Experts != want.experts || c.MoE.Router.TopK != want.topK || full(c) != want.full {
			t.Errorf("%s: %d experts, %d taken, %d layers see everything", name, c.MoE.Experts, c.MoE.Router.TopK, full(c))
		}
	}
}

// TestSizesAreParsed: of families that can be run both readers have the same sizes.
func TestSizesAreParsed(t *testing.T) {
	for _, name := range []string{"deepseek-v2-lite", "qwen2.5-7b"} {
		a, err := Sizes(shape(t, name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := Parse(shape(t, name))
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.Layers {
			if m, ok := b.Layers[i].Mixer.(GQA); ok {
				m.Bias = false // of the family
				b.Layers[i].Mixer = m
			}
		}
		if len(a.Layers) != len(b.Layers) || a.Hidden != b.Hidden || a.DenseFF() != b.DenseFF() || a.Vocab != b.Vocab || rotary(a).Dim != rotary(b).Dim ||
			a.KVBlockBytes(1, tensor.BF16) != b.KVBlockBytes(1, tensor.BF16) || parameters(a) != parameters(b) || a.MoE.SharedFF != b.MoE.SharedFF {
			t.Errorf("%s: %+v\n%+v", name, a, b)
		}
	}
}

// TestSizesNames: other names, wrappers and layers of several kinds.
func TestSizesNames(t *testing.T) {
	base := func(more map[string]any) []byte {
		m := map[string]any{"num_hidden_layers": 4, "hidden_size": 64, "vocab_size": 100, "max_position_embeddings": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
		for k, v := range more {
			if m[k] = v; v == nil {
				delete(m, k)
			}
		}
		data, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	c, err := Sizes(base(map[string]any{"num_local_experts": 8, "experts_per_token": 2, "layer_types": []string{"sliding_attention", "full_attention", "sliding_attention", "full_attention"}}))
	if err != nil || c.MoE.Experts != 8 || c.MoE.FF != 96 || c.MoE.Router.TopK != 2 || full(c) != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err = Sizes([]byte(`{"model_type": "wrapper", "text_config": ` + string(base(nil)) + `}`)); err != nil || c.MoE.Experts != 0 || c.DenseFF() != 96 {
		t.Errorf("%+v, %v", c, err)
	}
	for field, data := range map[string][]byte{
		"hidden_size":           base(map[string]any{"hidden_size": nil}),
		"num_hidden_layers":     base(map[string]any{"num_hidden_layers": 1 << 30}),
		"num_experts_per_tok":   base(map[string]any{"num_experts": 8}),
		"moe_intermediate_size": base(map[string]any{"num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": nil}),
		"num_experts":           base(map[string]any{"num_experts": 4096, "num_experts_per_tok": 2, "num_hidden_layers": 1000}),
	} {
		_, err := Sizes(data)
		var fault *FieldError
		if !errors.As(err, &fault) || fault.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := Sizes([]byte("[]")); !errors.Is(err, ErrSyntax) {
		t.Error(err)
	}
}

// FuzzSizes: whatever the bytes, no panic, and what is taken has its tensors.
func FuzzSizes(f *testing.F) {
	for _, name := range []string{"deepseek-v2-lite", "qwen3-30b-a3b", "qwen3-coder-next", "kimi-k2"} {
		f.Add(shape(f, name))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Sizes(data)
		if err != nil {
			return
		}
		if full(c) < 1 || c.KVBlockBytes(1, tensor.BF16) < 1 || c.MoE.Router.TopK > c.MoE.Experts {
			t.Errorf("%d of %d layers, %+v", full(c), len(c.Layers), c)
		}
		if len(c.Layers)*max(1, c.MoE.Experts) < 1000 && parameters(c) <= 0 {
			t.Errorf("no parameters: %+v", c)
		}
	})
}
