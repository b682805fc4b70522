package goldens

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/stages/weights"
	"krater/stages/weights/gguf"
)

// ReleaseTokenizer is a tokenizer.json, as far as conversions read it.
type ReleaseTokenizer struct {
	Model struct {
		Vocab        map[string]int
		Merges       []any
		IgnoreMerges bool `json:"ignore_merges"`
	}
	Added []struct {
		ID      int
		Content string
		Special bool
	} `json:"added_tokens"`
	Normalizer   any
	PreTokenizer any `json:"pre_tokenizer"`
}

// The types of tokens in a .gguf file.
const (
	tokenNormal      = 1
	tokenControl     = 3
	tokenUserDefined = 4
	tokenUnused      = 5
)

// Tokens lists the tokens with their types, as llama.cpp's conversion does.
func (r *ReleaseTokenizer) Tokens() (tokens []string, types []int32) {
	n := len(r.Model.Vocab)
	for _, id := range r.Model.Vocab {
		n = max(n, id+1)
	}
	for _, a := range r.Added {
		n = max(n, a.ID+1)
	}
	tokens, types = make([]string, n), make([]int32, n)
	for id := range tokens {
		tokens[id], types[id] = fmt.Sprintf("[PAD%d]", id), tokenUnused
	}
	for text, id := range r.Model.Vocab {
		tokens[id], types[id] = text, tokenNormal
	}
	for _, a := range r.Added {
		tokens[a.ID], types[a.ID] = a.Content, tokenUserDefined
		if a.Special {
			types[a.ID] = tokenControl
		}
	}
	return tokens, types
}

// Merges writes each merge as a text.
func (r *ReleaseTokenizer) Merges() (out []string) {
	for _, m := range r.Model.Merges {
		if pair, ok := m.([]any); ok {
			m = fmt.Sprintf("%s %s", pair[0], pair[1])
		}
		out = append(out, m.(string))
	}
	return out
}

// readJSON reads a file.
func readJSON(t testing.TB, path string, to any) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, to)
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// tinyDir returns the folder of krater-tiny.
func tinyDir(t testing.TB) string {
	return filepath.Join(root(t), "..", "..", "models", "krater-tiny")
}

// TinyMetadata are the metadata that the Python package gguf writes for krater-tiny's tokenizer.
func TinyMetadata(t testing.TB) []gguf.Pair {
	t.Helper()
	var r ReleaseTokenizer
	readJSON(t, filepath.Join(tinyDir(t), "tokenizer.json"), &r)
	var c map[string]any
	readJSON(t, filepath.Join(tinyDir(t), "tokenizer_config.json"), &c)
	tokens, types := r.Tokens()
	id := func(name string) uint32 { return uint32(slices.Index(tokens, c[name].(string))) }
	meta := []gguf.Pair{{Key: "general.architecture", Value: "deepseek2"}, {Key: "tokenizer.ggml.model", Value: "gpt2"}, {Key: "tokenizer.ggml.pre", Value: "deepseek-coder"},
		{Key: "tokenizer.ggml.tokens", Value: tokens}, {Key: "tokenizer.ggml.token_type", Value: types}, {Key: "tokenizer.ggml.merges", Value: r.Merges()},
		{Key: "tokenizer.ggml.bos_token_id", Value: id("bos_token")}, {Key: "tokenizer.ggml.eos_token_id", Value: id("eos_token")},
		{Key: "tokenizer.ggml.padding_token_id", Value: id("pad_token")}, {Key: "tokenizer.ggml.add_bos_token", Value: true},
		{Key: "tokenizer.ggml.add_eos_token", Value: false}, {Key: "tokenizer.chat_template", Value: c["chat_template"]}}
	var want struct{ SHA256 string }
	readJSON(t, filepath.Join(root(t), "..", "gguf", "tokenizer.json"), &want)
	var out bytes.Buffer
	if err := gguf.Write(&out, meta, nil); err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(out.Bytes()); hex.EncodeToString(sum[:]) != want.SHA256 {
		t.Fatal("this is not the file that the package wrote")
	}
	return meta
}

// TinyGGUF is krater-tiny as a .gguf file, each stored tensor of the type that kind gives for its
// name, or Q8_0 where blocks of that do not fill a row. more are further metadata.
func TinyGGUF(t testing.TB, kind func(name string) gguf.Type, more ...gguf.Pair) []byte {
	t.Helper()
	return TinyParts(t, 1, kind, more...)[0]
}

