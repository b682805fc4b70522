package suspect

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/stages/model"
	"krater/stages/oracle"
)

// reading is a wrong reading of a family's code or files, and how it is named. It is planted by other means than the search has: another
// config, other weights, or values that this file computes.
type reading struct {
	models string // golden folders
	what   string
	layer  int    // the first that may have op
	op     string // the first operator that comes out wrong
	named  string // part of the suspect's What

	config  func(c *model.Config)
	weights func(name string, read func(name string) []float32) []float32 // nil: as it is
	values  func(l *oracle.Layer) []float64
}

const (
	qwen35 = "qwen3_5 qwen3_5_moe"
	qwens  = qwen35 + " qwen4_exp"
	gemmas = "gemma4_moe gemma4_e"
	dsa    = "deepseek_v32 glm_moe_dsa"
	v4     = "deepseek_v4"
)

// readings lists them by what they are about.
var readings = slices.Concat(normReadings, deltaReadings, streamReadings, mixedReadings, indexReadings, poolReadings, gemmaReadings, localReadings, denseReadings, entryReadings)

var normReadings = []reading{
	{models: qwen35 + " minimax_m3", what: "norms by w, not 1 + w", op: "input_norm", named: "input_layernorm.weight minus 1",
		config: func(c *model.Config) { c.CentredNorms = false }},
	{models: gemmas, what: "norms by 1 + w, not w", op: "input_norm", named: "input_layernorm.weight plus 1",
		config: func(c *model.Config) { c.CentredNorms = true }},
	{models: "qwen4_exp", what: "norms of the streams by w, not 1 + w", op: "input_norm", named: "norms of the streams by w",
		weights: changed("hc_norm.weight", func(v float32) float32 { return v - 1 })},
	{models: qwens, what: "the norm of DeltaNet by 1 + w", op: "attn", named: "linear_attn.norm.weight plus 1",
		weights: changed("linear_attn.norm.weight", func(v float32) float32 { return v + 1 })},
	{models: "qwen3", what: "no norms of queries and keys", op: "q_norm", named: "no norm",
		values: func(l *oracle.Layer) []float64 { return l.Get("q") }},
	{models: qwens + " " + gemmas + " minimax_m3 llama3 qwen3 mistral", what: "rope over neighbouring values", op: "q_pe",
		named: "rope over neighbouring values", config: func(c *model.Config) { turnOver(c) }},
	{models: "deepseek_v32", what: "rope over halves", op: "q_pe", named: "rope over halves of a head", config: func(c *model.Config) { turnOver(c) }},
	{models: "qwen3_5_moe qwen4_exp", what: "weights of experts not divided by their sum", op: "router_weights", named: "router weights not divided by their sum",
		config: func(c *model.Config) { c.MoE.Router.Normalize = false }},
	{models: "qwen3_5_moe", what: "the shared expert's gate left out", op: "shared_out", named: "the shared expert's gate missing",
		values: func(l *oracle.Layer) []float64 { return l.Get("shared_raw") }},
	{models: dsa, what: "weights of experts with the correction", op: "router_weights", named: "e_score_correction_bias added to the weights too",
		values: corrected},
}

