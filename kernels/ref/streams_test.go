package ref

import (
	"math"
	"slices"
	"testing"

	"krater/kernels/device"
)

func TestStreams(t *testing.T) {
	out := make([]float32, 2)
	Collapse(out, []float32{1, 2, 3, 4}, []float32{1, 10, 100, 1000}, 2, 2)
	expect(t, "collapse", out, 301, 4020)
	wide := []float32{1, 1, 1, 1}
	Spread(wide, []float32{2, 3}, []float32{10, -1}, wide, 2, 2)
	expect(t, "spread onto", wide, 21, 31, -1, -2)
	Spread(wide, []float32{2, 3}, []float32{10, -1}, nil, 2, 2)
	expect(t, "spread", wide, 20, 30, -2, -3)
	// Products 8, -8 and 0 of streams of 4, over sqrt(4).
	gates, x := make([]float32, 3), []float32{1, 1, 1, 1, -1, -1, -1, -1, 0, 0, 0, 0}
	StreamGates(gates, x, []float32{2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, 4)
	expect(t, "gates", gates, 2, -2, 0)
	v := []float32{2}
	Sigmoid(v, device.Sigmoid{Silu: true, In: 0.5, Out: 3})
	expect(t, "silu", v, 3/(1+math.Exp(-1)))
	v[0] = 2
	Sigmoid(v, device.Sigmoid{In: 0, Out: 2})
	expect(t, "sigmoid", v, 1)
}

// Taps at t and t-2; the sequence begins at position 1 of a slot that is zero.
func TestTapConv(t *testing.T) {
	p := device.TapConv{Taps: 2, Step: 2}
	tail, out := make([]float32, 6), make([]float32, 3)
	tail[3+1] = 100 // position 1 of slot 1
	TapConv(out, []float32{1, 2, 3}, []float32{10, 1}, tail, []device.Span{{Len: 3, Pos: 2, Slot: 1}}, p, 1)
	expect(t, "out", out, Silu(1), Silu(1002), Silu(13))
	expect(t, "tail", tail, 0, 0, 0, 2, 3, 1)
}

// Order 2 has one head, order 3 another; 9 ends a text.
func TestNGrams(t *testing.T) {
	p := device.NGrams{Order: 3, PerOrder: 1, Dim: 1, EOS: 9, Multipliers: []uint64{1, 16, 256}, Sizes: []uint64{1 << 12, 1 << 12}, Offsets: []uint64{0, 1}}
	table := make([]float32, 1<<12+1)
	for i := range table {
		table[i] = float32(i)
	}
	out, rows, tail := make([]float32, 10), make([]int32, 10), make([]float32, 6)
	NGrams(out, rows, []int32{1, 2, 9, 3, 4}, table, tail, []device.Span{{Len: 5, Slot: 1}}, p)
	want := []int32{0x91, 0x991 + 1, 0x12, 0x912 + 1, 0x29, 0x129 + 1, 0x93, 0x993 + 1, 0x34, 0x934 + 1}
	if !slices.Equal(rows, want) {
		t.Errorf("rows %#x, want %#x", rows, want)
	}
	expect(t, "table", out[:2], 0x91, 0x992)
	expect(t, "kept", tail, 0, 0, 0, 3, 4, 9)
}

// Blocks of two tokens whose keys are (0, 1), (1, 0) and (0, 1) after the norm; the query looks along the second.
func TestSelectBlocks(t *testing.T) {
	p := device.BlockIndex{Heads: 1, Dim: 2, Block: 2, Chosen: 1, Rope: device.Rope{Heads: 1, HeadDim: 2}, BlockTokens: 8}
	keys := []float32{0, 1, 0, 3, 5, 0, 1, 0, 0, 2, 0, 2, 9, 9, 9, 9}
	q := []float32{1, 0, 1, 0, 0, 1, 0, 1}
	chosen := make([]int32, 4*3)
	rows, slots := BlockKeys(keys, []float32{1, 1}, nil, []device.Span{{Len: 6, Blocks: []int32{0}}}, p)
	if !slices.Equal(slots, []int32{1, 3, 5}) {
		t.Errorf("keys of blocks lie in rows %v", slots)
	}
	StoreRows(keys, rows, slots, p.Dim)
	SelectBlocks(chosen, q, keys, []device.Span{{Len: 4, Pos: 2, Blocks: []int32{0}}}, p)
	want := []int32{
		0, 1, 2, // one block is complete
		2, 3, -1, // the second one just now, and it is better
		0, 1, 4,
		0, 1, -1, // two are equal: the first
	}
	if !slices.Equal(chosen, want) {
		t.Errorf("%v, want %v", chosen, want)
	}
}

// Keys are zero, so that the result is the mean of the values that are chosen.
func TestSparseGQA(t *testing.T) {
	p := device.GQA{Heads: 1, KVHeads: 1, HeadDim: 1, Scale: 1, BlockTokens: 2}
	cache := []float32{0, 7, 0, 8, 0, 1, 0, 2}
	out := make([]float32, 2)
	SparseGQA(out, []float32{1, 1}, cache, []int32{0, 2, 1, -1}, 2, []device.Span{{Len: 2, Pos: 2, Blocks: []int32{1, 0}}}, p)
	expect(t, "means", out, 4, 2)
}
