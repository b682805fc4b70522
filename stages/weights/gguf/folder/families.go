package folder

import (
	"fmt"
	"math"
)

// family is how llama.cpp stores the models of an architecture.
type family struct {
	config  func(r *reader, c map[string]any)
	renamed map[string]string // stored suffix -> name in the release, where it is not the usual one
	permute bool              // rows of queries and keys are permuted
	addOne  bool              // norms hold 1 + w
	tiled   bool              // value heads of linear attention are in the order of tiles
	latent  bool              // attention is latent: one key head
	varied  bool              // sizes and rotation differ by layer: config reads them all
	own     [][2]string       // tensors of a layer that others lack, as usual has them
	outer   [][2]string       // the same outside the layers
	within  string            // what names in the release begin with; "": model.
}

var families = map[string]*family{
	"llama":      {config: llama, permute: true},
	"qwen2":      {config: dense("qwen2", "Qwen2ForCausalLM")},
	"qwen3":      {config: dense("qwen3", "Qwen3ForCausalLM")},
	"qwen2moe":   {config: qwen2MoE, renamed: sharedExpert},
	"qwen3moe":   {config: qwen3MoE},
	"qwen3next":  {config: qwen3Next, renamed: sharedExpert, addOne: true},
	"qwen35":     {config: qwen35, addOne: true, tiled: true, own: tiledLinear},
	"qwen35moe":  {config: qwen35MoE, renamed: sharedExpert, addOne: true, tiled: true, own: tiledLinear},
	"gemma4":     {config: gemma4, renamed: gemma4Names, own: gemma4Own, outer: gemma4Outer, varied: true, within: "model.language_model."},
	"olmoe":      {config: olmoe},
	"deepseek2":  {config: deepSeek, latent: true},
	"deepseek32": {config: sparse("deepseek_v32", "DeepseekV32ForCausalLM"), own: indexerNames, latent: true},
	"glm-dsa":    {config: sparse("glm_moe_dsa", "GlmMoeDsaForCausalLM"), own: indexerNames, latent: true},
	"glm4moe":    {config: glm4MoE},
	"minimax-m2": {config: miniMax, renamed: blockSparse},
	"gpt-oss":    {config: gptOSS, renamed: map[string]string{"ffn_gate_inp.weight": "mlp.router.weight", "ffn_gate_inp.bias": "mlp.router.bias"}},
}

// mixtral is the family of the architecture llama if the model has experts.
var mixtral = &family{config: llama, renamed: blockSparse, permute: true}

// sharedExpert are the names of families whose one shared expert has a gate.
var sharedExpert = map[string]string{
	"ffn_gate_shexp.weight": "mlp.shared_expert.gate_proj.weight",
	"ffn_up_shexp.weight":   "mlp.shared_expert.up_proj.weight",
	"ffn_down_shexp.weight": "mlp.shared_expert.down_proj.weight",
}

// blockSparse are the names that Mixtral and MiniMax-M2 have.
var blockSparse = map[string]string{
	"ffn_gate_inp.weight":  "block_sparse_moe.gate.weight",
	"exp_probs_b.bias":     "block_sparse_moe.e_score_correction_bias",
	"ffn_gate_exps.weight": "block_sparse_moe.experts.*.w1.weight",
	"ffn_down_exps.weight": "block_sparse_moe.experts.*.w2.weight",
	"ffn_up_exps.weight":   "block_sparse_moe.experts.*.w3.weight",
}

