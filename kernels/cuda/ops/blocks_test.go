package ops

import (
	"slices"
	"testing"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// overBlocks returns the names of the kernels of a choice of blocks and of attention over it for list, and the most scratch memory
// that they request.
func overBlocks(x device.BlockIndex, p device.GQA, rows int, list []device.Span, decode bool) (names []string, most int) {
	b := &Builder{GPU: launch.GPU{SMs: 132, Hopper: true, SharedMax: 232448}, List: &launch.List{}, Scratch: func(n int) launch.Ptr {
		most = max(most, n)
		return 1 << 60
	}}
	a := &at{}
	chosen, table := a.mat(tensor.I32, rows, x.Width()), a.mat(tensor.I32, 1, 1<<16)
	var norm, angles launch.Mat
	if x.Local == 0 {
		norm, angles = a.mat(tensor.BF16, 1, x.Dim), a.mat(tensor.F32, 1<<17, x.Rope.Dim)
	}
	b.SelectBlocks(chosen, a.mat(tensor.BF16, rows, x.Heads*x.Dim), launch.KV{Mat: a.mat(tensor.BF16, 1<<20, x.Dim)}, norm, angles, list, table, decode, x)
	b.SparseGQA(a.mat(tensor.BF16, rows, p.Heads*p.HeadDim), a.mat(tensor.BF16, rows, p.Heads*p.HeadDim), launch.KV{Mat: a.mat(tensor.F8E4M3, 1<<20, p.Width())},
		chosen, list, table, decode, p)
	for _, o := range b.List.Ops {
		names = append(names, o.Kernel.String())
	}
	return names, most
}

// TestOverBlocks: the sizes of MiniMax-M3 and Qwen3.8-Flash-Next have fast kernels, which rows of a prompt take from the first one that
// chooses on, and their scratch memory is bounded.
func TestOverBlocks(t *testing.T) {
	m3 := device.BlockIndex{Heads: 4, Dim: 128, Block: 128, Chosen: 16, Local: 1, BlockTokens: 64}
	m3Heads := device.GQA{Heads: 64, KVHeads: 4, HeadDim: 128, BlockTokens: 64, Lists: 4}
	next := device.BlockIndex{Heads: 4, Dim: 128, Block: 4, Chosen: 512, Rope: device.Rope{Heads: 1, HeadDim: 128, Dim: 64}, BlockTokens: 64}
	nextHeads := device.GQA{Heads: 24, KVHeads: 2, HeadDim: 256, BlockTokens: 64}
	const dense = "kr_gqa_prefill_e4m3_128_h"
	few, many := []string{"kr_block_best1_bf16", "kr_block_top"}, []string{"kr_block_best8_bf16", "kr_block_top"}
	sum := []string{"kr_block_keys", "kr_block_sum1_bf16", "kr_block_top"}
	lists := []string{"kr_list_spans", "kr_gqa_lists16_e4m3_128", "kr_gqa_join_128"}
	for _, x := range []struct {
		index  device.BlockIndex
		p      device.GQA
		rows   int
		list   []device.Span
		decode bool
		want   []string
	}{
		{m3, m3Heads, 1, generated(1, 131072), true, slices.Concat(few, lists)},
		{m3, m3Heads, 8, generated(8, 5), true, slices.Concat(few, lists)},
		{next, nextHeads, 1, generated(1, 131072), true, slices.Concat(sum, []string{"kr_list_spans", "kr_gqa_lists16_e4m3_256", "kr_gqa_join_256"})},
		{m3, m3Heads, 40, []device.Span{{Len: 40, Pos: 4000}}, false, slices.Concat(many, lists[:2])},
		{m3, m3Heads, 40, []device.Span{{Len: 40, Pos: 2040}}, false, slices.Concat(many, []string{dense}, lists[:2])},
		{m3, m3Heads, 40, []device.Span{{Len: 40, Pos: 2008}}, false, slices.Concat(many, []string{dense})},
	} {
		names, most := overBlocks(x.index, x.p, x.rows, x.list, x.decode)
		if !slices.Equal(names, x.want) {
			t.Errorf("%d rows of %v: %v, want %v", x.rows, x.list, names, x.want)
		}
		s := device.StepSizes{Rows: 40, Seqs: 8, LogitRows: 8, Context: 131072, Hidden: 6144, Vocab: 1000, GQA: x.p, Blocks: x.index}
		s.GQA.Lists = 0
		if planned := ScratchBytes(&s); most > planned {
			t.Errorf("%d rows of %v: %d bytes of scratch memory, planned are %d", x.rows, x.list, most, planned)
		}
	}
	m3.Dim = 64
	if names, _ := overBlocks(m3, m3Heads, 8, generated(8, 9000), true); names[0] != "kr_block_scores" {
		t.Errorf("heads of 64: %v", names)
	}
}
