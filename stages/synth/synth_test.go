package synth

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"krater/kernels/tensor"
	"krater/stages/model"
)

// smallConfig has 3 of 4 layers with 32 experts, of which 4 are taken, and every
// kind of tensor of its family.
const smallConfig = `{
  "model_type": "deepseek_v2", "hidden_act": "silu", "torch_dtype": "bfloat16",
  "hidden_size": 256, "intermediate_size": 288, "num_hidden_layers": 4, "vocab_size": 512,
  "num_attention_heads": 4, "q_lora_rank": null, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
  "n_routed_experts": 32, "n_shared_experts": 1, "moe_intermediate_size": 80, "num_experts_per_tok": 4, "first_k_dense_replace": 1,
  "n_group": 1, "topk_group": 1, "topk_method": "greedy", "norm_topk_prob": false, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
  "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": false,
  "bos_token_id": 500, "eos_token_id": 501
}`

func small(t testing.TB, o Options) *Model {
	t.Helper()
	m, err := FromConfig("small", []byte(smallConfig), o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestShapes: every shape is the model it is named for, as far as its family can
// be run; the others are refused by their family's name.
func TestShapes(t *testing.T) {
	want := map[string]struct {
		billions float64 // parameters, as published; 0: see family
		family   string
	}{
		"deepseek-v2-lite": {15.7, "deepseek_v2"}, "qwen2.5-7b": {7.6, "qwen2"},
		"qwen3-30b-a3b": {30.5, "qwen3_moe"}, "qwen3-235b-a22b": {235, "qwen3_moe"},
		"qwen3-coder-next": {80, "qwen3_next"}, "qwen3.5-35b-a3b": {35, "qwen3_5_moe"},
		"glm-5": {744, "glm_moe_dsa"}, "flash-next": {125, "qwen4_exp"}, // the latter counted from the published sizes, without the table
		"kimi-k2":     {1027, "kimi_k2"},
		"deepseek-v3": {671, "deepseek_v3"}, "deepseek-v3.2": {671.9, "deepseek_v32"}, "glm-4.5-air": {106.9, "glm4_moe"}, "minimax-m2": {228.7, "minimax_m2"},
		"glm-5.3-flash": {313, "glm5_next"},
		"gpt-oss-20b":   {20.9, "gpt_oss"}, "gpt-oss-120b": {116.8, "gpt_oss"}, "gemma-4-26b-a4b": {25.2, "gemma4"},
		"v4-flash": {284.4, "deepseek_v4"}, "minimax-m3": {428, "minimax_m3_vl"},
	}
	if len(Shapes()) != len(want) {
		t.Errorf("shapes %v", Shapes())
	}
	for _, shape := range Shapes() {
		x := want[shape]
		m, err := New(shape, Options{})
		if err != nil {
			if !errors.Is(err, model.ErrFamily) || !strings.Contains(err.Error(), x.family) {
				t.Errorf("%s: got %v", shape, err)
			}
			continue
		}
		if got := float64(tensorBytes(m.Config.Expected())) / 2e9; math.Abs(got-x.billions) > 0.01*x.billions {
			t.Errorf("%s: %.2f billion parameters, want %.1f", shape, got, x.billions)
		}
		if m.Config.Family != x.family {
			t.Errorf("%s: family %s", shape, m.Config.Family)
		}
	}
}

// TestResizeLists: of every shape a few layers and tokens can be made, whatever lists its config has.
func TestResizeLists(t *testing.T) {
	for _, shape := range Shapes() {
		m, err := New(shape, Options{Layers: 4, Vocab: 1000})
		if errors.Is(err, model.ErrFamily) {
			continue
		}
		if err != nil || len(m.Config.Layers) != 4 {
			t.Errorf("%s: %v", shape, err)
		}
	}
}

func TestResize(t *testing.T) {
	m, err := New("deepseek-v2-lite", Options{Layers: 6, Vocab: 1000, Seed: 7, Skew: Zipf})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Config.Layers) != 6 || m.Config.Vocab != 1000 || m.Config.BOS != -1 || m.Config.EOS != nil || m.Config.Hidden != 2048 {
		t.Errorf("%+v", m.Config)
	}
	again, err := model.Parse(m.JSON)
	if err != nil || len(again.Layers) != 6 || !bytes.Contains(m.JSON, []byte(`"seed": 7`)) {
		t.Errorf("config.json: %v, %s", err, m.JSON)
	}
	for _, o := range []Options{{Layers: 28}, {Layers: -1}, {Vocab: 200000}, {Skew: "pareto"}, {Drift: 5}, {Skew: Zipf, Drift: -1}} {
		if _, err := New("deepseek-v2-lite", o); !errors.Is(err, ErrShape) {
			t.Errorf("%+v: got %v", o, err)
		}
	}
	if _, err := New("../model", Options{}); !errors.Is(err, ErrShape) || !strings.Contains(err.Error(), "kimi-k2") {
		t.Errorf("got %v", err)
	}
}

// all is every tensor of a model.
func all(m *Model, threads int) map[string][]byte {
	out := map[string][]byte{}
	for _, t := range m.Config.Expected() {
		f := m.floats(t)
		b := make([]byte, sizeOf(t))
		f.fill(b, 0, f.rows, threads)
		out[t.Name] = b
	}
	return out
}

// TestFloats: the same seed gives the same bytes, on any number of threads and in
// any pieces; another seed and every other tensor has others.
func TestFloats(t *testing.T) {
	for _, skew := range []Skew{Uniform, Zipf} {
		m := small(t, Options{Seed: 1, Skew: skew})
		one, three, other := all(m, 1), all(m, 3), all(small(t, Options{Seed: 2, Skew: skew}), 2)
		seen := map[string]string{}
		for _, spec := range m.Config.Expected() {
			b := one[spec.Name]
			if !bytes.Equal(b, three[spec.Name]) || bytes.Equal(b, other[spec.Name]) {
				t.Errorf("%s: depends on threads, or not on the seed", spec.Name)
			}
			if twin := seen[string(b[:64])]; twin != "" {
				t.Errorf("%s begins as %s", spec.Name, twin)
			}
			seen[string(b[:64])] = spec.Name
			f := m.floats(spec)
			if f.rows < 8 {
				continue
			}
			piece := make([]byte, 2*(f.rows-4)*f.cols)
			f.fill(piece, 4, f.rows, 2)
			if !bytes.Equal(piece, b[2*4*f.cols:]) {
				t.Errorf("%s: rows from 4 on differ", spec.Name)
			}
		}
	}
}

// moments of BF16 numbers.
func moments(b []byte) (mean, std float64) {
	x := make([]float32, len(b)/2)
	if err := tensor.Widen(x, tensor.BF16, b); err != nil {
		panic(err)
	}
	for _, v := range x {
		mean += float64(v) / float64(len(x))
	}
	for _, v := range x {
		std += (float64(v) - mean) * (float64(v) - mean) / float64(len(x))
	}
	return mean, math.Sqrt(std)
}

// TestDistribution: matrices have the spread that keeps a product's, norms are near
// 1. The error of a mean of n numbers is std/sqrt(n), that of a spread 1/sqrt(2n) of
// it, and rounding to bfloat16 adds under 2^-9; allowed are 5 of the former.
func TestDistribution(t *testing.T) {
	m := small(t, Options{Seed: 3})
	tensors := all(m, 2)
	out := 0.25 / math.Sqrt(8)
	for name, want := range map[string][2]float64{
		"model.embed_tokens.weight":                 {0, 1},
		"lm_head.weight":                            {0, 1 / 16.0},
		"model.layers.0.mlp.up_proj.weight":         {0, 1 / 16.0},
		"model.layers.2.self_attn.o_proj.weight":    {0, out / math.Sqrt(128)},
		"model.layers.0.mlp.down_proj.weight":       {0, out / math.Sqrt(288)},
		"model.layers.1.input_layernorm.weight":     {1, 0.05},
		"model.layers.1.mlp.gate.weight":            {0, 1 / 16.0},
		"model.layers.3.self_attn.kv_b_proj.weight": {0, 1 / 8.0},
	} {
		n := float64(len(tensors[name]) / 2)
		mean, std := moments(tensors[name])
		if math.Abs(mean-want[0]) > 5*want[1]/math.Sqrt(n)+want[0]/256 || math.Abs(std-want[1]) > want[1]*(5/math.Sqrt(2*n)+1/256.0) {
			t.Errorf("%s: mean %.5f, spread %.5f, want %.5f, %.5f", name, mean, std, want[0], want[1])
		}
	}
}

// TestIntegers: the matrices made equal those that tensor.Layout packs from the same integers, padding
// included, for any shape and on any number of threads.
func TestIntegers(t *testing.T) {
	m := small(t, Options{Seed: 4})
	for _, size := range [][2]int{{16, 32}, {1, 1}, {37, 100}, {160, 256}, {48, 80}, {530, 1056}} {
		for _, spec := range []tensor.Format{tensor.INT4.By(32), tensor.INT4.By(128), tensor.INT8.By(64), tensor.INT8.By(0), tensor.Q8_0.By(32), tensor.INT3.By(64)} {
			for _, skip := range []bool{false, true} {
				f, err := spec.On(tensor.CPU, size[0], size[1])
				if err != nil {
					t.Fatal(err)
				}
				x := m.integers("x", f, 0.25)
				x.skip = skip
				values, scales := bytes.Repeat([]byte{0x55}, f.ValueBytes()), bytes.Repeat([]byte{0x55}, f.ScaleBytes())
				x.fill(values, scales, 3)
				q := x.matrix(make([]byte, f.ValueBytes()+f.ScaleBytes()), 1)
				packed, packedScales := make([]byte, f.ValueBytes()), make([]byte, f.ScaleBytes())
				f.Pack(packed, packedScales, q) // panics at a value that does not exist
				if !bytes.Equal(values, packed) || !bytes.Equal(scales, packedScales) {
					t.Fatalf("%+v: not as packed", f)
				}
				for i, v := range q.Values {
					if zero := skip && i%f.Cols%common == 0; zero && v != 0 {
						t.Fatalf("%+v: column %d is read", f, i%f.Cols)
					}
				}
				if f.Rows*f.Cols < 100000 || skip {
					continue
				}
				var mean, square float64
				for _, v := range q.Dequantize() {
					mean += float64(v) / float64(f.Rows*f.Cols)
					square += float64(v) * float64(v) / float64(f.Rows*f.Cols)
				}
				// The scales' squares have a mean of 1.0208; the sample adds less than 1 %.
				if std := math.Sqrt(square); math.Abs(std-0.25*math.Sqrt(1.0208)) > 0.0025 || math.Abs(mean) > 0.0025 {
					t.Errorf("%+v: mean %.4f, spread %.4f", f, mean, std)
				}
			}
		}
	}
}

// TestHottest holds the measure itself to account.
func TestHottest(t *testing.T) {
	for _, x := range []struct {
		count []int
		want  float64
	}{{[]int{1, 1, 1, 1}, 0.25}, {[]int{0, 9, 0, 1}, 0.9}, {[]int{1, 2, 3, 4, 5, 5, 0, 0}, 0.5}, {[]int{0, 0}, 0}} {
		if got := Hottest(x.count); got != x.want {
			t.Errorf("%v: %v", x.count, got)
		}
	}
}

// TestTokenExperts: a table of experts has different ones for a token, and all of them.
func TestTokenExperts(t *testing.T) {
	const tokens, experts, topK = 1000, 256, 6
	f := floats{rows: tokens, cols: topK, key: 1, experts: experts}
	b := make([]byte, 2*tokens*topK)
	f.fill(b, 0, tokens, 2)
	x, seen := make([]float32, tokens*topK), make([]bool, experts)
	if err := tensor.Widen(x, tensor.BF16, b); err != nil {
		t.Fatal(err)
	}
	for i := range tokens {
		last := float32(-1)
		for _, e := range x[i*topK:][:topK] {
			if e <= last || e >= experts || e != float32(int(e)) {
				t.Fatalf("token %d: %v", i, x[i*topK:][:topK])
			}
			last, seen[int(e)] = e, true
		}
	}
	if e := slices.Index(seen, false); e >= 0 {
		t.Errorf("no token has expert %d", e)
	}
}
