//go:build cuda

package main

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"krater/actors/local"
	"krater/kernels/cpu"
	"krater/kernels/cuda"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/synth"
)

// These run on a GPU, or on the emulated one (make test-cuda); without either they are skipped.

// trueSizes has the models of these tests made as wide as DeepSeek-V2-Lite is: for a GPU.
var trueSizes = os.Getenv("KRATER_TRUE_SIZES") != ""

// cardFor opens the GPU.
func cardFor(t *testing.T, o cuda.Options) local.GPU {
	t.Helper()
	c, err := local.OpenGPU(o)
	if errors.Is(err, local.ErrNoGPU) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// latentModel is a random model with the head sizes of DeepSeek-V2, which the fast
// kernels are made for, and otherwise small.
func latentModel(t *testing.T) *synth.Model {
	t.Helper()
	return sizedModel(t, "deepseek-v2-lite", map[string]any{"num_hidden_layers": 3, "n_routed_experts": 8, "num_experts_per_tok": 3, "vocab_size": 512},
		map[string]any{"hidden_size": 256, "intermediate_size": 320, "moe_intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2})
}

// windowModel is a random model with the head size, the biases and the sinks of gpt-oss, and otherwise
// small. Its first and last layers see the given number of tokens.
func windowModel(t *testing.T, window int) *synth.Model {
	t.Helper()
	return sizedModel(t, "gpt-oss-20b", map[string]any{"num_hidden_layers": 3, "layer_types": []string{"sliding_attention", "full_attention", "sliding_attention"},
		"num_local_experts": 8, "num_experts_per_tok": 3, "experts_per_token": 3, "vocab_size": 512, "sliding_window": window, "pad_token_id": 0},
		map[string]any{"hidden_size": 192, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2})
}

// twoHeadsModel is a random model with the head sizes and the activation of Gemma 4, and otherwise small. Its first
// layer sees 40 tokens. Every token has all experts, so that no rounding makes another choice, and scores are scaled:
// without it, scores of random heads of 512 are so large that the roundings of queries alone change weights by 3 %.
func twoHeadsModel(t *testing.T) *synth.Model {
	t.Helper()
	m := sizedModel(t, "gemma-4-26b-a4b", map[string]any{"num_hidden_layers": 2, "layer_types": []string{"sliding_attention", "full_attention"},
		"num_experts": 4, "top_k_experts": 4, "vocab_size": 512, "sliding_window": 40},
		map[string]any{"hidden_size": 192, "intermediate_size": 128, "moe_intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_global_key_value_heads": 1})
	for i := range m.Config.Layers {
		a := m.Config.Layers[i].Mixer.(model.GQA)
		a.Scale = float32(1 / math.Sqrt(float64(a.HeadDim)))
		m.Config.Layers[i].Mixer = a
	}
	return m
}

// pooledModel is a random model with the sizes of GLM-5.3-Flash for which there are fast kernels, and otherwise small: Kimi Delta
// Attention, latent attention over pools that are all chosen up to 160 tokens, and four residual streams. Every token has all experts, so that no
// rounding makes another choice.
func pooledModel(t *testing.T) *synth.Model {
	t.Helper()
	return sizedModel(t, "glm-5.3-flash", map[string]any{"num_hidden_layers": 3, "layer_types": []string{"linear_attention", "deepseek_sparse_attention", "linear_attention"},
		"mlp_layer_types": []string{"dense", "sparse", "sparse"}, "first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 4, "vocab_size": 512, "index_topk": 160, "swiglu_limit": 0.5},
		map[string]any{"hidden_size": 256, "intermediate_size": 128, "moe_intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 64,
			"qk_nope_head_dim": 64, "qk_head_dim": 64, "v_head_dim": 64, "index_n_heads": 16,
			"linear_attn_config": map[string]any{"num_heads": 2, "head_dim": 128, "short_conv_kernel_size": 4, "gate_lower_bound": -5}})
}

// sizedModel is a random model of a shape with other sizes; small ones only without trueSizes.
func sizedModel(t *testing.T, shape string, sizes, small map[string]any) *synth.Model {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "stages", "synth", "shapes", shape+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	of := fields
	if text, ok := fields["text_config"].(map[string]any); ok {
		of = text
	}
	maps.Copy(of, sizes)
	if !trueSizes {
		maps.Copy(of, small)
	}
	for _, k := range []string{"bos_token_id", "eos_token_id", "image_token_id"} {
		delete(fields, k)
		delete(of, k)
	}
	if data, err = json.Marshal(fields); err != nil {
		t.Fatal(err)
	}
	m, err := synth.FromConfig(shape, data, synth.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// onCard is the model on a GPU in a precision.
func onCard(t *testing.T, m *synth.Model, p load.Precision, kv tensor.DType, f32 bool) *direct.Model {
	t.Helper()
	return onCardBy(t, m, p, kv, cuda.Options{F32: f32})
}

func onCardBy(t *testing.T, m *synth.Model, p load.Precision, kv tensor.DType, o cuda.Options) *direct.Model {
	t.Helper()
	return onCardIn(t, m, p, kv, o, 0)
}

// onCardIn is the model with the given number of window blocks.
func onCardIn(t *testing.T, m *synth.Model, p load.Precision, kv tensor.DType, o cuda.Options, windows int) *direct.Model {
	t.Helper()
	host, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	c := cardFor(t, o)
	l, err := m.LoadCard(c, host, load.Options{
		Limits: stages.Limits{Tokens: 257, Seqs: 9, LogitRows: 66, Blocks: 64, BlockTokens: 16, WindowBlocks: windows}, KVType: kv, Precision: p,
	}, tensor.Format{}, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	d, err := direct.New(c, l.Parts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// randomTokens are n tokens of the model's vocabulary.
func randomTokens(n, seed int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32((i*i*7 + i*31 + seed*97 + 11) % 509)
	}
	return ids
}

// answer is the logits after each token of a prompt, and what is generated after it.
type answered struct {
	rows [][]float32 // of the prompt's last position and of every generated one
	ids  []int32
}

func runOn(t *testing.T, r drive.Runner, prompt []int32, n, chunk int) answered {
	t.Helper()
	var a answered
	s := &drive.Sequence{Prompt: prompt, New: n, See: func(pos int, row []float32) {
		if pos >= len(prompt)-1 {
			a.rows = append(a.rows, slices.Clone(row))
		}
	}}
	if err := drive.Run(r, []*drive.Sequence{s}, drive.Options{Chunk: chunk}); err != nil {
		t.Fatal(err)
	}
	a.ids = s.Out
	return a
}

// apart is the relative L2 error of got.
func apart(got, want []float32) float64 {
	var d, n float64
	for i := range want {
		x := float64(got[i]) - float64(want[i])
		d += x * x
		n += float64(want[i]) * float64(want[i])
	}
	return math.Sqrt(d / n)
}

var cardPrecisions = map[string]load.Precision{
	"bf16":      {},
	"int4 g128": {Experts: tensor.INT4.By(128), Attention: tensor.INT8.By(128), Shared: tensor.INT8.By(128), Dense: tensor.INT8.By(128), Head: tensor.INT8.By(128)},
	"int4 g32":  {Experts: tensor.INT4.By(32), Attention: tensor.INT4.By(32), Shared: tensor.INT4.By(32), Dense: tensor.INT4.By(32), Head: tensor.INT4.By(32)},
	"int8 g64":  {Experts: tensor.INT8.By(64), Attention: tensor.INT8.By(64), Shared: tensor.INT8.By(64), Dense: tensor.INT8.By(64), Head: tensor.INT8.By(64)},
}
