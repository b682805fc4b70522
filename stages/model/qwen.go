package model

import "math"

var _ = register("qwen2", parseQwen2)

// parseQwen2 reads the dense Qwen2 family (Qwen2, Qwen2.5; arXiv 2407.10671):
// grouped-query attention with biases on queries, keys and values, a SwiGLU
// network in every layer. The biases are part of the family, no field says so.
func parseQwen2(f fields) *Config {
	c, layers := common(f)
	ffn, a := denseFF(f), groupedQuery(f, c)
	a.Bias = true
	fullAttention(f, layers)
	c.Stack(layers, Usual(gqaRoles), func(int) (Mixer, FFN) { return a, ffn })
	return c
}

// groupedQuery reads attention without biases that rotates whole heads.
func groupedQuery(f fields, c *Config) GQA {
	f.refuseBias("attention_bias")
	a := gqaSizes(f, c.Hidden)
	a.rotate(f, c, a.HeadDim)
	return a
}

// rotate reads how the first dim values of a head are rotated, and the softmax scale.
func (g *GQA) rotate(f fields, c *Config, dim int) {
	var scale float64
	g.Rope, scale = parseRope(f, dim, c.MaxContext)
	g.Scale = float32(scale / math.Sqrt(float64(g.HeadDim)))
}

// gqaSizes reads the sizes. Some releases have no head_dim.
func gqaSizes(f fields, hidden int) GQA {
	a := GQA{Heads: f.int("num_attention_heads", 1, maxHeads)}
	if a.KVHeads = a.Heads; !f.null("num_key_value_heads") { // null: a key head for each head
		a.KVHeads = f.int("num_key_value_heads", 1, maxHeads)
	}
	if a.Heads%a.KVHeads != 0 {
		f.clash("num_key_value_heads", []string{"num_attention_heads"}, "%d does not divide num_attention_heads %d", a.KVHeads, a.Heads)
		a.KVHeads = a.Heads
	}
	if f.has("head_dim") {
		a.HeadDim = f.int("head_dim", 2, maxHeadDim)
		if a.HeadDim%2 != 0 {
			f.clash("head_dim", nil, "%d is odd: rotation needs pairs", a.HeadDim)
			a.HeadDim = 2
		}
		return a
	}
	a.HeadDim = hidden / a.Heads
	switch {
	case hidden%a.Heads != 0:
		f.clash("num_attention_heads", []string{"hidden_size"}, "%d does not divide hidden_size %d, and there is no head_dim", a.Heads, hidden)
	case a.HeadDim%2 != 0 || a.HeadDim > maxHeadDim:
		f.clash("num_attention_heads", []string{"hidden_size"},
			"%d of hidden_size %d makes heads of %d: want an even number up to %d", a.Heads, hidden, a.HeadDim, maxHeadDim)
	default:
		return a
	}
	a.HeadDim = 2 // harmless
	return a
}

// slidingWindow reads how many tokens a token sees in families where no other field switches the
// window on; 0: all of the context.
func slidingWindow(f fields, c *Config) int {
	if n := f.intOr("sliding_window", maxContext, 1, maxContext); n < c.MaxContext {
		return n
	}
	return 0
}

// fullAttention refuses what would limit how far back a token sees. A
// sliding_window alone has no effect: use_sliding_window switches it on.
func fullAttention(f fields, layers int) {
	if f.boolOr("use_sliding_window", false) {
		f.fail("use_sliding_window", "true is not supported: every layer attends to the whole context")
	}
	if f.boolOr("use_mrope", false) {
		f.fail("use_mrope", "true is not supported: positions have one dimension")
	}
	kinds := f.strings("layer_types", maxLayers)
	if kinds != nil && len(kinds) != layers {
		f.clash("layer_types", []string{"num_hidden_layers"}, "has %d entries for num_hidden_layers %d", len(kinds), layers)
	}
	for i, kind := range kinds {
		if kind != "full_attention" {
			f.clash("layer_types", nil, "layer %d is %q: only full_attention is supported", i, clip(kind))
		}
	}
}
