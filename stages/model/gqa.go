package model

import "krater/kernels/device"

// GQA is grouped-query attention (arXiv 2305.13245): it caches the keys and values of few
// heads, each shared by several query heads. Multi-head and multi-query attention are cases
// of it.
type GQA struct {
	Heads     int         // num_attention_heads
	KVHeads   int         // num_key_value_heads
	HeadDim   int         // head_dim, else hidden_size / num_attention_heads
	Bias      bool        // q_proj, k_proj and v_proj have biases
	OutBias   bool        // o_proj has a bias
	Sinks     bool        // each query head has a sink (device.GQA)
	QKNorm    bool        // each head of queries and keys is normed before it is rotated
	WholeNorm bool        // with QKNorm: all query heads are normed as one row, and all key heads
	NormEps   float32     // of those norms
	ValueNorm bool        // with QKNorm: values are normed too, without a weight, and not rotated
	KeyValues bool        // with ValueNorm: there is no v_proj, values are made of what k_proj gives
	Shared    bool        // another layer has the keys and values (LayerSpec.KV): there are no k_proj and v_proj
	Gate      bool        // with QKNorm: q_proj gives for each head its query, then a gate whose sigmoid its output is multiplied by
	Scale     float32     // softmax scale
	Window    int         // sliding_window: how many tokens a token sees, itself among them; 0: all
	Rope      *RopeConfig // of the first Rope.Dim values of a head
	Index     BlockIndex  // chooses the tokens that are attended to
}

// gqaRoles are the usual names of the tensors.
var gqaRoles = Roles{
	"q":      "self_attn.q_proj.weight",
	"k":      "self_attn.k_proj.weight",
	"v":      "self_attn.v_proj.weight",
	"q_bias": "self_attn.q_proj.bias",
	"k_bias": "self_attn.k_proj.bias",
	"v_bias": "self_attn.v_proj.bias",
	"o":      "self_attn.o_proj.weight",
	"o_bias": "self_attn.o_proj.bias",
	"sinks":  "self_attn.sinks",
}

// QDim returns the length of all query heads, and of the output that o_proj takes.
func (g GQA) QDim() int { return g.Heads * g.HeadDim }

// KDim returns the length of all key heads.
func (g GQA) KDim() int { return g.KVHeads * g.HeadDim }

// NormDims returns the lengths over which queries and keys are normed.
func (g GQA) NormDims() (q, k int) {
	if g.WholeNorm {
		return g.QDim(), g.KDim()
	}
	return g.HeadDim, g.HeadDim
}

// Sizes returns the sizes that operators take.
func (g GQA) Sizes(blockTokens int) device.GQA {
	p := device.GQA{Heads: g.Heads, KVHeads: g.KVHeads, HeadDim: g.HeadDim, Scale: g.Scale, Window: g.Window, BlockTokens: blockTokens}
	if g.Index.Local > 0 {
		p.Lists = g.Index.Heads
	}
	return p
}

// Tensors implements Mixer.
func (g GQA) Tensors(h int) []TensorSpec {
	var list []TensorSpec
	add := func(role string, shape ...int) {
		list = append(list, TensorSpec{Role: role, Shape: shape, Part: Attention})
	}
	vector := func(role string, n int) {
		list = append(list, TensorSpec{Role: role, Shape: []int{n}, Part: Attention, F32: true})
	}
	query := g.QDim()
	if g.Gate {
		query *= 2
	}
	for _, x := range []struct {
		role string
		n    int
	}{{"q", query}, {"k", g.KDim()}, {"v", g.KDim()}} {
		if x.role != "q" && g.Shared || x.role == "v" && g.KeyValues {
			continue
		}
		add(x.role, x.n, h)
		if g.Bias {
			vector(x.role+"_bias", x.n)
		}
	}
	if g.QKNorm {
		q, k := g.NormDims()
		list = append(list, TensorSpec{Role: "q_norm", Shape: []int{q}, Part: Attention, Norm: true})
		if !g.Shared {
			list = append(list, TensorSpec{Role: "k_norm", Shape: []int{k}, Part: Attention, Norm: true})
		}
	}
	if g.Sinks {
		vector("sinks", g.Heads)
	}
	list = append(list, g.Index.tensors(h)...)
	add("o", h, g.QDim())
	if g.OutBias {
		vector("o_bias", h)
	}
	return list
}

// State implements Mixer: keys, then values; and the keys of an index. A scale is of a head.
func (g GQA) State() []State {
	if g.Shared {
		return nil
	}
	return append([]State{{Kind: Paged, Width: 2 * g.KDim(), Group: g.HeadDim, Window: g.Window, Chosen: g.Index.Chooses()}}, g.Index.state()...)
}

// Scratch implements Mixer.
func (g GQA) Scratch() []Scratch {
	if g.Shared {
		return []Scratch{{g.QDim(), false}, {g.QDim(), true}}
	}
	list := []Scratch{{g.QDim(), false}, {2 * g.KDim(), false}, {g.QDim(), true}}
	if g.Gate {
		list = append(list, Scratch{2 * g.QDim(), false})
	}
	return append(list, g.Index.scratch()...)
}

// Cost implements Mixer.
func (g GQA) Cost() Cost {
	pair := 2 * float64(g.Heads) * float64(2*g.HeadDim)
	c := Cost{Pair: pair, DecodePair: pair, Heads: g.HeadDim, Window: g.Window}
	if g.ValueNorm {
		c.Small = 3 // the norms of heads, and their rotation, are operators of their own
	}
	return c
}

// Rotary implements Mixer.
func (g GQA) Rotary() *RopeConfig { return g.Rope }

// TwoForms implements Mixer.
func (g GQA) TwoForms() bool { return false }

// Selects implements Mixer.
func (g GQA) Selects() (topK int, shared bool) { return 0, false }

// Step implements Mixer.
func (g GQA) Step(s *device.StepSizes, blockTokens int) {
	if g.QDim() > s.GQA.Heads*s.GQA.HeadDim {
		s.GQA = g.Sizes(blockTokens)
	}
	if g.Index.Heads > s.Blocks.Heads {
		s.Blocks = g.Index.Sizes(blockTokens)
	}
}
