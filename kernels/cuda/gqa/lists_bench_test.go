//go:build cuda

package gqa

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

// BenchmarkLists measures a layer of MiniMax-M3 and one of Qwen3.8-Flash-Next, for generated rows and for the rows of a chunk of a prompt:
// choice of blocks, attention over what is chosen, and in the same run attention over all. ns/op is that of all three; the metrics
// are microseconds.
func BenchmarkLists(b *testing.B) {
	for _, m := range []struct {
		name  string
		index device.BlockIndex
		p     device.GQA
	}{
		{"minimax-m3", device.BlockIndex{Heads: 4, Dim: indexDim, Block: 128, Chosen: 16, Local: 1, BlockTokens: 64},
			device.GQA{Heads: 64, KVHeads: 4, HeadDim: 128, Scale: 0.1, BlockTokens: 64, Lists: 4}},
		{"flash-next", device.BlockIndex{Heads: 4, Dim: indexDim, Block: 4, Chosen: 512, BlockTokens: 64},
			device.GQA{Heads: 24, KVHeads: 2, HeadDim: 256, Scale: 0.1, BlockTokens: 64}},
	} {
		for _, rows := range []int{1, 8} {
			for _, ctx := range []int{2048, 32768, 131072} {
				b.Run(fmt.Sprintf("%s/rows=%d/context=%d", m.name, rows, ctx), func(b *testing.B) { benchLists(b, contexts(repeat(rows, ctx)...), m.index, m.p) })
			}
		}
		for _, ctx := range []int{8192, 32768} {
			b.Run(fmt.Sprintf("%s/prompt=512/context=%d", m.name, ctx), func(b *testing.B) { benchLists(b, []seq{{past: ctx - 512, rows: 512}}, m.index, m.p) })
		}
	}
}

func repeat(n, v int) (out []int) {
	for range n {
		out = append(out, v)
	}
	return out
}

func benchLists(b *testing.B, seqs []seq, index device.BlockIndex, p device.GQA) {
	c := cudatest.Open(b)
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
	keys, cache := launch.KV{Mat: some(tensor.F8E4M3, x.slots, index.Dim)}, launch.KV{Mat: some(tensor.F8E4M3, x.slots, p.Width())}
	iq, q, out := some(tensor.BF16, x.rows, index.Heads*index.Dim), some(tensor.BF16, x.rows, p.Heads*p.HeadDim), c.Mat(tensor.BF16, x.rows, p.Heads*p.HeadDim)
	n, decode, ctx := index.Positions(), len(x.decode) > 0, seqs[0].past+seqs[0].rows
	chosen, pitch := c.Mat(tensor.I32, x.rows, index.Width()), (ctx/index.Block+4)&^3
	items, all := ListItems(len(x.decode), n), DecodeItems(len(x.decode), ctx)
	scratch := c.Alloc(max(BlocksScratch(x.rows, pitch, index), ListsScratch(x.rows, items, n, p), DecodeScratch(all, p)))
	measure := func(build func(l *launch.List)) float64 {
		const times = 20
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
			SelectBlocks(l, c.Info(), false, chosen, iq, keys, x.table, Rows{Decode: decode, Count: x.rows}, pitch, scratch, index)
		})
		sparse := measure(func(l *launch.List) {
			Lists(l, c.Info(), out, q, cache, chosen, x.table, Rows{Decode: decode, Count: x.rows, Least: n}, items, scratch, p, elem.Near{})
		})
		whole := p
		whole.Lists = 0
		dense := measure(func(l *launch.List) {
			if decode {
				Decode(l, c.Info(), out, q, cache, launch.Mat{}, x.table, x.rows, all, scratch, whole)
			} else {
				Prefill(l, c.Info(), out, q, cache, launch.Mat{}, x.prefill, x.table, 0, whole)
			}
		})
		b.ReportMetric(choose, "us-select")
		if decode {
			read := index.Block
			if index.Local > 0 {
				read = 1
			}
			b.ReportMetric(float64(x.rows*ctx/read*index.Dim)/choose/1000, "GB/s-select")
		}
		b.ReportMetric(sparse, "us-lists")
		b.ReportMetric(dense, "us-dense")
	}
}
