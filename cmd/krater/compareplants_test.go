package main

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/kernels/tensor"
	"krater/stages/compare"
)

// plant is a mistake in the folder of a golden model: the engine and the search read it wrongly, and the recorded vectors are right.
// Other operators come out wrong too, and most vectors are of single layers: the search has to find op behind what differs first.
type plant struct {
	golden  string
	config  map[string]any                         // fields of config.json, or of its text_config
	weights map[string]func(w []float32) []float32 // by the ends of the names of tensors
	op      string                                 // where the first suspect has the mistake
	named   string                                 // part of its What
}

// tapsReversed has the taps of a convolution in the other order.
var tapsReversed = map[string]func(w []float32) []float32{"conv1d.weight": func(w []float32) []float32 {
	for taps := range slices.Chunk(w, 4) {
		slices.Reverse(taps)
	}
	return w
}}

// plants has those of the short form first.
var plants = []plant{
	{golden: "deepseek_v32", config: map[string]any{"indexer_rope_interleave": true}, op: "indexer_scores", named: "index heads rotated over halves"},
	{golden: "minimax_m3", config: map[string]any{"use_gemma_norm": false}, op: "input_norm", named: "input_layernorm.weight plus 1"},
	{golden: "deepseek_v32", config: map[string]any{"rope_interleave": false}, op: "attn", named: "rope over neighbouring values"},
	{golden: "glm_moe_dsa", config: map[string]any{"indexer_rope_interleave": false}, op: "indexer_scores", named: "index heads rotated over neighbouring values"},
	{golden: "qwen3_5", weights: tapsReversed, op: "delta_conv", named: "taps in the reverse order"},
	{golden: "qwen3_5_moe", weights: tapsReversed, op: "delta_conv", named: "taps in the reverse order"},
	{golden: "qwen4_exp", weights: tapsReversed, op: "delta_conv", named: "taps in the reverse order"},
	{golden: "qwen4_exp", config: map[string]any{"output_gate_type": "silu"}, op: "attn", named: "a sigmoid for the gate"},
	{golden: "qwen4_exp", config: map[string]any{"norm_topk_prob": false}, op: "router_weights", named: "divided by their sum"},
	{golden: "gemma4_e", config: map[string]any{"sliding_window": 7}, op: "attn", named: "a sliding window one too long"},
	{golden: "mistral", config: map[string]any{"sliding_window": 7}, op: "attn", named: "a sliding window one too long"},
	{golden: "glm4_moe", config: map[string]any{"norm_topk_prob": false}, op: "router_weights", named: "divided by their sum"},
	{golden: "glm4_moe", config: map[string]any{"routed_scaling_factor": 1.0}, op: "router_weights", named: "routed_scaling_factor times 2.5"},
	{golden: "deepseek_v2", config: map[string]any{"routed_scaling_factor": 1.0}, op: "router_weights", named: "routed_scaling_factor times 16"},
	{golden: "kimi_k25", config: map[string]any{"norm_topk_prob": false}, op: "router_weights", named: "divided by their sum"},
	{golden: "qwen3_moe", config: map[string]any{"norm_topk_prob": false}, op: "router_weights", named: "divided by their sum"},
	{golden: "deepseek_v4", config: map[string]any{"routed_scaling_factor": 1.0}, op: "router_weights", named: "routed_scaling_factor times 1.5"},
	{golden: "glm5_next", config: map[string]any{"norm_topk_prob": false}, op: "router_weights", named: "divided by their sum"},
	{golden: "glm5_next", config: map[string]any{"routed_scaling_factor": 1.0}, op: "router_weights", named: "routed_scaling_factor times 2.5"},
	{golden: "glm5_next", weights: tapsReversed, op: "delta_conv", named: "taps in the reverse order"},
	{golden: "qwen2", config: map[string]any{"rope_theta": 1e4}, op: "inv_freq", named: "rope_theta 1e+06"},
}

// write makes the folder.
func (p *plant) write(t *testing.T) string {
	t.Helper()
	return copyDir(t, filepath.Join("..", "..", "testdata", "goldens", p.golden), map[string]func([]byte) []byte{
		"config.json": func(data []byte) []byte {
			var c map[string]any
			if err := json.Unmarshal(data, &c); err != nil {
				t.Fatal(err)
			}
			own := c
			if text, ok := c["text_config"].(map[string]any); ok {
				own = text
			}
			maps.Copy(own, p.config)
			data, _ = json.Marshal(c) // plain values
			return data
		},
		"model.safetensors": func(data []byte) []byte { return p.edit(t, data) },
	})
}

// edit changes tensors of BF16 in a safetensors file.
func (p *plant) edit(t *testing.T, data []byte) []byte {
	t.Helper()
	var head map[string]struct {
		DType   string `json:"dtype"`
		Offsets [2]int `json:"data_offsets"`
	}
	n := 8 + int(binary.LittleEndian.Uint64(data))
	if err := json.Unmarshal(data[8:n], &head); err != nil {
		t.Fatal(err)
	}
	edited := 0
	for name, x := range head {
		for suffix, change := range p.weights {
			if !strings.HasSuffix(name, suffix) {
				continue
			}
			if x.DType != "BF16" {
				t.Fatalf("%s is %s", name, x.DType)
			}
			raw := data[n+x.Offsets[0] : n+x.Offsets[1]]
			w := make([]float32, len(raw)/2)
			for i := range w {
				w[i] = tensor.BF16ToF32(binary.LittleEndian.Uint16(raw[2*i:]))
			}
			for i, v := range change(w) {
				binary.LittleEndian.PutUint16(raw[2*i:], tensor.F32ToBF16(v))
			}
			edited++
		}
	}
	if edited == 0 && len(p.weights) > 0 {
		t.Fatal("no such tensor")
	}
	return data
}

// TestCompareNamesPlants: krater compare names mistakes in a model's folder, two of them in the short form.
func TestCompareNamesPlants(t *testing.T) {
	list := plants
	if testing.Short() {
		list = list[:2]
	}
	for _, p := range list {
		o := krater(t, "", "compare", "--model", p.write(t), "--golden", filepath.Join("..", "..", "testdata", "goldens", p.golden), "--json")
		var r compare.Report
		if err := json.Unmarshal([]byte(o.out), &r); err != nil || o.status != 1 {
			t.Errorf("%s, %s: %d, %v: %s", p.golden, p.named, o.status, err, o.err)
			continue
		}
		d := r.Divergence
		if d == nil || len(d.Suspects) == 0 {
			t.Errorf("%s: no suspect, want %s: %+v", p.golden, p.named, d)
			continue
		}
		if x := d.Suspects[0]; x.Who != "reference" || x.Op != p.op || !strings.Contains(x.What, p.named) {
			t.Errorf("%s: %s, want %s in %s", p.golden, x, p.named, p.op)
		}
	}
}