var deltaReadings = []reading{
	{models: qwens, what: "q_proj as all queries, then all gates", op: "q", named: "the first half of q_proj", values: func(l *oracle.Layer) (out []float64) {
		for row := range slices.Chunk(l.Get("q_and_gate"), 2*l.Heads*l.HeadDim) {
			out = append(out, row[:l.Heads*l.HeadDim]...)
		}
		return out
	}},
	{models: qwens, what: "key heads repeated in turn", op: "delta_out", named: "value heads dealt to key heads in turn", values: recurrence{tiled: true}.values},
	{models: qwens, what: "no unit length", op: "delta_out", named: "queries and keys not of unit length", values: recurrence{raw: true}.values},
	{models: qwens, what: "the decay after the write", op: "delta_out", named: "the decay after the token is written", values: recurrence{late: true}.values},
	{models: qwens, what: "taps reversed", op: "delta_conv", named: "the convolution's taps in the reverse order",
		weights: func(name string, read func(string) []float32) []float32 {
			if !strings.HasSuffix(name, "linear_attn.conv1d.weight") {
				return nil
			}
			w := slices.Clone(read(name))
			for taps := range slices.Chunk(w, 4) {
				slices.Reverse(taps)
			}
			return w
		}},
	{models: qwen35, what: "gated first, then normed", op: "attn", named: "the output gated first, then normed", values: func(l *oracle.Layer) []float64 {
		x, z := l.Get("delta_out"), l.Gates()
		gated := make([]float64, len(x))
		for i, v := range x {
			gated[i] = v * z[i] / (1 + math.Exp(-z[i]))
		}
		return root(gated, l.Weight(l.Tensor("delta_norm"), 0), l.DeltaEps)
	}},
	{models: "qwen4_exp glm5_next", what: "SiLU for DeltaNet's gates", op: "attn", named: "SiLU for the gate", config: func(c *model.Config) {
		for i := range c.Layers {
			if m, ok := c.Layers[i].Mixer.(model.DeltaNet); ok {
				m.Sizes.SigmoidGate = false
				c.Layers[i].Mixer = m
			}
		}
	}},
}

var streamReadings = []reading{
	{models: "qwen4_exp", what: "n-grams across the end of a text", op: "ngram_rows", named: "n-grams that run across the end", values: ngrams{across: true}.values},
	{models: "qwen4_exp", what: "token 0 before the start", op: "ngram_rows", named: "token 0 in the place of", values: ngrams{zero: true}.values},
	{models: "qwen4_exp", what: "one prime for all heads", op: "ngram_rows", named: "as many rows of the table for each head", values: ngrams{alike: true}.values},
	{models: "qwen4_exp", what: "no dilation", op: "ple_out", named: "taps of the convolution that follow one another", values: undilated},
	{models: "qwen4_exp", what: "no signed root", op: "ple_gate", named: "signed square root", values: func(l *oracle.Layer) (out []float64) {
		for _, v := range l.Get("ple_gate") {
			out = append(out, math.Copysign(v*v, v))
		}
		return out
	}},
	{models: "qwen4_exp", what: "streams normed as one", layer: 1, op: "input_norm", named: "streams normed as one row", values: mixture{whole: true}.values},
	{models: "qwen4_exp", what: "streams summed", op: "input_norm", named: "streams summed", values: mixture{sum: true}.values},
	{models: "qwen4_exp", what: "raw streams weighed", op: "input_norm", named: "weights of the raw streams", values: mixture{raw: true}.values},
	{models: "qwen4_exp", what: "a norm at the end", layer: -1, op: "final_norm", named: "one more RMSNorm", values: func(l *oracle.Layer) []float64 {
		return root(l.Get("final_norm"), slices.Repeat([]float32{1}, l.Config.Hidden), float64(l.Config.NormEps))
	}},
	{models: "qwen4_exp", what: "index keys normed first", op: "indexer_block_keys", named: "normed before the mean", values: blockKeys{early: true}.values},
	{models: "qwen4_exp", what: "index keys rotated to the last token", op: "indexer_block_keys", named: "rotated to the position of the last token", values: blockKeys{last: true}.values},
	{models: "qwen4_exp", what: "the block just completed", op: "attn_ungated", named: "the block that a token completes", values: func(l *oracle.Layer) []float64 {
		return seen(l, func(_, i, j int) bool { return j/l.Blocks.Block == i/l.Blocks.Block || listed(l, 0, i, j) })
	}},
	{models: "qwen4_exp", what: "no tail", op: "attn_ungated", named: "the tokens behind the last whole block left out", values: func(l *oracle.Layer) []float64 {
		return seen(l, func(_, i, j int) bool {
			return i == j || j/l.Blocks.Block < (i+1)/l.Blocks.Block && listed(l, 0, i, j)
		})
	}},
}

const mixedStreams = "deepseek_v4 glm5_next"

