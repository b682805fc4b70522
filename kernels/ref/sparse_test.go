package ref

import (
	"math"
	"slices"
	"testing"

	"krater/kernels/device"
)

func TestLayerNorm(t *testing.T) {
	out := make([]float32, 4)
	LayerNorm(out, []float32{1, 3, 5, 5}, []float32{2, 1}, []float32{10, 20}, 3)
	expect(t, "layer norm", out, 10-2*1/2.0, 20+1/2.0, 10, 20)
}

// Keys 1, -2, 3, 3 of one value. The first head meets positive ones, the second negative ones.
func TestSelect(t *testing.T) {
	p := device.Index{Heads: 2, Dim: 1, TopK: 2, BlockTokens: 2}
	keys := []float32{3, 3, 1, -2} // block 1 comes first
	span := []device.Span{{Len: 4, Pos: 0, Blocks: []int32{1, 0}}}
	got := make([]int32, 8)
	q := []float32{1, -1, 1, -1, 1, -1, 1, -1}
	// Scores 1, 2*2, 3, 3; then with negative weights -1, 0, -3, -3: zero is the best.
	Select(got, q, []float32{1, 2, 1, 2, 1, 2, -1, 0}, keys, span, p)
	if want := []int32{0, -1, 0, 1, 1, 2, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("chose %v, want %v", got, want)
	}
}

// Pools of two tokens, whose keys lie with the second; the keys of the first do not count.
func TestSelectPools(t *testing.T) {
	p := device.Index{Heads: 1, Dim: 1, TopK: 1, Pool: 2, BlockTokens: 4}
	keys := []float32{9, 2, 9, 3, 9, 3, 9, 9}
	got := make([]int32, 4*3)
	Select(got, []float32{1, 1, 1, 1}, []float32{1, 1, 1, 1}, keys, []device.Span{{Len: 4, Pos: 2, Blocks: []int32{0, 1}}}, p)
	// Of one pool and an open one, two pools, two and an open one, three: of equal ones the first.
	if want := []int32{0, 1, 2, 2, 3, -1, 2, 3, 4, 2, 3, -1}; !slices.Equal(got, want) {
		t.Errorf("chose %v, want %v", got, want)
	}
}

// Gates and biases whose exponentials are 1, and 1/4 beside 3/4.
func TestPoolKeys(t *testing.T) {
	p := device.Index{Dim: 1, Pool: 2}
	third := float32(math.Log(3))
	tail := []float32{7, 7, 7, 7, 4, 1, 9, 9}
	out := []float32{5, 5}
	PoolKeys(out, []float32{8, 1, 6, third}, []float32{0, third}, tail, []device.Span{{Len: 2, Pos: 1, Slot: 1}}, p)
	expect(t, "keys", out, 4.0/4+8*3.0/4, 0)
	expect(t, "kept", tail, 7, 7, 7, 7, 6, float64(third), 8, 1)
}

// Rank 1, one head, keys 0: the mean of the values of what is seen.
func TestSparseMLA(t *testing.T) {
	p := device.MLA{Heads: 1, Nope: 1, Rope: 1, V: 1, Rank: 1, Scale: 1, BlockTokens: 2}
	cache := []float32{4, 0, math.MaxFloat32, 0, 2, 0, 3, 0} // block 1 comes first
	out := make([]float32, 3)
	SparseMLA(out, make([]float32, 6), cache, []float32{0, 10}, []int32{9, 9, 9, 9, 0, 2}, 2, []device.Span{{Len: 3, Blocks: []int32{1, 0}}}, p)
	expect(t, "means", out, 20, 25, 30)
}
