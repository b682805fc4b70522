package ref

import (
	"slices"
	"testing"

	"krater/kernels/device"
)

// Two heads look along one of two axes each, over blocks of two tokens; a row chooses its own block and one more.
func TestSelectLocal(t *testing.T) {
	p := device.BlockIndex{Heads: 2, Dim: 2, Block: 2, Chosen: 2, Local: 1, BlockTokens: 8}
	keys := []float32{0, 1, 3, -9, -2, 0, -1, 3, 9, 9, 9, 9, 9, 9, 9, 9}
	q := slices.Repeat([]float32{1, 0, 0, 1}, 3)
	chosen := make([]int32, 3*8)
	SelectBlocks(chosen, q, keys, []device.Span{{Len: 3, Pos: 3, Blocks: []int32{0}}}, p)
	want := []int32{
		0, 1, 2, 3, 0, 1, 2, 3, // no more blocks than are chosen
		0, 1, 4, -1, 2, 3, 4, -1, // the largest products are 3 and -1, and 1 and 3
		0, 1, 4, 5, 2, 3, 4, 5,
	}
	if !slices.Equal(chosen, want) {
		t.Errorf("%v, want %v", chosen, want)
	}
}

// TestSparseGQALists: each key head reads a list of its own.
func TestSparseGQALists(t *testing.T) {
	p := device.GQA{Heads: 2, KVHeads: 2, HeadDim: 1, Scale: 1, BlockTokens: 4, Lists: 2}
	cache := []float32{0, 0, 1, 10, 0, 0, 2, 20, 0, 0, 3, 30}
	out := make([]float32, 2)
	SparseGQA(out, []float32{1, 1}, cache, []int32{0, 2, 1, -1}, 4, []device.Span{{Len: 1, Pos: 2, Blocks: []int32{0}}}, p)
	expect(t, "means", out, 2, 20)
}
