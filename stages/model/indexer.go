package model

import "krater/kernels/device"

// Indexer chooses the tokens that a query attends to (DeepSeek-V3.2, arXiv 2512.02556, section 2.1). With
// the zero value a query attends to all tokens.
type Indexer struct {
	Heads       int // index_n_heads
	Dim         int // index_head_dim, of which the first qk_rope_head_dim values are rotated
	TopK        int // index_topk, in pools with Pool
	Pool        int // index_kpool: tokens of a pool, of which device.Index says more; 0: tokens are chosen one by one
	Interleaved bool
	NormEps     float32 // of the LayerNorm of its keys
	Shared      bool    // the layer has none of its own and uses what the layer before chose: TopK alone is set
}

// indexerEps is the eps of k_norm: the released code builds it without rms_norm_eps.
const indexerEps = 1e-6

// indexerRoles are the names of the tensors.
var indexerRoles = Roles{
	"index_q":         "self_attn.indexer.wq_b.weight",
	"index_k":         "self_attn.indexer.wk.weight",
	"index_norm":      "self_attn.indexer.k_norm.weight",
	"index_norm_bias": "self_attn.indexer.k_norm.bias",
	"index_weights":   "self_attn.indexer.weights_proj.weight",
	"index_gate":      "self_attn.indexer.index_kpool_compress_gate",
	"index_ape":       "self_attn.indexer.index_kpool_compress_ape",
}

// Own reports whether the layer has an indexer of its own.
func (x Indexer) Own() bool { return x.TopK > 0 && !x.Shared }

// Sizes returns the sizes that operators take.
func (x Indexer) Sizes(blockTokens int) device.Index {
	return device.Index{Heads: x.Heads, Dim: x.Dim, TopK: x.TopK, Pool: x.Pool, BlockTokens: blockTokens}
}

// Positions returns the largest number of positions that the indexer chooses for a token.
func (x Indexer) Positions() int { return x.Sizes(1).Positions() }

// tensors lists the tensors in the order of use. The weights of heads are as sensitive as a router.
func (x Indexer) tensors(h, qRank int) []TensorSpec {
	if !x.Own() {
		return nil
	}
	list := []TensorSpec{
		{Role: "index_q", Shape: []int{x.Heads * x.Dim, qRank}, Part: Attention},
		{Role: "index_k", Shape: []int{x.Dim, h}, Part: Attention},
		{Role: "index_norm", Shape: []int{x.Dim}, Part: Router},
		{Role: "index_norm_bias", Shape: []int{x.Dim}, Part: Router},
		{Role: "index_weights", Shape: []int{x.Heads, h}, Part: Router},
	}
	if x.Pool > 0 {
		list = append(list, TensorSpec{Role: "index_gate", Shape: []int{x.Dim, h}, Part: Router},
			TensorSpec{Role: "index_ape", Shape: []int{x.Pool, x.Dim}, Part: Router, F32: true})
	}
	return list
}

// state lists the keys of tokens or pools, of which rope values are rotated, and the newest tokens' keys and gates, of which pools are made.
func (x Indexer) state(rope int) []State {
	if !x.Own() {
		return nil
	}
	list := []State{{Kind: Paged, Width: x.Dim, Group: divisor(x.Dim, rope)}}
	if x.Pool > 0 {
		list = append(list, State{Kind: Recurrent, Width: 2 * x.Dim, Rows: x.Pool})
	}
	return list
}

func (x Indexer) scratch() []Scratch {
	if !x.Own() {
		return nil
	}
	list := []Scratch{{x.Heads * x.Dim, false}, {x.Dim, false}, {x.Heads, false}}
	if x.Pool > 0 {
		list = append(list, Scratch{2 * x.Dim, false})
	}
	return list
}

// Selects implements Mixer.
func (m MLA) Selects() (positions int, shared bool) {
	if m.Index.TopK == 0 {
		return 0, false
	}
	return m.Index.Positions(), m.Index.Shared
}

// Selection returns the largest number of positions that an indexer of any layer chooses for a token, 0
// if there is no indexer, and whether any layer uses the choice of the layer before.
func (c *Config) Selection() (topK int, shared bool) {
	for i := range c.Layers {
		if m := c.Layers[i].Mixer; m != nil {
			n, s := m.Selects()
			topK, shared = max(topK, n), shared || s
		}
	}
	return topK, shared
}

