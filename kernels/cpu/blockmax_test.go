package cpu_test

import (
	"fmt"
	"slices"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// TestSelectLocal: heads choose for themselves, in one piece and in chunks, with every type of the cache.
func TestSelectLocal(t *testing.T) {
	tokens, slots := 600, 608
	if testing.Short() {
		tokens, slots = 300, 304
	}
	expected := map[string][]int32{} // the same for all levels, and slow
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, p := range []device.BlockIndex{
			{Heads: 2, Dim: 32, Block: 4, Chosen: 3, Local: 1, BlockTokens: 8},
			{Heads: 17, Dim: 5, Block: 3, Chosen: 4, Local: 2, BlockTokens: 4},
			{Heads: 1, Dim: 8, Block: 1, Chosen: 2, Local: 2, BlockTokens: 8},
			{Heads: 4, Dim: 33, Block: 128, Chosen: 2, Local: 1, BlockTokens: 16},
		} {
			r := kerneltest.Rand(uint64(p.Dim))
			var blocks []int32
			for b := slots/p.BlockTokens - 1; b >= 0; b-- {
				blocks = append(blocks, int32(b))
			}
			_, q := kerneltest.BF16(kerneltest.Normal(r, tokens*p.Heads*p.Dim, 1)) // which the tiles round to no other value
			for _, dt := range kvTypes {
				keys, keysRef := newKV(d, dt, kerneltest.Normal(r, slots*p.Dim, 1), slots, p.Dim, p.Dim)
				got := make([]int32, tokens*p.Width())
				key := fmt.Sprint(p, dt)
				want := expected[key]
				if want == nil {
					want = make([]int32, tokens*p.Width())
					ref.SelectBlocks(want, q, keysRef, []device.Span{{Len: tokens, Blocks: blocks}}, p)
					expected[key] = want
				}
				for _, chunk := range []int{tokens, 7} {
					clear(got)
					for pos := 0; pos < tokens; pos += chunk {
						span := device.Span{Row: pos, Len: min(chunk, tokens-pos), Pos: pos, Blocks: blocks}
						d.SelectBlocks(s, wrap(d, tensor.I32, got, tokens, p.Width()), f32s(d, q, tokens, p.Heads*p.Dim), keys, device.Mat{}, device.Mat{},
							device.Spans{List: []device.Span{span}}, p)
					}
					same := 0
					for row := range tokens {
						if slices.Equal(got[row*p.Width():][:p.Width()], want[row*p.Width():][:p.Width()]) {
							same++
						}
					}
					if same < tokens-tokens/100 { // equal scores but for rounding
						t.Errorf("%+v, %v, chunks of %d: %d of %d rows as the reference", p, dt, chunk, same, tokens)
					}
				}
			}
		}
	})
}

// TestSparseGQALists: key heads attend to what their lists have.
func TestSparseGQALists(t *testing.T) {
	for _, p := range []device.GQA{
		{Heads: 6, KVHeads: 2, HeadDim: 32, Scale: 0.2, BlockTokens: 16, Lists: 2}, {Heads: 8, KVHeads: 4, HeadDim: 7, Scale: 0.3, BlockTokens: 5, Lists: 2},
	} {
		for _, dt := range kvTypes {
			t.Run(fmt.Sprint(p, dt), func(t *testing.T) {
				forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
					const rows, tokens, n = 5, 400, 150
					r := kerneltest.Rand(9)
					var table []int32
					for _, b := range r.Perm((tokens + p.BlockTokens - 1) / p.BlockTokens) {
						table = append(table, int32(b))
					}
					width, slots := p.Heads*p.HeadDim, len(table)*p.BlockTokens
					_, q := kerneltest.BF16(kerneltest.Normal(r, rows*width, 1))
					cache, cacheRef := newKV(d, dt, kerneltest.Normal(r, slots*p.Width(), 1), slots, p.Width(), p.HeadDim)
					spans := []device.Span{{Row: 0, Len: 1, Pos: 399, Blocks: table}, {Row: 1, Len: 3, Pos: 1, Blocks: table}, {Row: 4, Len: 1, Pos: 170, Blocks: table}}
					chosen := slices.Repeat([]int32{-1}, rows*p.Lists*n)
					for row, sees := range []int{400, 2, 3, 4, 171} {
						for list := range p.Lists {
							of := r.Perm(sees)[:min(sees, n-50*list)]
							if row == 3 && list == 1 { // one list has all, the other has not
								of = of[:2]
							}
							slices.Sort(of)
							for i, pos := range of {
								chosen[(row*p.Lists+list)*n+i] = int32(pos)
							}
						}
					}
					want, got := make([]float32, len(q)), make([]float32, len(q))
					ref.SparseGQA(want, q, cacheRef, chosen, p.Lists*n, spans, p)
					d.SparseGQA(s, f32s(d, got, rows, width), f32s(d, q, rows, width), cache, wrap(d, tensor.I32, chosen, rows, p.Lists*n), device.Spans{List: spans}, p)
					limit := 64 * kerneltest.Eps32 * (1 + kerneltest.MaxAbs(want))
					if dt == tensor.BF16 || dt == tensor.F8E4M3 { // whose tiles round queries and weights of values to BF16
						limit = 0x1p-7 * kerneltest.MaxAbs(want)
					}
					if err := kerneltest.Compare(got, want, p.HeadDim, kerneltest.Relative(want, 16, limit)); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}
