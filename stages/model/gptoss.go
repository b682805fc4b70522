package model

import "krater/kernels/device"

var _ = register("gpt_oss", parseGPTOSS)

// gptOSSRoles are the names of gpt-oss's tensors. The files have those of all experts of a layer as
// one: gptOSSFused.
var gptOSSRoles = Usual(gqaRoles, Roles{
	"router":           "mlp.router.weight",
	"router_bias":      "mlp.router.bias",
	"expert.gate_bias": "mlp.experts.*.gate_proj.bias",
	"expert.up_bias":   "mlp.experts.*.up_proj.bias",
	"expert.down_bias": "mlp.experts.*.down_proj.bias",
})

// gptOSSFused has gate and up in turn: even rows are gate's.
var gptOSSFused = []Fused{
	{Name: "mlp.experts.gate_up_proj", Transposed: true, Parts: []FusedPart{{Role: "expert.gate", Step: 2}, {Role: "expert.up", First: 1, Step: 2}}},
	{Name: "mlp.experts.gate_up_proj_bias", Parts: []FusedPart{{Role: "expert.gate_bias", Step: 2}, {Role: "expert.up_bias", First: 1, Step: 2}}},
	{Name: "mlp.experts.down_proj", Transposed: true, Parts: []FusedPart{{Role: "expert.down", Step: 1}}},
	{Name: "mlp.experts.down_proj_bias", Parts: []FusedPart{{Role: "expert.down_bias", Step: 1}}},
}

// parseGPTOSS reads the gpt-oss family (arXiv 2508.10925): grouped-query attention with sinks and biases, over a
// sliding window in every second layer, and experts with biases in every layer. The weights of the
// chosen experts are a softmax over their logits.
func parseGPTOSS(f fields) *Config {
	c, layers := common(f)
	full := gqaSizes(f, c.Hidden)
	full.rotate(f, c, full.HeadDim)
	full.Bias = f.boolOr("attention_bias", true)
	full.OutBias, full.Sinks = full.Bias, true
	windowed := full
	windowed.Window = slidingWindow(f, c)
	sees := layerTypes(f, layers, func(i int) bool { return i%2 != 0 })
	moe := softmaxExperts(f, "num_local_experts", "intermediate_size", true, layers)
	moe.RouterBias, moe.Biases = true, true
	moe.Act = device.Activation{Alpha: 1.702, Limit: float32(f.floatOr("swiglu_limit", 7, 1e-3, 1e6)), Shift: 1}
	c.Fused = gptOSSFused
	c.Stack(layers, gptOSSRoles, func(i int) (Mixer, FFN) {
		if sees(i) {
			return full, moe
		}
		return windowed, moe
	})
	return c
}

// layerTypes reads which layers see the whole context, and which a window (layer_types). usual
// tells it where the field is absent.
func layerTypes(f fields, layers int, usual func(layer int) bool) (full func(layer int) bool) {
	kinds := f.strings("layer_types", maxLayers)
	if kinds == nil {
		return usual
	}
	if len(kinds) != layers {
		f.clash("layer_types", []string{"num_hidden_layers"}, "has %d entries for num_hidden_layers %d", len(kinds), layers)
		return usual
	}
	for i, kind := range kinds {
		if kind != "full_attention" && kind != "sliding_attention" {
			f.clash("layer_types", nil, "layer %d is %q: only full_attention and sliding_attention are supported", i, clip(kind))
		}
	}
	return func(i int) bool { return kinds[i] == "full_attention" }
}
