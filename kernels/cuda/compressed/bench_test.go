//go:build cuda

package compressed

import (
	"fmt"
	"testing"
	"time"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// BenchmarkCompressed measures attention of a layer of DeepSeek-V4-Flash for generated rows and for rows of a prompt, and the making of a prompt's
// entries, with a cache of BF16: layers that see a window alone, that choose 512 entries of 4 tokens, and that see all entries of 128.
func BenchmarkCompressed(b *testing.B) {
	for _, ratio := range []int{0, 4, 128} {
		for _, x := range []struct{ rows, ctx int }{{1, 2048}, {1, 32768}, {8, 32768}, {0, 2048}, {0, 8192}} {
			if ratio == 0 && x.ctx > 2048 {
				continue
			}
			name := fmt.Sprintf("ratio=%d/rows=%d/context=%d", ratio, x.rows, x.ctx)
			if x.rows == 0 {
				name = fmt.Sprintf("ratio=%d/prompt=512/context=%d", ratio, x.ctx)
			}
			b.Run(name, func(b *testing.B) { benchCompressed(b, ratio, x.rows, x.ctx) })
		}
	}
}

// microseconds returns how long the launches of build take.
func microseconds(c *cudatest.GPU, build func(l *launch.List)) float64 {
	const times = 10
	best := time.Hour
	for range 3 { // the first warms up
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

func benchCompressed(b *testing.B, ratio, rows, ctx int) {
	const heads, dim, topK = 64, 512, 512
	c := cudatest.Open(b)
	p := device.Compressed{Heads: heads, Dim: dim, Window: 128, Ratio: ratio, Scale: 0.04, BlockTokens: 32}
	seqs := []device.Span{{Len: 512, Pos: ctx - 512}}
	if rows > 0 {
		seqs = nil
		for range rows {
			seqs = append(seqs, device.Span{Len: 1, Pos: ctx - 1})
		}
	}
	x := newBatch(c, 1, p.BlockTokens, seqs, func(int) bool { return rows > 0 })
	caches := Caches{NearTable: x.nearer, Table: x.table}
	caches.Near, _ = x.cache(tensor.BF16, dim, 1)
	var chosen launch.Mat
	if ratio > 0 {
		caches.Entries, _ = x.cache(tensor.BF16, dim, ratio)
	}
	if ratio == 4 {
		list := make([]int32, x.rows*topK)
		for i := range list {
			list[i] = int32(i % topK * (ctx - 512) / 4 / topK)
		}
		chosen = c.I32(list, x.rows, topK)
	}
	q, out := c.BF16(cudatest.Normal(x.rng, x.rows*heads*dim), x.rows, heads*dim), c.Mat(tensor.BF16, x.rows, heads*dim)
	sinks := c.F32(make([]float32, heads), 1, heads)
	sees := p.Sees(ctx - 1)
	if ratio == 4 {
		sees = topK
	}
	splits := Splits(p.Window + sees)
	parts := c.Alloc(PartsBytes(max(1, rows), splits, heads))
	for range b.N {
		b.ReportMetric(microseconds(c, func(l *launch.List) { Attend(l, out, q, caches, chosen, sinks, rows > 0, p) }), "plain-us")
		if CanAttend(c.Info(), out, q, &caches, p) {
			b.ReportMetric(microseconds(c, func(l *launch.List) {
				if rows == 0 {
					AttendPrompts(l, out, q, caches, chosen, sinks, p)
					return
				}
				AttendGenerated(l, out, q, caches, chosen, sinks, rows, splits, parts, p)
			}), "fast-us")
		}
		if ratio == 0 || rows > 0 {
			continue
		}
		e := device.Compress{Dim: dim, Ratio: ratio, Overlap: ratio == 4, Eps: 1e-6, Rope: device.Rope{Heads: 1, HeadDim: dim, Offset: dim - 64, Dim: 64, Interleaved: true}, BlockTokens: p.BlockTokens}
		raw, _ := x.cache(tensor.F32, e.Width(), 1)
		norm, ape := c.F32(make([]float32, dim), 1, dim), c.F32(make([]float32, ratio*e.Parts()*dim), ratio, e.Parts()*dim)
		angles := c.F32(make([]float32, ctx*64), ctx, 64)
		b.ReportMetric(microseconds(c, func(l *launch.List) {
			Compress(l, caches.Entries, x.table, raw, x.nearer, norm, ape, angles, x.rows, false, e)
		}), "compress-us")
	}
}
