package cpu_test

import (
	"slices"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// compressedSpans are a generated row and a prompt, with tables for two caches whose blocks are in other orders.
func compressedSpans(blocks int) (far, near []device.Span) {
	a, b := make([]int32, blocks), make([]int32, blocks)
	for i := range blocks {
		a[i], b[i] = int32(blocks-1-i), int32((i+blocks/2)%blocks)
	}
	for _, s := range []device.Span{{Row: 0, Len: 1, Pos: 35}, {Row: 2, Len: 30, Pos: 7}} {
		s.Blocks = a
		far = append(far, s)
		s.Blocks = b
		near = append(near, s)
	}
	return far, near
}

func TestCompress(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, dt := range dtypes {
			for _, p := range []device.Compress{
				{Dim: 32, Ratio: 4, Overlap: true, Eps: 1e-6, Rope: device.Rope{Heads: 1, HeadDim: 32, Offset: 16, Dim: 16, Interleaved: true}, BlockTokens: 5},
				{Dim: 7, Ratio: 3, Eps: 1e-6, Rope: device.Rope{Heads: 1, HeadDim: 7}, BlockTokens: 8},
				{Dim: 16, Ratio: 1, Eps: 1e-6, Rope: device.Rope{Heads: 1, HeadDim: 16, Dim: 16}, BlockTokens: 1},
			} {
				blocks := (40 + p.BlockTokens - 1) / p.BlockTokens
				slots, made := blocks*p.BlockTokens, blocks*device.EntryRows(p.BlockTokens, p.Ratio)
				far, near := compressedSpans(blocks)
				r := kerneltest.Rand(uint64(p.Dim))
				raw, rawRef := floats(d, dt, kerneltest.Normal(r, slots*p.Width(), 1), slots, p.Width())
				norm, normRef := floats(d, dt, kerneltest.Normal(r, p.Dim, 1), 1, p.Dim)
				ape, table := kerneltest.Normal(r, p.Ratio*p.Parts()*p.Dim, 1), kerneltest.Normal(r, slots*p.Rope.Dim, 1)
				rows, at := ref.Compress(far, rawRef, near, normRef, ape, table, p)
				want, got := make([]float32, made*p.Dim), make([]float32, made*p.Dim)
				ref.StoreRows(want, rows, at, p.Dim)
				d.Compress(s, device.KV{Mat: f32s(d, got, made, p.Dim)}, device.Spans{List: far}, device.KV{Mat: raw}, device.Spans{List: near}, norm,
					f32s(d, ape, p.Ratio, p.Parts()*p.Dim), f32s(d, table, slots, p.Rope.Dim), p)
				near32(t, got, want, p.Dim)
			}
		}
	})
}

// near32 is near with a wider bound: exponentials of sums are compared.
func near32(t *testing.T, got, want []float32, cols int) {
	t.Helper()
	limit := 256 * kerneltest.Eps32 * (1 + kerneltest.MaxAbs(want))
	if err := kerneltest.Compare(got, want, cols, kerneltest.Relative(want, 16, limit)); err != nil {
		t.Error(err)
	}
}

