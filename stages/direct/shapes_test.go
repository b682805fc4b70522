package direct_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"krater/kernels/hostsim"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/compare"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/internal/refdevice"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/oracle"
	"krater/stages/weights"
)

// drawn makes random weights for a config: matrices with entries of about
// 1/sqrt(inputs), norms about 1, biases about 0.5, stored as dt.
func drawn(t *testing.T, cfg *model.Config, dt tensor.DType, seed uint64) *weights.Set {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	header := map[string]any{}
	var data []byte
	for _, spec := range cfg.Expected() {
		n, scale, base := 1, 1.0, 0.0
		for _, d := range spec.Shape {
			n *= d
		}
		switch {
		case len(spec.Shape) == 2:
			scale = 1.7 / math.Sqrt(float64(spec.Shape[1]))
		case strings.HasSuffix(spec.Role, "_bias"):
			scale = 0.5
		default:
			scale, base = 0.1, 1
		}
		from := len(data)
		for range n {
			v := float32(base + scale*r.NormFloat64())
			if dt == tensor.BF16 {
				data = binary.LittleEndian.AppendUint16(data, tensor.F32ToBF16(v))
			} else {
				data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
			}
		}
		header[spec.Name] = map[string]any{"dtype": dt.String(), "shape": spec.Shape, "data_offsets": []int{from, len(data)}}
	}
	head, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	for len(head)%8 != 0 {
		head = append(head, ' ')
	}
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	set, err := weights.FromBytes(map[string][]byte{"model.safetensors": slices.Concat(file, head, data)})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// oddConfig is a small model whose sizes divide nothing, changed by fields.
func oddConfig(t *testing.T, fields map[string]any) *model.Config {
	t.Helper()
	c := map[string]any{
		"model_type": "deepseek_v2", "num_hidden_layers": 4, "hidden_size": 52, "vocab_size": 77, "max_position_embeddings": 128,
		"rms_norm_eps": 1e-5, "intermediate_size": 45, "num_attention_heads": 3, "kv_lora_rank": 19, "q_lora_rank": nil,
		"qk_nope_head_dim": 7, "qk_rope_head_dim": 6, "v_head_dim": 9, "rope_theta": 10000.0,
		"n_routed_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 11, "n_shared_experts": 1,
		"first_k_dense_replace": 1, "moe_layer_freq": 1, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
		"bos_token_id": 0, "eos_token_id": 1,
	}
	return parsed(t, c, fields)
}

// parsed is the config of base, changed by fields.
func parsed(t testing.TB, base, fields map[string]any) *model.Config {
	t.Helper()
	c := maps.Clone(base)
	maps.Copy(c, fields)
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestShapes runs models of odd sizes and of every optional part: the logits must
// agree with the oracle's.
func TestShapes(t *testing.T) {
	for name, fields := range map[string]map[string]any{
		"as is":             {},
		"query compression": {"q_lora_rank": 13},
		"no shared experts": {"n_shared_experts": nil},
		"three shared":      {"n_shared_experts": 3},
		"dense":             {"n_routed_experts": nil},
		"all layers MoE":    {"first_k_dense_replace": 0},
		"every other layer": {"moe_layer_freq": 2},
		"tied head":         {"tie_word_embeddings": true},
		"one expert each":   {"num_experts_per_tok": 1},
		"all experts":       {"num_experts_per_tok": 5},
		"normalised":        {"norm_topk_prob": true},
		"scaled":            {"routed_scaling_factor": 2.5},
		"groups": {"topk_method": "group_limited_greedy", "n_routed_experts": 6, "n_group": 3, "topk_group": 2,
			"num_experts_per_tok": 3, "routed_scaling_factor": 3.0},
		"wide": {"hidden_size": 129, "kv_lora_rank": 65, "qk_nope_head_dim": 33, "qk_rope_head_dim": 34, "v_head_dim": 31, "moe_intermediate_size": 67},
	} {
		for _, dt := range []tensor.DType{tensor.BF16, tensor.F32} {
			t.Run(name+" "+dt.String(), func(t *testing.T) {
				cfg := oddConfig(t, fields)
				set := drawn(t, cfg, dt, 5)
				for _, dev := range []load.Device{processor(t, 2), refdevice.Device{}} {
					for _, q := range shapeRun(t, dev, cfg, set) {
						agreeWithOracle(t, dev.Name(), cfg, set, q)
					}
				}
			})
		}
	}
}

// oddQwen is oddConfig for grouped-query attention.
func oddQwen(t *testing.T, fields map[string]any) *model.Config {
	t.Helper()
	return parsed(t, map[string]any{
		"model_type": "qwen2", "num_hidden_layers": 4, "hidden_size": 54, "vocab_size": 77, "max_position_embeddings": 128,
		"rms_norm_eps": 1e-5, "intermediate_size": 45, "num_attention_heads": 9, "num_key_value_heads": 3, "rope_theta": 10000.0,
		"tie_word_embeddings": false, "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1,
	}, fields)
}

// TestShapesQwen2 is TestShapes for dense models with grouped-query attention.
func TestShapesQwen2(t *testing.T) {
	for name, fields := range map[string]map[string]any{
		"as is":           {}, // 9 heads of 6, 3 of each key head
		"one key head":    {"num_key_value_heads": 1},
		"a key head each": {"num_key_value_heads": 9},
		"one head":        {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 34},
		"heads of two":    {"head_dim": 2},
		"wide heads":      {"head_dim": 70, "num_attention_heads": 3, "num_key_value_heads": 1},
		"odd hidden":      {"hidden_size": 51, "head_dim": 10},
		"tied head":       {"tie_word_embeddings": true},
		"linear":          {"rope_scaling": map[string]any{"type": "linear", "factor": 3.0}},
		"yarn":            {"rope_scaling": map[string]any{"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
	} {
		for _, bias := range []bool{true, false} {
			for _, dt := range []tensor.DType{tensor.BF16, tensor.F32} {
				t.Run(fmt.Sprintf("%s, bias %t, %s", name, bias, dt), func(t *testing.T) {
					cfg := oddQwen(t, fields)
					setBias(cfg, bias)
					set := drawn(t, cfg, dt, 5)
					for _, dev := range []load.Device{processor(t, 2), refdevice.Device{}} {
						for _, q := range shapeRun(t, dev, cfg, set) {
							agreeWithOracle(t, dev.Name(), cfg, set, q)
						}
					}
				})
			}
		}
	}
}

// TestShapesQwen3 is TestShapes for grouped-query attention with normed heads, dense and with
// experts.
func TestShapesQwen3(t *testing.T) {
	moe := func(more map[string]any) map[string]any {
		fields := map[string]any{"model_type": "qwen3_moe", "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 11}
		maps.Copy(fields, more)
		return fields
	}
	for name, fields := range map[string]map[string]any{
		"dense":             {"model_type": "qwen3", "head_dim": 10},
		"experts":           moe(nil),
		"normalised":        moe(map[string]any{"norm_topk_prob": true}),
		"every other layer": moe(map[string]any{"decoder_sparse_step": 2}),
		"a dense layer":     moe(map[string]any{"mlp_only_layers": []int{0, 2}}),
	} {
		t.Run(name, func(t *testing.T) {
			cfg := oddQwen(t, fields)
			set := drawn(t, cfg, tensor.BF16, 5)
			host := processor(t, 2)
			sim, err := hostsim.New(hostsim.Options{CPU: host})
			if err != nil {
				t.Fatal(err)
			}
			defer sim.Close()
			for _, dev := range []load.Device{host, sim, refdevice.Device{}} {
				for _, q := range shapeRun(t, dev, cfg, set) {
					agreeWithOracle(t, dev.Name(), cfg, set, q)
				}
			}
		})
	}
}

// TestMixedLayers: each layer has a mixer, a rotation, a width of cached rows and a network of
// its own.
func TestMixedLayers(t *testing.T) {
	cfg := oddConfig(t, map[string]any{"hidden_size": 54})
	few := oddQwen(t, map[string]any{"rope_theta": 500.0, "num_key_value_heads": 1})
	many := oddQwen(t, map[string]any{"head_dim": 10})
	for layer, other := range map[int]*model.Config{1: few, 3: many} {
		spec := &cfg.Layers[layer]
		spec.Mixer, spec.Roles = other.Layers[layer].Mixer, maps.Clone(spec.Roles)
		maps.Copy(spec.Roles, other.Roles)
	}
	if n := cfg.KVBlockBytes(1, tensor.BF16); n != 2*(2*(19+6)+2*6+2*3*10) {
		t.Errorf("%d bytes of KV cache for a token", n)
	}
	set := drawn(t, cfg, tensor.BF16, 5)
	for _, dev := range []load.Device{processor(t, 2), refdevice.Device{}} {
		for _, q := range shapeRun(t, dev, cfg, set) {
			agreeWithOracle(t, dev.Name(), cfg, set, q)
		}
	}
}

// setBias gives every layer biases or takes them away.
func setBias(cfg *model.Config, bias bool) {
	for i := range cfg.Layers {
		a := cfg.Layers[i].Mixer.(model.GQA)
		a.Bias = bias
		cfg.Layers[i].Mixer = a
	}
}

// ran is a text and the logits the stages gave for it.
type ran struct {
	text   []int32
	logits [][]float32
}

// shapeRun runs two texts, batched and in chunks, and decodes two tokens after
// each.
func shapeRun(t *testing.T, dev load.Device, cfg *model.Config, set *weights.Set) []ran {
	t.Helper()
	lim := stages.Limits{Tokens: 9, Seqs: 2, LogitRows: 9, Blocks: 16, BlockTokens: 3}
	parts, err := load.Model(dev, cfg, set, load.Options{Limits: lim, KVType: tensor.F32, Partition: load.Even(4, 2)})
	if err != nil {
		t.Fatal(err)
	}
	defer parts.Close()
	m, err := direct.New(dev, parts)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	out := []ran{{text: []int32{5, 76, 0, 33, 8, 21, 60, 2, 9, 44, 17}}, {text: []int32{1, 70, 70, 12}}}
	seqs := make([]*drive.Sequence, len(out))
	for i := range out {
		seqs[i] = &drive.Sequence{Prompt: out[i].text, New: 3, All: true, See: func(_ int, row []float32) {
			out[i].logits = append(out[i].logits, slices.Clone(row))
		}}
	}
	if err := drive.Run(m, seqs, drive.Options{Chunk: 4}); err != nil {
		t.Fatal(err)
	}
	for i, q := range seqs {
		out[i].text = slices.Concat(out[i].text, q.Out[:2])
	}
	return out
}

// agreeWithOracle allows the goldens' tolerance for logits.
func agreeWithOracle(t *testing.T, device string, cfg *model.Config, set *weights.Set, q ran) {
	t.Helper()
	want, err := oracle.Logits(cfg, compare.Weights(set), q.text)
	if err != nil {
		t.Fatal(err)
	}
	if len(q.logits) != len(want) {
		t.Fatalf("%s: logits of %d positions, %d expected", device, len(q.logits), len(want))
	}
	for pos := range want {
		for i, w := range want[pos] {
			if got := q.logits[pos][i]; !(math.Abs(float64(got)-w) <= 1e-3) {
				t.Fatalf("%s: position %d, logit %d is %v, the oracle has %v", device, pos, i, got, w)
			}
		}
	}
}
