package main

import "fmt"

// The sizes of DeepSeek-V2-Lite (from its config.json), with a smaller vocabulary, so that the head
// does not hide the other parts.
const (
	layers     = 27 // llama.cpp infers from it that there is no q_lora_rank
	hidden     = 2048
	inner      = 1408  // moe_intermediate_size
	innerDense = 10944 // intermediate_size
	heads      = 16
	nope       = 128
	rope       = 64
	valueDim   = 128
	rank       = 512 // kv_lora_rank
	liteMoE    = 64  // experts of a layer
	topK       = 6
	shared     = 2
	vocab      = 32000
)

// lite returns the model as GGUF names its parts (architecture deepseek2, kv_b_proj split into k_b
// and v_b). kind q4_0 keeps every matrix so; q4_k as converters do it: Q5_0 where a row is no
// multiple of 256, k_b in Q8_0. Fewer experts make a smaller file of which a token reads as much.
func lite(kind string, experts int) (*file, error) {
	if kind != "q4_0" && kind != "q4_k" {
		return nil, fmt.Errorf("gguf: type %q is neither q4_0 nor q4_k", kind)
	}
	if experts < topK || experts > 1<<10 {
		return nil, fmt.Errorf("gguf: %d experts: want %d to %d", experts, topK, 1<<10)
	}
	f := &file{experts: uint64(experts)}
	q := func(name string, dims ...uint64) {
		t := q40
		if kind == "q4_k" {
			if t = q4k; dims[0]%256 != 0 {
				t = q50
			}
		}
		f.add(name, t, dims...)
	}
	q("token_embd.weight", hidden, vocab)
	f.add("output_norm.weight", f32, hidden)
	q("output.weight", hidden, vocab)
	for i := range layers {
		p := fmt.Sprintf("blk.%d.", i)
		f.add(p+"attn_norm.weight", f32, hidden)
		f.add(p+"attn_kv_a_norm.weight", f32, rank)
		q(p+"attn_q.weight", hidden, heads*(nope+rope))
		q(p+"attn_kv_a_mqa.weight", hidden, rank+rope)
		if kind == "q4_0" {
			q(p+"attn_k_b.weight", nope, rank, heads)
		} else {
			f.add(p+"attn_k_b.weight", q80, nope, rank, heads)
		}
		q(p+"attn_v_b.weight", rank, valueDim, heads)
		q(p+"attn_output.weight", heads*valueDim, hidden)
		f.add(p+"ffn_norm.weight", f32, hidden)
		if i == 0 {
			q(p+"ffn_gate.weight", hidden, innerDense)
			q(p+"ffn_down.weight", innerDense, hidden)
			q(p+"ffn_up.weight", hidden, innerDense)
			continue
		}
		f.add(p+"ffn_gate_inp.weight", f32, hidden, f.experts)
		q(p+"ffn_gate_exps.weight", hidden, inner, f.experts)
		q(p+"ffn_down_exps.weight", inner, hidden, f.experts)
		q(p+"ffn_up_exps.weight", hidden, inner, f.experts)
		q(p+"ffn_gate_shexp.weight", hidden, shared*inner)
		q(p+"ffn_down_shexp.weight", shared*inner, hidden)
		q(p+"ffn_up_shexp.weight", hidden, shared*inner)
	}
	f.metadata()
	return f, f.check()
}

// metadata sets the keys of the format's deepseek2 section.
func (f *file) metadata() {
	const a = "deepseek2."
	f.meta = []pair{
		{"general.architecture", "deepseek2"}, {"general.name", "synthetic"}, {"general.quantization_version", uint32(2)},
		{a + "block_count", uint32(layers)}, {a + "context_length", uint32(4096)},
		{a + "embedding_length", uint32(hidden)}, {a + "feed_forward_length", uint32(innerDense)},
		{a + "attention.head_count", uint32(heads)}, {a + "attention.head_count_kv", uint32(1)},
		{a + "attention.key_length", uint32(rank + rope)}, {a + "attention.value_length", uint32(rank)},
		{a + "attention.key_length_mla", uint32(nope + rope)}, {a + "attention.value_length_mla", uint32(valueDim)},
		{a + "attention.kv_lora_rank", uint32(rank)}, {a + "rope.dimension_count", uint32(rope)},
		{a + "rope.freq_base", float32(10000)}, {a + "attention.layer_norm_rms_epsilon", float32(1e-6)},
		{a + "expert_count", uint32(f.experts)}, {a + "expert_used_count", uint32(topK)}, {a + "expert_shared_count", uint32(shared)},
		{a + "expert_feed_forward_length", uint32(inner)}, {a + "leading_dense_block_count", uint32(1)},
		{a + "expert_weights_scale", float32(1)}, {a + "expert_weights_norm", false}, {a + "expert_gating_func", uint32(1)},
		{a + "vocab_size", uint32(vocab)}, {"tokenizer.ggml.model", "no_vocab"},
	}
}
