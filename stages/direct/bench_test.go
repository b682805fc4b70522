package direct_test

import (
	"fmt"
	"testing"

	"krater/kernels/device"
	"krater/stages"
	"krater/stages/load"
)

// benchLimits fit eight sequences of 512 tokens.
var benchLimits = stages.Limits{Tokens: 512, Seqs: 8, Blocks: 256, BlockTokens: 16}

// table is the block table of sequence i.
func table(i int) []int32 {
	blocks := make([]int32, 32)
	for j := range blocks {
		blocks[j] = int32(32*i + j)
	}
	return blocks
}

// BenchmarkDecode is a step of krater-tiny at position 200, BF16 cache.
func BenchmarkDecode(b *testing.B) {
	for _, threads := range []int{1, 2} {
		for _, n := range []int{1, 8} {
			b.Run(fmt.Sprintf("threads=%d/batch=%d", threads, n), func(b *testing.B) {
				m := open(b, processor(b, threads), tiny, "config.json", load.Options{Limits: benchLimits})
				batch := &stages.Step{}
				for i := range n {
					batch.Tokens = append(batch.Tokens, int32(300+i))
					batch.Spans = append(batch.Spans, stages.Span{Seq: uint64(i), Decode: true, Want: true,
						Span: device.Span{Row: i, Len: 1, Pos: 200, Blocks: table(i)}})
				}
				run(b, m, batch, func(step int) {
					// Other tokens reach other experts.
					for i := range batch.Tokens {
						batch.Tokens[i] = int32((300 + 37*i + 101*step) % 8192)
					}
				})
			})
		}
	}
}

// BenchmarkPrefill is a prompt of krater-tiny in one batch.
func BenchmarkPrefill(b *testing.B) {
	for _, threads := range []int{1, 2} {
		for _, n := range []int{32, 200, 512} {
			b.Run(fmt.Sprintf("threads=%d/tokens=%d", threads, n), func(b *testing.B) {
				m := open(b, processor(b, threads), tiny, "config.json", load.Options{Limits: benchLimits})
				batch := &stages.Step{Spans: []stages.Span{{Want: true, Span: device.Span{Len: n, Blocks: table(0)}}}}
				for i := range n {
					batch.Tokens = append(batch.Tokens, int32((300+37*i)%8192))
				}
				run(b, m, batch, func(int) {})
			})
		}
	}
}

// run steps a batch b.N times and reports tokens a second.
func run(b *testing.B, m *opened, batch *stages.Step, next func(step int)) {
	b.Helper()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		next(i)
		if err := m.model.Step(batch, nil, nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(batch.Tokens))*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
}