// TakesSelection reports whether a layer uses the choice of the layer before.
func (c *Config) TakesSelection(layer int) bool {
	_, shared := c.Layers[layer].Mixer.Selects()
	return shared
}

// maxSelection bounds index_topk; released models have 2048.
const maxSelection = 1 << 16

// indexer reads the indexer of latent attention; interleaved is how its rotation is laid out where
// the config does not say.
func indexer(f fields, a MLA, interleaved bool) Indexer {
	x := Indexer{
		Heads:       f.int("index_n_heads", 1, maxHeads),
		Dim:         f.int("index_head_dim", 2, maxHeadDim),
		TopK:        f.int("index_topk", 1, maxSelection),
		Interleaved: f.boolOr("indexer_rope_interleave", interleaved),
		NormEps:     indexerEps,
	}
	if x.Dim < a.RopeDim {
		f.clash("index_head_dim", []string{"qk_rope_head_dim"}, "%d is less than qk_rope_head_dim %d, which are rotated", x.Dim, a.RopeDim)
	}
	if a.QRank == 0 {
		f.clash("q_lora_rank", nil, "null is not supported: the indexer reads compressed queries")
	}
	return x
}

// sharedIndexers reads which layers use the choice of the layer before: indexer_types names all, else
// index_topk_pattern has a letter for each, else every index_topk_freq-th layer has its own.
func sharedIndexers(f fields, layers int) func(layer int) bool {
	name, kinds := "indexer_types", f.strings("indexer_types", maxLayers)
	if pattern := f.stringOr("index_topk_pattern", ""); kinds == nil && pattern != "" {
		name = "index_topk_pattern"
		for _, letter := range pattern {
			kinds = append(kinds, map[rune]string{'F': "full", 'S': "shared"}[letter])
		}
	}
	every, offset := f.intOr("index_topk_freq", 1, 1, maxLayers), f.intOr("index_skip_topk_offset", 2, 0, maxLayers)
	if kinds == nil {
		name = "index_topk_freq"
		for i := range layers {
			kind := "full"
			if max(i-offset+1, 0)%every != 0 {
				kind = "shared"
			}
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) != layers {
		f.clash(name, []string{"num_hidden_layers"}, "has %d entries for num_hidden_layers %d", len(kinds), layers)
	}
	for i, kind := range kinds {
		switch {
		case kind != "full" && kind != "shared":
			f.clash(name, nil, "layer %d is %q: want full or shared", i, clip(kind))
		case kind == "shared" && i == 0:
			f.clash(name, nil, "layer 0 is shared: there is no layer before it")
		}
	}
	return func(i int) bool { return i < len(kinds) && kinds[i] == "shared" }
}

// layerKinds holds the lists of transformers 5 against what the other fields say: attention has an
// indexer in each layer, and sparse names layers with experts.
func layerKinds(f fields, layers int, has func(layer int) bool) {
	kinds(f, "layer_types", layers, func(_ int, kind string) bool {
		return kind == "indexed_attention" || kind == "deepseek_sparse_attention"
	})
	networks(f, layers, has)
}

// networks holds the list of the layers' networks against what the other fields say: sparse names layers with experts.
func networks(f fields, layers int, has func(layer int) bool) {
	kinds(f, "mlp_layer_types", layers, func(i int, kind string) bool { return kind == map[bool]string{true: "sparse", false: "dense"}[has(i)] })
}

// kinds holds a list with an entry for each layer against what the other fields say.
func kinds(f fields, name string, layers int, want func(layer int, kind string) bool) {
	list := f.strings(name, maxLayers)
	if list != nil && len(list) != layers {
		f.clash(name, []string{"num_hidden_layers"}, "has %d entries for num_hidden_layers %d", len(list), layers)
	}
	for i, kind := range list {
		if !want(i, kind) {
			f.clash(name, []string{"first_k_dense_replace", "moe_layer_freq"}, "layer %d is %q, which is not supported or contradicts another field", i, clip(kind))
		}
	}
}
