package folder

import (
	"fmt"
	"strings"
)

// indexerNames are the tensors of an indexer that chooses the tokens that latent attention reads.
var indexerNames = [][2]string{
	{"indexer.attn_q_b.weight", "self_attn.indexer.wq_b.weight"},
	{"indexer.attn_k.weight", "self_attn.indexer.wk.weight"},
	{"indexer.k_norm.weight", "self_attn.indexer.k_norm.weight"},
	{"indexer.k_norm.bias", "self_attn.indexer.k_norm.bias"},
	{"indexer.proj.weight", "self_attn.indexer.weights_proj.weight"},
}

// sparse reads DeepSeek-V3.2 and GLM-5: DeepSeek-V3 with indexers.
func sparse(modelType, class string) func(*reader, map[string]any) {
	return func(r *reader, c map[string]any) {
		deepSeek(r, c)
		if n := r.intOr("expert_gating_func", sigmoid, sigmoid); n != sigmoid {
			r.errs = append(r.errs, fmt.Errorf("%s: %w: %d: only the sigmoid, %d, is supported", r.key("expert_gating_func"), ErrMetadata, n, sigmoid))
		}
		named(c, modelType, class)
		c["topk_method"], c["scoring_func"] = "noaux_tc", "sigmoid"
		c["index_n_heads"] = r.int("attention.indexer.head_count", maxSize)
		c["index_head_dim"] = r.int("attention.indexer.key_length", maxSize)
		c["index_topk"] = r.int("attention.indexer.top_k", maxSize)
		c["indexer_types"] = indexerTypes(r, int(max(0, c["num_hidden_layers"].(int64))))
	}
}

// indexerTypes says which layers have an indexer of their own: those that the file lists, else those that have its tensors.
func indexerTypes(r *reader, layers int) []string {
	full := make([]bool, layers)
	if r.has("attention.indexer.types") {
		list, err := r.Bools(r.key("attention.indexer.types"))
		if err == nil && len(list) != layers {
			err = fmt.Errorf("%s: %w: %d values for %d layers", r.key("attention.indexer.types"), ErrMetadata, len(list), layers)
		}
		if err != nil {
			r.errs = append(r.errs, err)
			return nil
		}
		full = list
	} else {
		for i := range full {
			full[i] = r.stored(fmt.Sprintf("blk.%d.%s", i, indexerNames[0][0]))
		}
	}
	kinds := make([]string, layers)
	for i, own := range full {
		kinds[i] = map[bool]string{true: "full", false: "shared"}[own]
	}
	return kinds
}

// indexer sets the sizes of indexers. types: the file says which layers have one.
func (x *exporter) indexer(list []Release, types bool) {
	x.count("attention.indexer.head_count", "index_n_heads")
	x.count("attention.indexer.key_length", "index_head_dim")
	x.count("attention.indexer.top_k", "index_topk")
	if !types {
		return
	}
	full := make([]bool, x.int("num_hidden_layers"))
	for _, t := range list {
		var layer int
		if _, err := fmt.Sscanf(t.Name, "model.layers.%d.", &layer); err == nil && layer < len(full) && strings.HasSuffix(t.Name, indexerNames[0][1]) {
			full[layer] = true
		}
	}
	x.add("attention.indexer.types", full)
}