// common are the fields that all families have.
func common(r *reader, varied bool) map[string]any {
	c := map[string]any{
		"hidden_size":             r.int("embedding_length", maxSize),
		"num_hidden_layers":       r.int("block_count", maxLayers) - r.intOr("nextn_predict_layers", 0, maxLayers),
		"max_position_embeddings": r.int("context_length", maxSize),
		"num_attention_heads":     r.int("attention.head_count", maxSize),
		"rms_norm_eps":            r.float("attention.layer_norm_rms_epsilon"),
		"tie_word_embeddings":     !r.stored("output.weight"),
		"attention_bias":          false,
	}
	if c["num_hidden_layers"].(int64) < 0 {
		r.errs = append(r.errs, fmt.Errorf("%s: %w: fewer layers than predict further tokens", r.key("block_count"), ErrMetadata))
	}
	if !varied {
		alike(r, c)
	}
	embed, ok := r.file.Tensor("token_embd.weight")
	if !ok || len(embed.Shape) != 2 {
		r.errs = append(r.errs, fmt.Errorf("%w: token_embd.weight is missing or no matrix", ErrTensor))
	} else {
		c["vocab_size"] = int64(embed.Shape[0])
	}
	storedAs(r, c)
	tokenIDs(r, c)
	return c
}

// alike are the fields of families whose layers have one size and one rotation.
func alike(r *reader, c map[string]any) {
	c["hidden_act"], c["rope_theta"] = "silu", float64(10000)
	c["num_key_value_heads"] = r.intOr("attention.head_count_kv", c["num_attention_heads"].(int64), maxSize)
	if r.has("rope.freq_base") {
		c["rope_theta"] = r.float("rope.freq_base")
	}
	if r.has("attention.key_length") {
		c["head_dim"] = r.int("attention.key_length", maxSize)
	}
	if r.has("feed_forward_length") {
		c["intermediate_size"] = r.int("feed_forward_length", maxSize)
	}
	ropeScaling(r, c)
}