var mixedReadings = []reading{
	{models: mixedStreams, what: "the matrix of the streams transposed", op: "streams_mid", named: "the matrix of the streams transposed", values: transposedMix},
	{models: mixedStreams, what: "the matrix divided by rows first", op: "attn_hc_comb", named: "divided by its rows first", values: mixMatrix{rows: true}.values},
	{models: mixedStreams, what: "one division of the matrix", op: "mlp_hc_comb", named: "divided by its columns once alone", values: mixMatrix{once: true, mlp: true}.values},
	{models: mixedStreams, what: "outputs without the factor 2", op: "attn_hc_post", named: "the factor 2 of the streams' weights missing", values: func(l *oracle.Layer) (out []float64) {
		for _, v := range l.Define("attn_hc_post") {
			out = append(out, v/2)
		}
		return out
	}},
	{models: "glm5_next", what: "decays by softplus", op: "delta_out", named: "decays by softplus, without the lower bound", values: softplusDecays},
}

var poolReadings = []reading{
	{models: "glm5_next", what: "pools averaged evenly", op: "indexer_block_keys", named: "pools averaged evenly", values: func(l *oracle.Layer) []float64 {
		keys, d, r := l.Get("indexer_keys"), l.Indexer.Dim, l.Indexer.Pool
		out := make([]float64, l.T/r*d)
		for i := range out {
			for j := range r {
				out[i] += keys[(i/d*r+j)*d+i%d] / float64(r)
			}
		}
		return out
	}},
	{models: "glm5_next", what: "no ReLU", op: "indexer_scores", named: "the ReLU of index scores missing", values: func(l *oracle.Layer) []float64 {
		q, k, w, d, heads := l.Get("indexer_query"), l.Get("indexer_block_keys"), l.Get("indexer_weights"), l.Indexer.Dim, l.Indexer.Heads
		n := l.T / l.Indexer.Pool
		out := make([]float64, l.T*n)
		for i := range l.T {
			for j := range (i + 1) / l.Indexer.Pool {
				for h := range heads {
					for c := range d {
						out[i*n+j] += w[i*heads+h] * q[(i*heads+h)*d+c] * k[j*d+c] / math.Sqrt(float64(d))
					}
				}
			}
		}
		return out
	}},
	{models: "glm5_next", what: "the pool just completed", layer: 1, op: "attn", named: "the pool that a token completes", values: func(l *oracle.Layer) []float64 {
		return latentSeen(l, func(i, j int) bool { return j/l.Indexer.Pool == i/l.Indexer.Pool || pooled(l, i, j) })
	}},
}

var indexReadings = []reading{
	{models: dsa, what: "no ReLU", op: "indexer_scores", named: "the ReLU of index scores missing", values: func(l *oracle.Layer) []float64 {
		q, k, w, d := l.Get("indexer_query"), l.Get("indexer_keys"), l.Get("indexer_weights"), l.Indexer.Dim
		out := make([]float64, l.T*l.T)
		for i := range l.T {
			for j := range i + 1 {
				for h := range l.Indexer.Heads {
					for c := range d {
						out[i*l.T+j] += w[i*l.Indexer.Heads+h] * q[(i*l.Indexer.Heads+h)*d+c] * k[j*d+c] / math.Sqrt(float64(d))
					}
				}
			}
		}
		return out
	}},
	{models: dsa, what: "index heads in the other family's pairs", op: "indexer_query", named: "index heads rotated over", config: func(c *model.Config) {
		for i := range c.Layers {
			m := c.Layers[i].Mixer.(model.MLA)
			m.Index.Interleaved = !m.Index.Interleaved
			c.Layers[i].Mixer = m
		}
	}},
	{models: dsa, what: "the last values of index heads", op: "indexer_query", named: "the last values of index heads rotated", values: func(l *oracle.Layer) []float64 {
		return turnLast(l, l.Get("index_q"), l.Indexer.Dim, l.Indexer.Interleaved)
	}},
	{models: dsa + " glm5_next", what: "RMSNorm of index keys", op: "indexer_keys", named: "RMSNorm in the place of the LayerNorm", values: func(l *oracle.Layer) []float64 {
		x := root(l.Get("index_k"), l.Weight(l.Tensor("index_norm"), 0), float64(l.Indexer.NormEps))
		for i, b := range slices.Repeat(l.Weight(l.Tensor("index_norm_bias"), 0), l.T) {
			x[i] += float64(b)
		}
		return turned(l, x, l.Indexer.Dim, 0, l.Indexer.Interleaved)
	}},
	{models: "glm_moe_dsa", what: "a layer that shares a choice sees everything", layer: 2, op: "attn", named: "all tokens attended to", config: func(c *model.Config) {
		m := c.Layers[2].Mixer.(model.MLA)
		m.Index = model.Indexer{}
		c.Layers[2].Mixer = m
	}},
	{models: "deepseek_v32", what: "no mscale", op: "attn", named: "scores scaled by 1/sqrt(head size) alone", config: func(c *model.Config) {
		for i := range c.Layers {
			m := c.Layers[i].Mixer.(model.MLA)
			m.Scale = float32(1 / math.Sqrt(float64(m.QKDim())))
			c.Layers[i].Mixer = m
		}
	}},
}

