package cards

import (
	"krater/kernels/cuda/ops"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// Sizes of a model whose operators are measured.
type Sizes struct {
	moe
	vocab  int
	layers int
	dense  int // width of the dense network
	mla    device.MLA
	few    []int // generated rows of a batch
	many   []int // rows of a prompt
	depths []int // tokens that decode looks back on
}

// V2Lite is DeepSeek-V2-Lite (its config.json).
func V2Lite() Sizes {
	return Sizes{
		moe:   moe{hidden: 2048, experts: 64, topK: 6, width: 1408, shared: 2 * 1408},
		vocab: 102400, layers: 27, dense: 10944,
		mla:    device.MLA{Heads: 16, Nope: 128, Rope: 64, V: 128, Rank: 512, Scale: 0.0722, BlockTokens: 64},
		few:    []int{1, 2, 4, 8, 32},
		many:   []int{512, 2048, 8192},
		depths: []int{2048, 2081, 32768},
	}
}

// Small has the shapes of V2Lite where kernels depend on them and is small otherwise: for
// the emulator and for tools that slow a card down.
func Small() Sizes {
	return Sizes{
		moe:   moe{hidden: 256, experts: 4, topK: 2, width: 128, shared: 256},
		vocab: 320, layers: 3, dense: 384,
		mla:    device.MLA{Heads: 2, Nope: 128, Rope: 64, V: 128, Rank: 512, Scale: 0.0722, BlockTokens: 64},
		few:    []int{1, 3},
		many:   []int{70},
		depths: []int{130},
	}
}

// Table lists the cases of a model's sizes.
func Table(s Sizes) []*Case {
	var out []*Case
	add := func(c *Case) { out = append(out, c) }
	p := s.mla
	joint := p.Heads*(p.Nope+p.Rope) + p.Rank + p.Rope // queries and latents are one product
	for _, t := range append(append([]int{}, s.few...), s.many...) {
		add(matmul("q+kv_a", bf16, tensor.BF16, t, joint, s.hidden))
		add(matmul("q+kv_a", int8, tensor.BF16, t, joint, s.hidden))
		if t <= ops.NormRows {
			add(normed("q+kv_a", bf16, t, joint, s.hidden))
			add(normed("q+kv_a", int8, t, joint, s.hidden))
		}
		add(matmul("o", bf16, tensor.BF16, t, s.hidden, p.Heads*p.V))
		add(matmul("o", int8, tensor.BF16, t, s.hidden, p.Heads*p.V))
		add(matmul("router", f32, tensor.F32, t, s.experts, s.hidden))
		add(network("dense", bf16, t, s.hidden, s.dense))
		add(network("dense", int8, t, s.hidden, s.dense))
		add(mix(s.moe, int4, int8, t))
		add(mix(s.moe, int4, int4, t))
		add(mix(s.moe, int8, int8, t))
		add(mixHere(s.moe, int4, int8, t))
		add(addNorm(t, s.hidden))
		add(latentStore(t, tensor.BF16, p))
		add(latentStore(t, tensor.F8E4M3, p))
		add(weightedSum(t, s.topK, s.hidden))
		add(gather(t, s.vocab, s.hidden))
		add(router(t, s.hidden, device.Router{Experts: s.experts, TopK: s.topK, Scale: 1}))
		if t <= ops.AddRows {
			add(secondHalf(s.moe, int4, int8, t, p.Heads*p.V, device.Router{Experts: s.experts, TopK: s.topK, Scale: 1}))
		}
		add(topK(t, device.Router{Experts: s.experts, TopK: s.topK, Scale: 1}))
	}
	for _, t := range s.few {
		add(matmul("lm_head", bf16, tensor.F32, t, s.vocab, s.hidden))
		add(matmul("lm_head", int8, tensor.F32, t, s.vocab, s.hidden))
		add(choose(t, s.vocab, 0, 1, 0))
		add(choose(t, s.vocab, 0.8, 0.95, 0))
		add(choose(t, s.vocab, 1, 1, 40))
		for _, depth := range s.depths {
			for _, dt := range []tensor.DType{tensor.BF16, tensor.F8E4M3} {
				add(latent(true, history{seqs: t, rows: 1, past: depth - 1}, dt, p))
			}
		}
	}
	for _, t := range s.many {
		for _, dt := range []tensor.DType{tensor.BF16, tensor.F8E4M3} {
			add(latent(false, history{seqs: 1, rows: t}, dt, p))
		}
	}
	for _, dt := range []tensor.DType{tensor.BF16, tensor.F8E4M3} {
		for _, moves := range []int{1, 20} {
			add(moveBlocks(moves, s.layers, dt, true, p))
			add(moveBlocks(moves, s.layers, dt, false, p))
		}
	}
	last := s.many[len(s.many)-1]
	add(latent(false, history{seqs: 1, rows: last / 4, past: s.depths[0]}, tensor.BF16, p))
	add(latent(false, history{seqs: 4, rows: last / 4}, tensor.BF16, p))
	return out
}