// storedAs gives torch_dtype for files of plain numbers.
func storedAs(r *reader, c map[string]any) {
	names := map[string]string{"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
	for _, name := range r.file.Names() {
		t, _ := r.file.Tensor(name)
		dtype, plain := names[t.Type.String()]
		if !plain {
			delete(c, "torch_dtype")
			return
		}
		if _, set := c["torch_dtype"]; !set || dtype != "float32" {
			c["torch_dtype"] = dtype
		}
	}
}

// tokenIDs gives the special tokens. Generation ends with eos and with eot, where that is
// another.
func tokenIDs(r *reader, c map[string]any) {
	id := func(name string) (int64, bool) {
		n, err := r.Int("tokenizer.ggml." + name)
		return n, err == nil && n >= 0 && n < maxSize
	}
	if n, ok := id("bos_token_id"); ok {
		c["bos_token_id"] = n
	}
	if n, ok := id("padding_token_id"); ok {
		c["pad_token_id"] = n
	}
	var ends []int64
	for _, name := range []string{"eos_token_id", "eot_token_id"} {
		if n, ok := id(name); ok && (len(ends) == 0 || n != ends[0]) {
			ends = append(ends, n)
		}
	}
	switch len(ends) {
	case 1:
		c["eos_token_id"] = ends[0]
	case 2:
		c["eos_token_id"] = ends
	}
}

// ropeScaling gives rope_scaling, if there is any.
func ropeScaling(r *reader, c map[string]any) {
	kind := r.stringOr("rope.scaling.type", "none")
	switch kind {
	case "linear":
		c["rope_scaling"] = map[string]any{"type": kind, "factor": r.float("rope.scaling.factor")}
	case "yarn":
		s := map[string]any{
			"type": kind, "factor": r.float("rope.scaling.factor"),
			"original_max_position_embeddings": r.int("rope.scaling.original_context_length", maxSize),
		}
		for key, field := range map[string]string{"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"} {
			if r.has("rope.scaling." + key) {
				s[field] = r.float("rope.scaling." + key)
			}
		}
		if r.has("rope.scaling.yarn_log_multiplier") && families[r.arch].latent {
			// llama.cpp keeps a tenth of mscale_all_dim. It does not keep mscale, which is equal in
			// every release.
			m := short(10 * r.float("rope.scaling.yarn_log_multiplier"))
			s["mscale"], s["mscale_all_dim"] = m, m
		}
		if r.has("rope.scaling.yarn_attn_factor") && r.float("rope.scaling.yarn_attn_factor") != 1 {
			r.errs = append(r.errs, fmt.Errorf("%s: %w: only 1 is supported", r.key("rope.scaling.yarn_attn_factor"), ErrMetadata))
		}
		c["rope_scaling"] = s
	case "none":
		if r.stored("rope_freqs.weight") {
			llama3Rope(r, c)
		}
	default:
		r.errs = append(r.errs, fmt.Errorf("%s: %w: rope scaling %.40q is not supported", r.key("rope.scaling.type"), ErrMetadata, kind))
	}
}

// llama3Rope finds the rope_scaling of Llama 3 in the factors that llama.cpp stores in its place.
// Only original/low and original/high matter, so low is taken to be 1, as in every release.
// Factors that the result does not give are refused.
func llama3Rope(r *reader, c map[string]any) {
	t, _ := r.file.Tensor("rope_freqs.weight")
	factors := make([]float32, min(len(t.Data)/4, maxRopeFactors))
	if err := t.Type.Decode(factors, t.Data); err != nil || len(factors) == 0 {
		r.errs = append(r.errs, fmt.Errorf("rope_freqs.weight: %w: shape %v of %s", ErrTensor, t.Shape, t.Type))
		return
	}
	s := fitLlama3(factors, c["rope_theta"].(float64))
	for i, got := range factors {
		if want := s.factorOf(waveLength(c["rope_theta"].(float64), i, len(factors))); !(math.Abs(float64(got)-want) <= 1e-5*want) {
			r.errs = append(r.errs, fmt.Errorf("rope_freqs.weight: %w: factor %d is %g, which is not the scaling of Llama 3", ErrTensor, i, got))
			return
		}
	}
	c["rope_scaling"] = map[string]any{
		"rope_type": "llama3", "factor": s.factor, "low_freq_factor": float64(1), "high_freq_factor": s.high,
		"original_max_position_embeddings": int64(s.original),
	}
}

// maxRopeFactors bounds half a head.
const maxRopeFactors = 1 << 12

// llama3Scaling divides frequencies of waves longer than original by factor, leaves those shorter
// than original/high, and goes over linearly between them.
type llama3Scaling struct{ factor, original, high float64 }

func waveLength(theta float64, i, n int) float64 {
	return 2 * math.Pi * math.Pow(theta, float64(i)/float64(n))
}

func (s llama3Scaling) factorOf(wave float64) float64 {
	switch {
	case wave < s.original/s.high:
		return 1
	case wave > s.original:
		return s.factor
	}
	smooth := (s.original/wave - 1) / (s.high - 1)
	return 1 / ((1-smooth)/s.factor + smooth)
}

// fitLlama3 solves for the scaling by the first and the last factor between 1 and the largest.
func fitLlama3(factors []float32, theta float64) llama3Scaling {
	s := llama3Scaling{factor: short(float64(factors[len(factors)-1])), high: 4}
	var inverse, smooth []float64 // of the waves between
	for i, f := range factors {
		wave := waveLength(theta, i, len(factors))
		if f > 1 && float64(f) < s.factor*(1-1e-6) {
			inverse = append(inverse, 1/wave)
			smooth = append(smooth, (1/float64(f)-1/s.factor)/(1-1/s.factor))
		} else if f > 1 && s.original == 0 {
			s.original = math.Floor(wave)
		}
	}
	switch n := len(inverse); {
	case n == 1:
		s.original = math.Round((smooth[0]*(s.high-1) + 1) / inverse[0])
	case n > 1: // smooth = original/(high-1) * inverse - 1/(high-1)
		slope := (smooth[n-1] - smooth[0]) / (inverse[n-1] - inverse[0])
		low := slope*inverse[0] - smooth[0]
		s.high, s.original = math.Round((1+1/low)*1e4)/1e4, math.Round(slope/low)
	}
	s.original = min(max(s.original, 1), maxSize)
	return s
}
