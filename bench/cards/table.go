package cards

import (
	"krater/kernels/cuda/ops"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// Sizes are the sizes of a model whose operators are measured. Zero means that the model has no
// such part.
type Sizes struct {
	moe
	vocab  int
	layers int
	dense  int // width of the dense network
	mla    device.MLA
	gqa    device.GQA // heads have norms
	sinks  []int      // windows (0: none) with which attention of heads with sinks is also measured
	delta  device.DeltaNet
	kda    device.DeltaNet // with a decay for each row of a state
	native []moe           // measured as blocks of a file, of every encoding that has their columns
	few    []int           // generated rows per batch
	many   []int           // rows per prompt
	depths []int           // tokens before a generated row
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

// Qwen3 is Qwen3-30B-A3B (its config.json).
func Qwen3() Sizes {
	return Sizes{
		moe:   moe{hidden: 2048, experts: 128, topK: 8, width: 768},
		vocab: 151936, layers: 48,
		gqa:    device.GQA{Heads: 32, KVHeads: 4, HeadDim: 128, Scale: 0.0884, BlockTokens: 64},
		few:    []int{1, 2, 4, 8, 32},
		many:   []int{512, 2048, 8192},
		depths: []int{2048, 2081, 32768},
	}
}

// Heads64 is attention alone, with the head size and group of gpt-oss, whose layers have windows of
// 128 and none in turn. The window of 4,096 is that of the first Mistral.
func Heads64() Sizes {
	return Sizes{
		gqa:    device.GQA{Heads: 64, KVHeads: 8, HeadDim: 64, Scale: 0.125, BlockTokens: 64},
		sinks:  []int{0, 128, 4096},
		few:    []int{1, 8, 32},
		many:   []int{2048, 8192},
		depths: []int{2048, 32768},
	}
}

// Native is the experts of Qwen3-30B-A3B and gpt-oss-20b as blocks of a file.
func Native() Sizes {
	return Sizes{
		native: []moe{Qwen3().moe, {hidden: 2880, experts: 32, topK: 4, width: 2880}},
		few:    []int{1, 8, 32},
		many:   []int{2048, 8192},
	}
}

// Models are the sizes by name.
func Models() map[string]Sizes {
	return map[string]Sizes{"native": Native(), "v2-lite": V2Lite(), "qwen3-30b-a3b": Qwen3(), "heads-64": Heads64(), "qwen3-next-80b-a3b": Qwen3Next(), "glm-5.3-flash": GLM53Flash()}
}

// Small has the shapes of all models if kernels depend on them, and is small otherwise. It is for
// the emulator, and for tools that slow a GPU down.
func Small() Sizes {
	return Sizes{
		moe:   moe{hidden: 256, experts: 4, topK: 2, width: 128, shared: 256},
		vocab: 320, layers: 3, dense: 384,
		mla:    device.MLA{Heads: 2, Nope: 128, Rope: 64, V: 128, Rank: 512, Scale: 0.0722, BlockTokens: 64},
		gqa:    device.GQA{Heads: 4, KVHeads: 2, HeadDim: 64, Scale: 0.125, BlockTokens: 64},
		sinks:  []int{0, 40},
		delta:  device.DeltaNet{KeyHeads: 1, ValueHeads: 2, KeyDim: 128, ValueDim: 128, Taps: 4, ByKeyHead: true},
		kda:    device.DeltaNet{KeyHeads: 2, ValueHeads: 2, KeyDim: 128, ValueDim: 32, Taps: 4, Floor: -5},
		native: []moe{{hidden: 256, experts: 3, topK: 2, width: 256}},
		few:    []int{1, 3},
		many:   []int{70},
		depths: []int{130},
	}
}

// Table returns the cases for a model's sizes.
func Table(s Sizes) []*Case {
	var out []*Case
	add := func(c ...*Case) { out = append(out, c...) }
	for _, t := range append(append([]int{}, s.few...), s.many...) {
		if s.hidden > 0 {
			add(s.rows(t)...)
		}
		if s.mla.Heads > 0 {
			add(latentStore(t, tensor.BF16, s.mla), latentStore(t, tensor.F8E4M3, s.mla))
		}
		if s.gqa.Heads > 0 {
			add(headStore(t, tensor.BF16, s.gqa), headStore(t, tensor.F8E4M3, s.gqa), headStore(t, tensor.I8, s.gqa))
		}
	}
	for _, t := range s.few {
		if s.vocab > 0 {
			add(matmul("lm_head", bf16, tensor.F32, t, s.vocab, s.hidden), matmul("lm_head", int8, tensor.F32, t, s.vocab, s.hidden))
			add(choose(t, s.vocab, 0, 1, 0), choose(t, s.vocab, 0.8, 0.95, 0), choose(t, s.vocab, 1, 1, 40))
			add(changeLogits(t, s.vocab, 2048), maskLogits(t, s.vocab))
		}
		for _, depth := range s.depths {
			add(s.attention(true, history{seqs: t, rows: 1, past: depth - 1}, tensor.BF16, tensor.F8E4M3, tensor.I8)...)
		}
	}
	for _, t := range s.many {
		add(s.attention(false, history{seqs: 1, rows: t}, tensor.BF16, tensor.F8E4M3, tensor.I8)...)
	}
	if s.mla.Heads > 0 {
		for _, dt := range []tensor.DType{tensor.BF16, tensor.F8E4M3} {
			for _, moves := range []int{1, 20} {
				add(moveBlocks(moves, s.layers, dt, true, s.mla), moveBlocks(moves, s.layers, dt, false, s.mla))
			}
		}
	}
	add(s.deltas()...)
	add(s.blocks()...)
	if len(s.depths) == 0 {
		return out
	}
	last := s.many[len(s.many)-1]
	add(s.attention(false, history{seqs: 1, rows: last / 4, past: s.depths[0]}, tensor.BF16)...)
	add(s.attention(false, history{seqs: 4, rows: last / 4}, tensor.BF16)...)
	return out
}

// blocks returns the cases of experts as blocks of a file.
func (s *Sizes) blocks() (out []*Case) {
	for _, m := range s.native {
		for _, name := range tensor.SharedEncodings() {
			f := format{packed: tensor.EncodingOf(name).By(tensor.BlockGroup)}
			if f.tiles(2*m.width, m.hidden, true).Check() != nil || f.tiles(m.hidden, m.width, false).Check() != nil {
				continue
			}
			for _, t := range append(append([]int{}, s.few...), s.many...) {
				out = append(out, mix(m, f, f, t))
			}
		}
	}
	return out
}

// attention returns the cases of a batch for types of a cache. Latent attention is not measured
// with integers.
func (s *Sizes) attention(decode bool, h history, types ...tensor.DType) (out []*Case) {
	for _, dt := range types {
		if s.mla.Heads > 0 && dt != tensor.I8 {
			out = append(out, latent(decode, h, dt, s.mla))
		}
		if s.gqa.Heads > 0 {
			out = append(out, grouped(decode, h, dt, s.gqa, false))
			for _, window := range s.sinks {
				if window >= h.context() {
					continue
				}
				p := s.gqa
				p.Window = window
				out = append(out, grouped(decode, h, dt, p, true))
			}
		}
	}
	return out
}

// rows returns the cases of t rows without attention.
func (s *Sizes) rows(t int) (out []*Case) {
	add := func(c *Case) { out = append(out, c) }
	joint, what, heads := s.mla.Heads*(s.mla.Nope+s.mla.Rope)+s.mla.Rank+s.mla.Rope, "q+kv_a", s.mla.Heads*s.mla.V // one product
	if s.mla.Heads == 0 {
		joint, what, heads = s.gqa.Heads*s.gqa.HeadDim+s.gqa.Width(), "qkv", s.gqa.Heads*s.gqa.HeadDim
	}
	choice := device.Router{Experts: s.experts, TopK: s.topK, Scale: 1}
	add(matmul(what, bf16, tensor.BF16, t, joint, s.hidden))
	add(matmul(what, int8, tensor.BF16, t, joint, s.hidden))
	if t <= ops.NormRows {
		add(normed(what, bf16, t, joint, s.hidden))
		add(normed(what, int8, t, joint, s.hidden))
	}
	add(matmul("o", bf16, tensor.BF16, t, s.hidden, heads))
	add(matmul("o", int8, tensor.BF16, t, s.hidden, heads))
	add(matmul("router", f32, tensor.F32, t, s.experts, s.hidden))
	if s.dense > 0 {
		add(network("dense", bf16, t, s.hidden, s.dense))
		add(network("dense", int8, t, s.hidden, s.dense))
	}
	add(mix(s.moe, int4, int8, t))
	add(mix(s.moe, int4, int4, t))
	add(mix(s.moe, int8, int8, t))
	add(mix(s.moe, int3, int8, t))
	add(mix(s.moe, format{packed: tensor.INT3.By(64)}, int8, t))
	add(mixHere(s.moe, int4, int8, t))
	add(addNorm(t, s.hidden))
	add(weightedSum(t, s.topK, s.hidden))
	add(gather(t, s.vocab, s.hidden))
	add(router(t, s.hidden, choice))
	if t <= ops.AddRows {
		add(secondHalf(s.moe, int4, int8, t, heads, choice))
	}
	add(topK(t, choice))
	return out
}