var gemmaReadings = []reading{
	{models: gemmas, what: "scores scaled", op: "attn", named: "scores scaled by 1/sqrt(head size) alone", config: func(c *model.Config) {
		grouped(c, func(a *model.GQA) { a.Scale = float32(1 / math.Sqrt(float64(a.HeadDim))) })
	}},
	{models: gemmas, what: "values not normed", op: "v_norm", named: "values not normed", values: func(l *oracle.Layer) []float64 { return l.Get("v") }},
	{models: "gemma4_moe", what: "values of rotated keys", layer: 2, op: "v_norm", named: "the normed and rotated keys for values",
		values: func(l *oracle.Layer) []float64 { return l.Get("k_pe") }},
	{models: gemmas, what: "frequencies of the rotated part", layer: 2, op: "q_pe", named: "frequencies over the values that are rotated", config: func(c *model.Config) {
		r := c.Layers[2].Mixer.Rotary()
		n := slices.Index(r.InvFreq, 0)
		for i := range n {
			r.InvFreq[i] = math.Pow(r.Theta, -float64(i)/float64(n))
		}
	}},
	{models: gemmas, what: "pairs of the rotated part", layer: 2, op: "q_pe", named: "pairs within the values that are rotated", config: func(c *model.Config) {
		r := c.Layers[2].Mixer.Rotary()
		r.InvFreq = r.InvFreq[:slices.Index(r.InvFreq, 0)]
	}},
	{models: "gemma4_moe", what: "the router reads the network's input", op: "router_norm", named: "the input normed for the network", values: func(l *oracle.Layer) []float64 {
		x := slices.Clone(l.Get("post_norm"))
		for i, w := range slices.Repeat(l.Weight(l.Tensor("router_norm"), 0), l.T) {
			x[i] *= float64(w) / math.Sqrt(float64(l.Config.Hidden))
		}
		return x
	}},
	{models: "gemma4_moe", what: "the router without 1/sqrt(hidden size)", op: "router_norm", named: "1/sqrt(hidden size) of the router's norm missing",
		weights: changed("router.scale", func(v float32) float32 { return v * float32(math.Sqrt(96)) })},
	{models: "gemma4_moe", what: "no factors of experts", op: "router_weights", named: "factors of experts missing",
		weights: changed("per_expert_scale", func(float32) float32 { return 1 })},
	{models: "gemma4_moe", what: "experts read the network's norm", op: "expert_norm", named: "pre_feedforward_layernorm.weight in the place of",
		weights: func(name string, read func(string) []float32) []float32 {
			if !strings.HasSuffix(name, "pre_feedforward_layernorm_2.weight") {
				return nil
			}
			return read(strings.Replace(name, "_2.weight", ".weight", 1))
		}},
	{models: gemmas, what: "no layer_scalar", op: "layer_out", named: "layer_scalar missing", weights: changed("layer_scalar", func(float32) float32 { return 1 })},
	{models: gemmas, what: "no softcap", layer: -1, op: "logits", named: "final_logit_softcapping missing", config: func(c *model.Config) { c.Softcap = 0 }},
	{models: "gemma4_moe", what: "exact GELU", op: "shared_out", named: "exact GELU", values: func(l *oracle.Layer) []float64 { return erf(l, l.Shared) }},
	{models: "gemma4_e", what: "exact GELU", op: "mlp_raw", named: "exact GELU", values: func(l *oracle.Layer) []float64 { return erf(l, l.Dense) }},
	{models: "gemma4_e", what: "no rows of tokens", layer: -1, op: "per_layer_inputs", named: "the token's own rows missing",
		weights: changed("embed_tokens_per_layer.weight", func(float32) float32 { return 0 })},
	{models: "gemma4_e", what: "keys of the first layer", layer: 3, op: "attn", named: "keys and values of layer 0, not of layer 1", config: func(c *model.Config) { c.Layers[3].KV = 0 }},
}

