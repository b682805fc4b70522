package cpu_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// contents returns the values in a cache.
func contents(c device.KV) []float32 {
	out := make([]float32, c.Rows*c.Cols)
	for r := range c.Rows {
		row := c.Buf.Host()[c.Off+r*c.Stride*c.DType.Size():]
		for i := range c.Cols {
			to := &out[r*c.Cols+i]
			switch c.DType {
			case tensor.BF16:
				*to = tensor.BF16ToF32(binary.LittleEndian.Uint16(row[2*i:]))
			case tensor.F8E4M3:
				*to = tensor.F8E4M3ToF32(row[i])
			case tensor.I8:
				at := c.Scales.Off + 4*(r*c.Scales.Stride+i/c.Group)
				*to = float32(int8(row[i])) * math.Float32frombits(binary.LittleEndian.Uint32(c.Scales.Buf.Host()[at:]))
			default:
				*to = math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:]))
			}
		}
	}
	return out
}

// blockScene is a sequence whose raw keys are in the cache.
type blockScene struct {
	p              device.BlockIndex
	tokens, slots  int
	dt             tensor.DType
	q, raw, table  []float32
	norm           device.Mat
	normRef        []float32
	blocks         []int32
	chosen, wanted []int32
}

func newBlockScene(d *cpu.Device, p device.BlockIndex, dt tensor.DType, tokens int) *blockScene {
	r := kerneltest.Rand(uint64(p.Dim))
	c := &blockScene{p: p, tokens: tokens, dt: dt}
	n := (tokens + p.BlockTokens - 1) / p.BlockTokens
	c.slots = n * p.BlockTokens
	for b := range n {
		c.blocks = append(c.blocks, int32(n-1-b))
	}
	_, c.q = kerneltest.BF16(kerneltest.Normal(r, tokens*p.Heads*p.Dim, 1)) // which the tiles round to no other value
	c.raw, c.table = kerneltest.Normal(r, c.slots*p.Dim, 1), kerneltest.Normal(r, c.slots*p.Rope.Dim, 1)
	c.norm, c.normRef = floats(d, tensor.BF16, kerneltest.Normal(r, p.Dim, 1), 1, p.Dim)
	c.chosen, c.wanted = make([]int32, tokens*p.Positions()), make([]int32, tokens*p.Positions())
	return c
}

// run passes over the sequence in chunks, and returns what the cache held before and holds then.
func (c *blockScene) run(d *cpu.Device, s device.Stream, chunk int) (before, after []float32) {
	keys, before := newKV(d, c.dt, slices.Clone(c.raw), c.slots, c.p.Dim, c.p.Dim)
	before = slices.Clone(before)
	clear(c.chosen)
	for pos := 0; pos < c.tokens; pos += chunk {
		span := device.Span{Row: pos, Len: min(chunk, c.tokens-pos), Pos: pos, Blocks: c.blocks}
		d.SelectBlocks(s, wrap(d, tensor.I32, c.chosen, c.tokens, c.p.Positions()), f32s(d, c.q, c.tokens, c.p.Heads*c.p.Dim), keys, c.norm,
			f32s(d, c.table, c.slots, c.p.Rope.Dim), device.Spans{List: []device.Span{span}}, c.p)
	}
	return before, contents(keys)
}

// roundings give the error that a type of cache allows a key, for values up to most.
var roundings = map[tensor.DType]func(want, most float64) float64{
	tensor.F32:    func(want, most float64) float64 { return 64 * kerneltest.Eps32 * (1 + most) },
	tensor.BF16:   func(want, most float64) float64 { return 0x1p-8*math.Abs(want) + 1e-5 },
	tensor.F8E4M3: func(want, most float64) float64 { return 0x1p-4*math.Abs(want)*1.01 + 0x1p-9 },
	tensor.I8:     func(want, most float64) float64 { return most / 127 },
}

// TestSelectBlocks: keys of blocks take the place of those of their last tokens, the choice by them is that of the
// reference chooses, and both have the same bits however the sequence was cut.
func TestSelectBlocks(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, x := range []struct {
			p      device.BlockIndex
			tokens int
		}{
			{device.BlockIndex{Heads: 5, Dim: 32, Block: 4, Chosen: 2, Eps: 1e-6, Rope: device.Rope{Heads: 1, HeadDim: 32, Dim: 16}, BlockTokens: 4}, 37},
			{device.BlockIndex{Heads: 1, Dim: 7, Block: 3, Chosen: 3, Eps: 1e-6, Rope: device.Rope{Heads: 1, HeadDim: 7}, BlockTokens: 8}, 40},
			{device.BlockIndex{Heads: 2, Dim: 8, Block: 1, Chosen: 5, Eps: 1e-6, Rope: device.Rope{Heads: 1, HeadDim: 8, Dim: 8, Interleaved: true}, BlockTokens: 8}, 19},
			{device.BlockIndex{Heads: 18, Dim: 33, Block: 2, Chosen: 70, Eps: 1e-6, Rope: device.Rope{Heads: 1, HeadDim: 33, Dim: 12, Offset: 3}, BlockTokens: 7}, 301},
		} {
			for _, dt := range kvTypes {
				c := newBlockScene(d, x.p, dt, x.tokens)
				before, after := c.run(d, s, x.tokens)
				chosen := slices.Clone(c.chosen)
				whole := []device.Span{{Len: x.tokens, Blocks: c.blocks}}
				rows, slots := ref.BlockKeys(before, c.normRef, c.table, whole, x.p)
				want := slices.Clone(before)
				ref.StoreRows(want, rows, slots, x.p.Dim)
				most := kerneltest.MaxAbs(want)
				limit := func(i int) float64 {
					if !slices.Contains(slots, int32(i/x.p.Dim)) {
						return 0
					}
					return roundings[dt](float64(want[i]), most)
				}
				if err := kerneltest.Compare(after, want, x.p.Dim, limit); err != nil {
					t.Errorf("%+v %s: keys: %v", x.p, dt, err)
				}
				ref.SelectBlocks(c.wanted, c.q, after, whole, x.p)
				if !slices.Equal(chosen, c.wanted) {
					t.Errorf("%+v %s: %v, want %v", x.p, dt, chosen, c.wanted)
				}
				for _, chunk := range []int{1, 7} {
					if _, kept := c.run(d, s, chunk); kerneltest.SameBits(kept, after) != nil || !slices.Equal(c.chosen, chosen) {
						t.Errorf("%+v %s: other keys or choices in chunks of %d", x.p, dt, chunk)
					}
				}
			}
		}
	})
}

