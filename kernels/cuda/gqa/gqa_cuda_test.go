//go:build cuda

package gqa

import (
	"math"
	"math/rand/v2"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// Two prompts and two generated rows, with blocks in any order and NaN at unused positions.
func TestPlain(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(8, 1))
	p := device.GQA{Heads: 6, KVHeads: 2, HeadDim: 24, Scale: 0.3, BlockTokens: 16}
	prefill := []device.Span{{Row: 1, Len: 3, Pos: 0, Blocks: []int32{5}}, {Row: 4, Len: 2, Pos: 130, Blocks: []int32{9, 0, 7, 1, 3, 11, 13, 2, 12}}}
	decode := []device.Span{{Row: 0, Len: 1, Pos: 17, Blocks: []int32{10, 6}}, {Row: 6, Len: 1, Pos: 0, Blocks: []int32{8}}}
	const rows, slots = 7, 14 * 16
	query := cudatest.Normal(rng, rows*p.Heads*p.HeadDim)
	cached := cudatest.Normal(rng, slots*p.Width())
	used := map[int]bool{}
	for _, s := range append(append([]device.Span(nil), prefill...), decode...) {
		for i := range s.Pos + s.Len {
			used[int(s.Blocks[i/16])*16+i%16] = true
		}
	}
	for i := range cached {
		if !used[i/p.Width()] {
			cached[i] = float32(math.NaN())
		}
	}
	words := make([]int32, spans.Words(4, 13))
	n := spans.Put(words, prefill, decode)
	table := c.I32(words, 1, n)
	for i, window := range []int{0, 1, 4, 130} {
		p.Window = window
		var sinks []float32
		var sinkMat launch.Mat
		if i%2 == 1 {
			sinks = cudatest.Normal(rng, p.Heads)
			sinkMat = c.F32(sinks, 1, p.Heads)
		}
		want := make([]float32, rows*p.Heads*p.HeadDim)
		ref.GQA(want, query, cached, sinks, prefill, p)
		ref.GQA(want, query, cached, sinks, decode, p)
		for _, half := range []bool{false, true} {
			q, kv, out, eps := c.F32(query, rows, p.Heads*p.HeadDim), c.F32(cached, slots, p.Width()), c.Mat(tensor.F32, rows, p.Heads*p.HeadDim), 1e-5
			if half {
				q, kv, out, eps = c.BF16(query, rows, p.Heads*p.HeadDim), c.BF16(cached, slots, p.Width()), c.Mat(tensor.BF16, rows, p.Heads*p.HeadDim), 1./256
			}
			c.Run(func(l *launch.List) {
				Plain(l, out, q, launch.KV{Mat: kv}, sinkMat, table, false, p)
				Plain(l, out, q, launch.KV{Mat: kv}, sinkMat, table, true, p)
			})
			for i, v := range c.Floats(out) {
				if d := math.Abs(float64(v - want[i])); !(d <= eps*(1+math.Abs(float64(want[i])))) {
					t.Fatalf("bf16 %v, window %d: element %d is %v, want %v", half, p.Window, i, v, want[i])
				}
			}
		}
	}
}