// TinyParts is TinyGGUF in several parts, each with as many tensors.
func TinyParts(t testing.TB, parts int, kind func(name string) gguf.Type, more ...gguf.Pair) (files [][]byte) {
	t.Helper()
	meta, list := tinyContent(t, kind)
	meta = append(meta, more...)
	for i := range parts {
		from, to := len(list)*i/parts, len(list)*(i+1)/parts
		if parts > 1 {
			split := []gguf.Pair{{Key: "split.no", Value: uint32(i)}, {Key: "split.count", Value: uint32(parts)}, {Key: "split.tensors.count", Value: int32(len(list))}}
			if meta = append(meta, split...); i > 0 {
				meta = split
			}
		}
		var out bytes.Buffer
		if err := gguf.Write(&out, meta, list[from:to]); err != nil {
			t.Fatal(err)
		}
		files = append(files, out.Bytes())
	}
	return files
}

// tinyContent returns the metadata and the tensors of a file of krater-tiny.
func tinyContent(t testing.TB, kind func(name string) gguf.Type) (meta []gguf.Pair, list []gguf.Tensor) {
	t.Helper()
	set, err := weights.Open(tinyDir(t))
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	whole, err := os.ReadFile(filepath.Join(tinyDir(t), "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	meta = append(TinyMetadata(t), gguf.Pair{Key: "tokenizer.huggingface.json", Value: string(whole)})
	for key, v := range map[string]any{
		"block_count": uint32(7), "context_length": uint32(2048), "embedding_length": uint32(256), "feed_forward_length": uint32(768),
		"attention.head_count": uint32(8), "attention.head_count_kv": uint32(8), "attention.layer_norm_rms_epsilon": float32(1e-6), "rope.freq_base": float32(10000),
		"attention.kv_lora_rank": uint32(64), "attention.key_length": uint32(48), "attention.value_length": uint32(32), "rope.dimension_count": uint32(16),
		"expert_count": uint32(32), "expert_used_count": uint32(4), "expert_shared_count": uint32(2), "expert_feed_forward_length": uint32(64),
		"leading_dense_block_count": uint32(1), "expert_weights_scale": float32(1), "expert_weights_norm": false,
	} {
		meta = append(meta, gguf.Pair{Key: "deepseek2." + key, Value: v})
	}
	add := func(name string, from ...string) {
		x := gguf.Tensor{Name: name, Type: kind(name)}
		for _, n := range from {
			w, ok := set.Tensor(n)
			if !ok {
				t.Fatal(n)
			}
			rows, width := w.Rows()
			if width%x.Type.Block().Elements != 0 {
				x.Type = gguf.Q8_0
			}
			values, block := make([]float32, rows*width), x.Type.Block()
			data := make([]byte, rows*width/block.Elements*block.Bytes)
			if err := errors.Join(w.Floats(values, 0), x.Type.Encode(data, values)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			x.Shape, x.Data = w.Shape, append(x.Data, data...)
		}
		if len(from) > 1 {
			x.Shape = append([]int{len(from)}, x.Shape...)
		}
		list = append(list, x)
	}
	add("token_embd.weight", "model.embed_tokens.weight")
	for layer := range 7 {
		for stored, release := range tinyLayer {
			switch name := fmt.Sprintf("model.layers.%d.%s.weight", layer, release); {
			case strings.Contains(release, "*") && layer > 0:
				var experts []string
				for e := range 32 {
					experts = append(experts, strings.Replace(name, "*", fmt.Sprint(e), 1))
				}
				add(fmt.Sprintf("blk.%d.%s.weight", layer, stored), experts...)
			case !strings.Contains(release, "*"):
				if _, ok := set.Tensor(name); ok {
					add(fmt.Sprintf("blk.%d.%s.weight", layer, stored), name)
				}
			}
		}
	}
	add("output_norm.weight", "model.norm.weight")
	add("output.weight", "lm_head.weight")
	return meta, list
}

// tinyLayer are the tensors of a layer as stored, and their names in the folder.
var tinyLayer = map[string]string{
	"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm",
	"attn_kv_b": "self_attn.kv_b_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
	"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate",
	"ffn_gate_exps": "mlp.experts.*.gate_proj", "ffn_up_exps": "mlp.experts.*.up_proj", "ffn_down_exps": "mlp.experts.*.down_proj",
	"ffn_gate_shexp": "mlp.shared_experts.gate_proj", "ffn_up_shexp": "mlp.shared_experts.up_proj", "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
