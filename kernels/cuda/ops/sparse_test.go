package ops

import (
	"slices"
	"testing"

	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// sparse returns the names of the kernels of an indexer's choice and of attention over it for list, and the most scratch memory
// that they request.
func sparse(x device.Index, p device.MLA, rows int, list []device.Span, decode bool) (names []string, most int) {
	b := &Builder{GPU: launch.GPU{SMs: 132, Hopper: true, SharedMax: 232448}, List: &launch.List{}, Scratch: func(n int) launch.Ptr {
		most = max(most, n)
		return 1 << 60
	}}
	a := &at{}
	chosen, table := a.mat(tensor.I32, rows, x.Positions()), a.mat(tensor.I32, 1, 1<<16)
	b.Select(chosen, a.mat(tensor.BF16, rows, x.Heads*x.Dim), a.mat(tensor.BF16, rows, x.Heads), launch.KV{Mat: a.mat(tensor.F8E4M3, 1<<20, x.Dim)}, list, table, decode, x)
	b.SparseMLA(a.mat(tensor.BF16, rows, p.Heads*p.V), a.mat(tensor.BF16, rows, p.Heads*(p.Nope+p.Rope)), launch.KV{Mat: a.mat(tensor.F8E4M3, 1<<20, p.Rank+p.Rope)},
		launch.Weight{F: a.mat(tensor.BF16, p.Heads*(p.Nope+p.V), p.Rank)}, chosen, list, table, decode, p)
	for _, o := range b.List.Ops {
		names = append(names, o.Kernel.String())
	}
	return names, most
}

// TestSparse: the sizes of DeepSeek-V3.2 and GLM-5 have fast kernels, which rows of a prompt take from the first one that chooses
// on, and their scratch memory is bounded.
func TestSparse(t *testing.T) {
	index := device.Index{Heads: 64, Dim: 128, TopK: 2048, BlockTokens: 64}
	deepseek := device.MLA{Heads: 128, Nope: 128, Rope: 64, V: 128, Rank: 512, BlockTokens: 64}
	glm := device.MLA{Heads: 64, Nope: 192, Rope: 64, V: 256, Rank: 512, BlockTokens: 64}
	choice := []string{"kr_index_scores_e4m3", "kr_index_top"}
	one := []string{"kr_sparse_spans", "kr_mla_absorb", "kr_mla_decode_e4m3", "kr_mla_join_merge"}
	any := []string{"kr_sparse_spans", "kr_mla_absorb_any", "kr_mla_decode_e4m3", "kr_mla_join", "kr_mla_out_any"}
	prompt := []string{"kr_mla_gather"}
	for _, x := range []struct {
		p       device.MLA
		rows    int
		list    []device.Span
		decode  bool
		want    []string // of attention
		prefill bool     // behind kernels of a prompt that sees all
	}{
		{deepseek, 8, generated(8, 131072), true, one, false},
		{deepseek, 8, generated(8, 5), true, one, false},
		{glm, 8, generated(8, 131072), true, any, false},
		{deepseek, 20, []device.Span{{Len: 20, Pos: 4000}}, false, slices.Concat(one, one), false},
		{deepseek, 20, []device.Span{{Len: 20, Pos: 2040}}, false, one, true},
		{deepseek, 20, []device.Span{{Len: 20, Pos: 2028}}, false, nil, true},
		{glm, 20, []device.Span{{Len: 20, Pos: 5}}, false, slices.Concat(any, any), false},
	} {
		names, most := sparse(index, x.p, x.rows, x.list, x.decode)
		got, n := names[min(2, len(names)):], len(names)-len(x.want)
		if !slices.Equal(names[:min(2, len(names))], choice) || !slices.Equal(names[max(n, 0):], x.want) || slices.Contains(got, prompt[0]) != x.prefill || !x.prefill && n != 2 {
			t.Errorf("%d rows of %v: %v", x.rows, x.list, names)
		}
		s := device.StepSizes{Rows: 20, Seqs: 8, LogitRows: 8, Context: 131072, Hidden: 7168, Vocab: 1000, MLA: x.p, Index: index}
		if planned := ScratchBytes(&s); most > planned {
			t.Errorf("%d rows of %v: %d bytes of scratch memory, planned are %d", x.rows, x.list, most, planned)
		}
	}
	index.Dim = 64
	if names, _ := sparse(index, deepseek, 8, generated(8, 9000), true); names[0] != "kr_select" {
		t.Errorf("heads of 64: %v", names)
	}
}

// generated returns n generated rows that see context positions each.
func generated(n, context int) (list []device.Span) {
	for i := range n {
		list = append(list, device.Span{Row: i, Len: 1, Pos: context - 1})
	}
	return list
}

// TestPitch: there is room for the scores of the longest row, and it changes seldom.
func TestPitch(t *testing.T) {
	for context, want := range map[int]int{1: 4096, 4096: 4096, 4097: 8192, 131072: 131072, 131073: 262144} {
		if got := Pitch(slices.Concat(generated(2, 1), generated(1, context))); got != want {
			t.Errorf("Pitch of %d is %d, want %d", context, got, want)
		}
	}
}

// TestLatentLaunches: GLM-5.3-Flash, whose index has pools and whose latents have no rotated values, has fast kernels for generated rows and for
// prompts, and the scratch memory of its attention and of its streams is bounded.
func TestLatentLaunches(t *testing.T) {
	index := device.Index{Heads: 32, Dim: 128, TopK: 512, Pool: 4, BlockTokens: 64}
	p := device.MLA{Heads: 64, Nope: 256, V: 256, Rank: 512, BlockTokens: 64}
	choice := []string{"kr_index_scores_e4m3", "kr_index_top"}
	whole := []string{"kr_latent_absorb", "kr_latent_attend_e4m3", "kr_latent_expand"}
	for _, x := range []struct {
		rows   int
		list   []device.Span
		decode bool
		want   []string
	}{
		{8, generated(8, 131072), true, slices.Concat(choice, []string{"kr_latent_absorb", "kr_latent_attend_e4m3", "kr_latent_join", "kr_latent_expand"})},
		{20, []device.Span{{Len: 20, Pos: 2040}}, false, slices.Concat(choice, whole)},
		{300, []device.Span{{Len: 300, Pos: 8000}}, false, slices.Concat(choice, whole, whole)},
	} {
		names, most := sparse(index, p, x.rows, x.list, x.decode)
		if !slices.Equal(names, x.want) {
			t.Errorf("%d rows of %v: %v", x.rows, x.list, names)
		}
		s := device.StepSizes{Rows: 300, Seqs: 8, LogitRows: 8, Context: 131072, Hidden: 4096, Vocab: 1000, MLA: p, Index: index, Streams: 4}
		b := &Builder{Scratch: func(n int) launch.Ptr { most = max(most, n); return 1 << 60 }, List: &launch.List{}}
		a, width := &at{}, 4*s.Hidden
		mix := device.StreamMix{Streams: 4, Iterations: 20}
		b.MixedInput(a.mat(tensor.BF16, s.Rows, s.Hidden), &elem.Mixed{X: a.mat(tensor.F32, s.Rows, width), W: a.mat(tensor.F32, mix.Width(), width), Base: a.mat(tensor.F32, 1, mix.Width()),
			Scale: a.mat(tensor.F32, 1, 3), Weights: a.mat(tensor.F32, s.Rows, mix.Width()), Norm: a.mat(tensor.BF16, 1, s.Hidden), StreamMix: mix})
		if planned := ScratchBytes(&s); most > planned {
			t.Errorf("%d rows of %v: %d bytes of scratch memory, planned are %d", x.rows, x.list, most, planned)
		}
	}
}
