package folder

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"krater/stages/weights/gguf"
)

// gemma4Meta are sizes of one layer with a window, some of them changed.
func gemma4Meta(changed map[string]any) (meta []gguf.Pair) {
	all := map[string]any{"attention.sliding_window_pattern": []bool{true}, "attention.sliding_window": uint32(4), "attention.key_length": uint32(4),
		"attention.key_length_swa": uint32(2), "attention.head_count_kv": []int32{1}, "rope.freq_base": float32(1e6), "rope.freq_base_swa": float32(1e4)}
	maps.Copy(all, changed)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if all[key] != nil {
			meta = append(meta, gguf.Pair{Key: "gemma4." + key, Value: all[key]})
		}
	}
	return meta
}

func openGemma4(t testing.TB, changed map[string]any, shapes map[string][]int) (*Folder, error) {
	t.Helper()
	f, err := gguf.Parse(seed(t, "gemma4", gemma4Meta(changed), shapes))
	if err != nil {
		t.Fatal(err)
	}
	return New(f)
}

// TestGemma4Names: a scale of the router or of experts is a tensor of its own, and names begin as in a model
// for text and images.
func TestGemma4Names(t *testing.T) {
	d, err := openGemma4(t, map[string]any{"expert_count": uint32(2), "expert_used_count": uint32(1), "expert_feed_forward_length": uint32(2)},
		map[string][]int{"ffn_gate_inp.weight": {2, 4}, "ffn_gate_inp.scale": {4}, "ffn_down_exps.scale": {2}, "ffn_gate_up_exps.weight": {2, 4, 4}, "ffn_norm.weight": {4}, "post_attention_norm.weight": {4}})
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, name := range []string{"router.proj.weight", "router.scale", "router.per_expert_scale", "experts.0.gate_proj.weight", "experts.0.up_proj.weight",
		"experts.1.gate_proj.weight", "experts.1.up_proj.weight", "pre_feedforward_layernorm.weight", "post_attention_layernorm.weight"} {
		want = append(want, "model.language_model.layers.0."+name)
	}
	want = append(want, "model.language_model.embed_tokens.weight")
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(d.Names())); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestGemma4Refuses: an error names the field.
func TestGemma4Refuses(t *testing.T) {
	for want, changed := range map[string]map[string]any{
		"sliding_window_pattern": {"attention.sliding_window_pattern": []bool{true, false}},
		"pattern":                {"attention.sliding_window_pattern": nil},
		"head_count_kv":          {"attention.head_count_kv": []int32{1, 1}},
		"outside 0":              {"attention.head_count_kv": []int32{-1}},
		"key_length_swa":         {"attention.key_length_swa": nil},
		"freq_base_swa":          {"rope.freq_base_swa": nil},
		"shared_kv_layers":       {"attention.shared_kv_layers": uint32(2)},
		"expert_used_count":      {"expert_count": uint32(2)},
	} {
		if _, err := openGemma4(t, changed, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", changed, err)
		}
	}
	if _, err := openGemma4(t, nil, nil); err != nil {
		t.Error(err)
	}
}

// TestTurned: factors of 1, then large ones, are the share of pairs that turn.
func TestTurned(t *testing.T) {
	for _, x := range []struct {
		factors []float32
		want    float64 // < 0: refused
	}{{[]float32{1, 1, still, still}, 0.5}, {[]float32{still, still}, 0}, {[]float32{1, 1}, 1}, {[]float32{1, still, 1, still}, -1}, {[]float32{1, 2}, -1}} {
		data := make([]byte, 4*len(x.factors))
		if err := gguf.F32.Encode(data, x.factors); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		list := []gguf.Tensor{{Name: "rope_freqs.weight", Type: gguf.F32, Shape: []int{len(x.factors)}, Data: data}}
		if err := gguf.Write(&out, []gguf.Pair{{Key: "general.architecture", Value: "gemma4"}}, list); err != nil {
			t.Fatal(err)
		}
		f, err := gguf.Parse([]byte(out.String()))
		if err != nil {
			t.Fatal(err)
		}
		r := &reader{Metadata: &f.Metadata, file: f, arch: "gemma4"}
		if got := turned(r); (len(r.errs) > 0) != (x.want < 0) || x.want >= 0 && got != x.want {
			t.Errorf("%v: %v, %v", x.factors, got, fmt.Sprint(r.errs))
		}
	}
}