func TestCompressed(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, dt := range dtypes {
			for _, p := range []device.Compressed{
				{Heads: 6, Dim: 32, Window: 8, Ratio: 4, Scale: 0.2, BlockTokens: 5},
				{Heads: 1, Dim: 7, Window: 100, Ratio: 1, Scale: 0.4, BlockTokens: 8},
				{Heads: 9, Dim: 16, Window: 1, Scale: 0.3, BlockTokens: 4},
			} {
				const rows, n = 32, 3
				blocks := (40 + p.BlockTokens - 1) / p.BlockTokens
				slots, made := blocks*p.BlockTokens, blocks*device.EntryRows(p.BlockTokens, max(1, p.Ratio))
				far, near := compressedSpans(blocks)
				r := kerneltest.Rand(uint64(p.Dim))
				q, sinks := kerneltest.Normal(r, rows*p.Heads*p.Dim, 1), kerneltest.Normal(r, p.Heads, 1)
				if dt == tensor.BF16 { // as the tiles read them
					_, q = floats(d, dt, q, rows, p.Heads*p.Dim)
				}
				kv, kvRef := floats(d, dt, kerneltest.Normal(r, slots*p.Dim, 1), slots, p.Dim)
				entries, entriesRef := floats(d, dt, kerneltest.Normal(r, made*p.Dim, 1), made, p.Dim)
				chosen := make([]int32, rows*n)
				for i := range chosen {
					chosen[i] = -1
				}
				for _, sp := range near {
					for row := range sp.Len {
						for k := range min(n, p.Sees(sp.Pos+row)) {
							chosen[(sp.Row+row)*n+k] = int32(p.Sees(sp.Pos+row) - 1 - k)
						}
					}
				}
				run := func(out []float32, list device.Mat, far, near []device.Span) {
					d.Compressed(s, f32s(d, out, rows, p.Heads*p.Dim), f32s(d, q, rows, p.Heads*p.Dim), device.KV{Mat: entries}, device.Spans{List: far},
						device.KV{Mat: kv}, device.Spans{List: near}, list, f32s(d, sinks, 1, p.Heads), p)
				}
				for _, list := range [][]int32{nil, chosen} {
					want, got := make([]float32, len(q)), make([]float32, len(q))
					ref.Compressed(want, q, entriesRef, far, kvRef, near, list, n, sinks, p)
					m := device.Mat{}
					if list != nil {
						m = wrap(d, tensor.I32, list, rows, n)
					}
					run(got, m, far, near)
					if dt == tensor.F32 {
						near32(t, got, want, p.Dim)
					} else if err := kerneltest.Compare(got, want, p.Dim, kerneltest.Relative(want, 0.02, 0.02)); err != nil {
						t.Error(err)
					}
					alone := slices.Clone(got) // row by row it has the same bits
					clear(alone[2*p.Heads*p.Dim:])
					for i := range 30 {
						a, b := far[1], near[1]
						a.Row, a.Len, a.Pos, b.Row, b.Len, b.Pos = a.Row+i, 1, a.Pos+i, b.Row+i, 1, b.Pos+i
						run(alone, m, []device.Span{a}, []device.Span{b})
					}
					if err := kerneltest.SameBits(alone, got); err != nil {
						t.Errorf("row by row: %v", err)
					}
				}
				if p.Ratio > 0 {
					chosen[0] = int32(p.Sees(35)) // not complete
					panicsWith(t, "Compressed", func() { run(make([]float32, len(q)), wrap(d, tensor.I32, chosen, rows, n), far, near) })
					panicsWith(t, "Compressed", func() { run(make([]float32, len(q)), device.Mat{}, far[:1], near) })
				}
			}
		}
	})
}

func TestRouteByToken(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		p := device.Router{Experts: 7, TopK: 3, Scoring: device.ScoreSqrtSoftplus, Normalize: true, Scale: 1.5}
		logits := kerneltest.Normal(kerneltest.Rand(1), 4*7, 5)
		table, tokens := []float32{0, 1, 2, 6, 5, 4, 3, 0, 6}, []int32{2, 0, 1, 2}
		want, weights := make([]int32, 12), make([]float32, 12)
		ref.RouteByToken(want, weights, logits, tokens, table, p)
		got, w := make([]int32, 12), make([]float32, 12)
		run := func() {
			d.RouteByToken(s, wrap(d, tensor.I32, got, 4, 3), f32s(d, w, 4, 3), f32s(d, logits, 4, 7), wrap(d, tensor.I32, tokens, 4, 1), f32s(d, table, 3, 3), p)
		}
		run()
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		near(t, "weights", w, weights, 3)
		tokens[3] = 3
		panicsWith(t, "RouteByToken", run)
	})
}
