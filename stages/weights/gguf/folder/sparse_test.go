package folder

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"krater/stages/weights/gguf"
)

// sparseMeta are sizes of one layer with an indexer, some of them changed.
func sparseMeta(arch string, changed map[string]any) (meta []gguf.Pair) {
	all := map[string]any{"attention.kv_lora_rank": uint32(2), "attention.q_lora_rank": uint32(2), "attention.key_length_mla": uint32(4), "attention.value_length_mla": uint32(2),
		"attention.indexer.head_count": uint32(1), "attention.indexer.key_length": uint32(4), "attention.indexer.top_k": uint32(3), "expert_count": uint32(2),
		"expert_used_count": uint32(1), "expert_shared_count": uint32(1), "expert_feed_forward_length": uint32(2), "expert_gating_func": uint32(sigmoid)}
	maps.Copy(all, changed)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if all[key] != nil {
			meta = append(meta, gguf.Pair{Key: arch + "." + key, Value: all[key]})
		}
	}
	return meta
}

// sparseShapes are the tensors of an indexer.
var sparseShapes = map[string][]int{"indexer.attn_q_b.weight": {4, 2}, "indexer.attn_k.weight": {4, 4}, "indexer.k_norm.weight": {4}, "indexer.k_norm.bias": {4}, "indexer.proj.weight": {1, 4}}

func openSparse(t testing.TB, changed map[string]any, shapes map[string][]int) (*Folder, error) {
	t.Helper()
	f, err := gguf.Parse(seed(t, "glm-dsa", sparseMeta("glm-dsa", changed), shapes))
	if err != nil {
		t.Fatal(err)
	}
	return New(f)
}

// TestIndexerTypes: a file says which layers have an indexer, or its tensors do.
func TestIndexerTypes(t *testing.T) {
	for _, x := range []struct {
		listed any
		shapes map[string][]int
		want   string
	}{
		{[]bool{true}, nil, "full"}, {[]bool{false}, sparseShapes, "shared"}, {nil, sparseShapes, "full"}, {nil, nil, "shared"},
	} {
		d, err := openSparse(t, map[string]any{"attention.indexer.types": x.listed}, x.shapes)
		if err != nil {
			t.Error(err)
			continue
		}
		if got := d.config["indexer_types"]; !slices.Equal(got.([]string), []string{x.want}) {
			t.Errorf("%v, %d tensors: %v, want %s", x.listed, len(x.shapes), got, x.want)
		}
	}
}

// TestSparseRefuses: an error names the field or the tensor.
func TestSparseRefuses(t *testing.T) {
	for want, changed := range map[string]map[string]any{
		"glm-dsa.expert_gating_func":           {"expert_gating_func": uint32(softmax)},
		"glm-dsa.attention.indexer.head_count": {"attention.indexer.head_count": nil},
		"glm-dsa.attention.indexer.key_length": {"attention.indexer.key_length": nil},
		"glm-dsa.attention.indexer.top_k":      {"attention.indexer.top_k": nil},
		"2 values for 1 layers":                {"attention.indexer.types": []bool{true, false}},
		"glm-dsa.attention.indexer.types":      {"attention.indexer.types": uint32(1)},
		"glm-dsa.attention.kv_lora_rank":       {"attention.kv_lora_rank": nil},
	} {
		if _, err := openSparse(t, changed, sparseShapes); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", changed, err)
		}
	}
	if _, err := openSparse(t, nil, map[string][]int{"indexer.q_proj.weight": {4, 2}}); !errors.Is(err, ErrTensor) || !strings.Contains(err.Error(), "blk.0.indexer.q_proj.weight") {
		t.Error(err)
	}
	for _, arch := range []string{"deepseek4", "glm5-next", "minimax-m3", "qwen4exp"} {
		f, err := gguf.Parse(seed(t, arch, nil, nil))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(f); !errors.Is(err, ErrArchitecture) || !strings.Contains(err.Error(), `"`+arch+`"`) {
			t.Errorf("%s: %v", arch, err)
		}
	}
}