var localReadings = []reading{
	{models: "minimax_m3", what: "plain SwiGLU", op: "mlp_out", named: "activation silu(gate) * up", config: func(c *model.Config) {
		c.Layers[0].FFN = model.Dense{FF: c.Layers[0].FFN.(model.Dense).FF}
	}},
	{models: "minimax_m3", what: "the own block not forced", op: "indexer_selected", named: "own block not always chosen",
		values: func(l *oracle.Layer) []float64 { return flat(l, best(l, 0, l.Blocks.Chosen)) }},
	{models: "minimax_m3", what: "the own block on top", layer: 1, op: "attn", named: "own block chosen on top of the best", values: func(l *oracle.Layer) []float64 {
		list := best(l, 1, l.Blocks.Chosen+1)
		return seen(l, func(h, i, j int) bool { return slices.Contains(list[i][h*l.Blocks.Heads/l.Heads], j/l.Blocks.Block) })
	}},
	{models: "minimax_m3", what: "one choice", op: "indexer_selected", named: "one choice for all heads", values: func(l *oracle.Layer) []float64 {
		list := best(l, 1, l.Blocks.Chosen)
		for i := range list {
			list[i][1] = list[i][0]
		}
		return flat(l, list)
	}},
	{models: "minimax_m3", what: "choices in turn", layer: 1, op: "attn", named: "choices dealt to query heads in turn", values: func(l *oracle.Layer) []float64 {
		list := best(l, 1, l.Blocks.Chosen)
		return seen(l, func(h, i, j int) bool { return slices.Contains(list[i][h%l.Blocks.Heads], j/l.Blocks.Block) })
	}},
}

var denseReadings = []reading{
	{models: "llama3", what: "no scaling of rope", op: "q_pe", named: "frequencies without scaling", config: func(c *model.Config) {
		r := c.Layers[0].Mixer.Rotary()
		for i := range r.InvFreq {
			r.InvFreq[i] = math.Pow(r.Theta, -2*float64(i)/float64(r.Dim))
		}
	}},
	{models: "mistral", what: "no window", op: "attn", named: "the sliding window missing", config: func(c *model.Config) { grouped(c, func(a *model.GQA) { a.Window = 0 }) }},
	{models: "mistral", what: "a window one longer", op: "attn", named: "a sliding window one too long", config: func(c *model.Config) { grouped(c, func(a *model.GQA) { a.Window++ }) }},
}

// TestWrongReadings plants each wrong reading into each of its models: a reference that has it, and in long tests an engine that has it.
// The first suspect has to name it.
func TestWrongReadings(t *testing.T) {
	models, pairs := map[string]*known{}, map[string]int{}
	for _, r := range readings {
		for _, name := range strings.Fields(r.models) {
			k := models[name]
			if k == nil {
				k = newKnown(t, name)
				models[name] = k
			}
			pairs[name]++
			t.Run(name+"/"+r.what, func(t *testing.T) {
				k.plant(t, &r, reference)
				if !testing.Short() {
					k.plant(t, &r, engine)
				}
			})
		}
	}
	all := 0
	for _, n := range pairs {
		all += n
	}
	t.Logf("%d pairs: %v", all, pairs)
}