// TestSparseGQA: rows attend to what they list, with the same bits alone, beside others, and where the list has all that
// a row sees.
func TestSparseGQA(t *testing.T) {
	for _, p := range []device.GQA{
		{Heads: 6, KVHeads: 2, HeadDim: 32, Scale: 0.2, BlockTokens: 16}, {Heads: 1, KVHeads: 1, HeadDim: 5, Scale: 1, BlockTokens: 3},
		{Heads: 24, KVHeads: 2, HeadDim: 33, Scale: 0.1, BlockTokens: 7},
	} {
		for _, dt := range kvTypes {
			t.Run(fmt.Sprint(p, dt), func(t *testing.T) {
				forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) { sparseGQA(t, d, s, p, dt) })
			})
		}
	}
}

func sparseGQA(t *testing.T, d *cpu.Device, s device.Stream, p device.GQA, dt tensor.DType) {
	const rows, tokens, n = 7, 600, 301
	r := kerneltest.Rand(9)
	var table []int32
	for _, b := range r.Perm((tokens + p.BlockTokens - 1) / p.BlockTokens) {
		table = append(table, int32(b))
	}
	width, slots := p.Heads*p.HeadDim, len(table)*p.BlockTokens
	_, q := kerneltest.BF16(kerneltest.Normal(r, rows*width, 1))
	copy(q[5*width:6*width], q[4*width:5*width])
	cache, cacheRef := newKV(d, dt, kerneltest.Normal(r, slots*p.Width(), 1), slots, p.Width(), p.HeadDim)
	// Rows 4 and 5 are the same query over positions 0 to 299: all that row 4 sees, and one less than row 5 does.
	spans := []device.Span{{Row: 0, Len: 1, Pos: 599, Blocks: table}, {Row: 1, Len: 2, Pos: 1, Blocks: table}, {Row: 3, Len: 4, Pos: 298, Blocks: table}}
	chosen := make([]int32, rows*n)
	list := func(row int, of []int) {
		slices.Sort(of)
		for i := range n {
			chosen[row*n+i] = -1
			if i < len(of) {
				chosen[row*n+i] = int32(of[i])
			}
		}
	}
	first := func(n int) []int { return slices.Sorted(slices.Values(r.Perm(n))) }
	list(0, r.Perm(600)[:n])
	list(1, first(2))
	list(2, []int{1})
	list(3, r.Perm(299)[:129])
	list(4, first(300))
	list(5, first(300))
	list(6, r.Perm(302)[:128])
	want, got := make([]float32, len(q)), make([]float32, len(q))
	ref.SparseGQA(want, q, cacheRef, chosen, n, spans, p)
	run := func(spans []device.Span) {
		d.SparseGQA(s, f32s(d, got, rows, width), f32s(d, q, rows, width), cache, wrap(d, tensor.I32, chosen, rows, n), device.Spans{List: spans}, p)
	}
	run(spans)
	// Queries and weights of values are rounded to BF16 where the tiles read that.
	limit := 64 * kerneltest.Eps32 * (1 + kerneltest.MaxAbs(want))
	if dt == tensor.BF16 || dt == tensor.F8E4M3 {
		limit = 0x1p-7 * kerneltest.MaxAbs(want)
	}
	if err := kerneltest.Compare(got, want, p.HeadDim, kerneltest.Relative(want, 16, limit)); err != nil {
		t.Error(err)
	}
	if err := kerneltest.SameBits(got[4*width:5*width], got[5*width:6*width]); err != nil {
		t.Errorf("a list of all that a row sees: %v", err)
	}
	all := slices.Clone(got)
	for _, sp := range spans {
		for r := range sp.Len {
			clear(got)
			run([]device.Span{{Row: sp.Row + r, Len: 1, Pos: sp.Pos + r, Blocks: table}})
			at := (sp.Row + r) * width
			if err := kerneltest.SameBits(got[at:at+width], all[at:at+width]); err != nil {
				t.Errorf("row %d alone: %v", sp.Row+r, err)
			}
		}
	}
	chosen[2*n] = 3 // behind the row
	panicsWith(t, "SparseGQA", func() { run(spans) })
	chosen[2*n] = -1
	panicsWith(t, "SparseGQA", func() { run(spans) })
}
