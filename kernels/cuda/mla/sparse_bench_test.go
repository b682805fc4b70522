//go:build cuda

package mla

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// BenchmarkSparse measures a layer of DeepSeek-V3.2 for generated rows: index scores and choice, attention over what is
// chosen, and in the same run attention over all; and one of GLM-5. ns/op is that of all three; the metrics are microseconds.
func BenchmarkSparse(b *testing.B) {
	index := device.Index{Heads: 64, Dim: indexDim, TopK: 2048, BlockTokens: 64}
	p := device.MLA{Heads: 128, Nope: nope, Rope: rope, V: vDim, Rank: rank, Scale: 0.1, BlockTokens: 64}
	glm := device.MLA{Heads: 64, Nope: 192, Rope: rope, V: 256, Rank: rank, Scale: 0.1, BlockTokens: 64}
	for _, rows := range []int{1, 8} {
		for _, ctx := range []int{2048, 8192, 32768, 131072} {
			b.Run(fmt.Sprintf("rows=%d/context=%d", rows, ctx), func(b *testing.B) { benchSparse(b, rows, ctx, index, p) })
		}
		few := index
		few.Heads = 32
		b.Run(fmt.Sprintf("glm-5/rows=%d/context=131072", rows), func(b *testing.B) { benchSparse(b, rows, 131072, few, glm) })
	}
}

func benchSparse(b *testing.B, rows, ctx int, index device.Index, p device.MLA) {
	c := cudatest.Open(b)
	var seqs []seq
	for range rows {
		seqs = append(seqs, seq{past: ctx - 1, rows: 1, decode: true})
	}
	x := &problem{c: c, p: p}
	rng := rand.New(rand.NewPCG(1, 1))
	x.place(rng, seqs)
	some := func(dt tensor.DType, rows, cols int) launch.Mat { // values between -1 and 1, some of them repeated
		raw := make([]byte, rows*cols*dt.Size())
		part := make([]byte, 1<<16)
		for i := range part {
			part[i] = byte(rng.IntN(0x38)) | byte(rng.IntN(2)<<7)
			if dt == tensor.BF16 && i%2 == 1 {
				part[i] = byte(0x3e + rng.IntN(2)<<7)
			}
		}
		for at := 0; at < len(raw); at += copy(raw[at:], part[2*rng.IntN(128):]) {
		}
		return launch.Mat{At: c.Bytes(raw), DType: dt, Rows: rows, Cols: cols, Stride: cols}
	}
	keys, cache := launch.KV{Mat: some(tensor.F8E4M3, x.slots, indexDim)}, launch.KV{Mat: some(tensor.F8E4M3, x.slots, width)}
	iq, weights := some(tensor.BF16, rows, index.Heads*indexDim), some(tensor.BF16, rows, index.Heads)
	q, out := some(tensor.BF16, rows, p.Heads*(p.Nope+p.Rope)), c.Mat(tensor.BF16, rows, p.Heads*p.V)
	kvb := launch.Weight{F: some(tensor.BF16, p.Heads*(p.Nope+p.V), rank)}
	chosen := c.Mat(tensor.I32, rows, index.TopK)
	pitch := (ctx + 127) / 128 * 128
	items, all := SparseItems(rows, index.TopK), DecodeItems(rows, ctx)
	scratch := c.Alloc(max(SelectScratch(rows, pitch), SparseScratch(rows, items, index.TopK, p), DecodeScratch(rows, all, p)))
	generated := Rows{Decode: true, Count: rows}
	measure := func(build func(l *launch.List)) float64 {
		const times = 50
		best := time.Hour
		for range 4 { // the first warms up
			c.Sync()
			start := time.Now()
			c.Run(func(l *launch.List) {
				for range times {
					build(l)
				}
			})
			best = min(best, time.Since(start))
		}
		return float64(best.Nanoseconds()) / 1000 / times
	}
	for range b.N {
		choose := measure(func(l *launch.List) {
			SelectRows(l, c.Info(), chosen, iq, weights, keys, x.table, generated, pitch, scratch, index)
		})
		sparse := measure(func(l *launch.List) {
			SparseRows(l, c.Info(), out, q, cache, kvb, chosen, x.table, generated, items, scratch, p, elem.Near{})
		})
		dense := 0.0
		if fixed(p) {
			dense = measure(func(l *launch.List) { Decode(l, c.Info(), out, q, cache, kvb, x.table, rows, all, scratch, p) })
		}
		b.ReportMetric(choose, "us-select")
		b.ReportMetric(float64(rows*ctx*indexDim)/choose/1000, "GB/s-select")
		b.ReportMetric(sparse, "us-sparse")
		b.ReportMetric(dense, "us-dense")
	}
}