// known is a golden's model and all of its operators for a text, by their definitions.
type known struct {
	read   func(t *testing.T) *model.Config
	weight oracle.Weight
	ids    []int32
	values map[string][]float64
}

func newKnown(t *testing.T, name string) *known {
	t.Helper()
	c := goldenCase(t, name)
	k := &known{weight: c.Weight, values: map[string][]float64{}, read: func(t *testing.T) *model.Config {
		t.Helper()
		data, err := os.ReadFile(filepath.Join("../../../testdata/goldens", name, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := model.Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}}
	// The end of a text of Qwen4-Exp, 2, is among them.
	k.ids = []int32{3, 141, 59, 26, 5, 35, 89, 2, 79, 32, 38, 46, 264, 33, 83, 27, 95, 28, 84, 197, 16}
	for i := -1; i < len(c.Config.Layers); i++ {
		k.compute(t, c.Config, i)
	}
	k.compute(t, c.Config, -1)
	return k
}

// compute adds the operators of a layer, those outside that can be computed so far.
func (k *known) compute(t *testing.T, cfg *model.Config, layer int) {
	t.Helper()
	l, err := oracle.New(cfg, k.weight, k.ids, layer, k.given)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range l.Order {
		if late := op == "final_norm" || op == "logits"; late && k.given(len(cfg.Layers)-1, "layer_out") == nil {
			continue
		}
		k.values[place(layer, op)] = l.Get(op)
	}
	if l.Err != nil {
		t.Fatal(layer, l.Err)
	}
}

func place(layer int, op string) string { return fmt.Sprint(layer, op) }

func (k *known) given(layer int, op string) []float64 { return k.values[place(layer, op)] }

// plant searches for a reading that who has.
func (k *known) plant(t *testing.T, r *reading, who string) {
	t.Helper()
	right, wrong := k.read(t), k.read(t)
	layer := r.layer
	for layer >= 0 && layer < len(right.Layers) && !slices.Contains(oracle.Operators(right, layer), r.op) {
		layer++
	}
	if r.config != nil {
		r.config(wrong)
	}
	weight := k.weight
	if r.weights != nil {
		weight = func(name string) ([]float32, error) {
			var failed error
			w := r.weights(name, func(name string) []float32 {
				var w []float32
				w, failed = k.weight(name)
				return w
			})
			if w != nil || failed != nil {
				return w, failed
			}
			return k.weight(name)
		}
	}
	l, err := oracle.New(wrong, weight, k.ids, layer, func(at int, op string) []float64 {
		if at == layer && op == r.op && r.values == nil {
			return nil
		}
		return k.given(at, op)
	})
	if err != nil {
		t.Fatal(err)
	}
	var values []float64
	if r.values != nil {
		values = r.values(l)
	} else {
		values = l.Define(r.op)
	}
	truth := k.given(layer, r.op)
	if d := distance(values, truth); l.Err != nil || !(d > 1e-4) {
		t.Fatalf("it changes %s of layer %d by %v: %v", r.op, layer, d, l.Err)
	}
	c := &Case{Config: right, Weight: k.weight, IDs: k.ids, Layer: layer, Op: r.op, Want: narrow(values)}
	seen := truth
	if who == engine {
		c.Want, seen = narrow(truth), values
	}
	c.Seen = func(at int, op string) []float32 {
		if at == layer && op == r.op {
			return narrow(seen)
		}
		if v := k.given(at, op); v != nil {
			return narrow(v)
		}
		return nil
	}
	order := oracle.Operators(right, layer)
	c.Agreed = func(op string) bool { return slices.Index(order, op) < slices.Index(order, r.op) }
	f, err := Find(c)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Suspects) == 0 || f.Suspects[0].Who != who || f.Suspects[0].Op != r.op || !strings.Contains(f.Suspects[0].What, r.named) {
		t.Errorf("%s of layer %d, %s: %d tried, suspects %v", r.op, layer, who, f.Tried, f.Suspects)
	}
}
