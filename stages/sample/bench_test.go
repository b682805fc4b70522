package sample

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// rows makes logits like a model's: a few good tokens above a normal crowd.
func rows(vocab int) []float32 {
	r := rand.New(rand.NewPCG(1, uint64(vocab)))
	x := make([]float32, vocab)
	for i := range x {
		x[i] = float32(r.NormFloat64() * 2)
	}
	for range 20 {
		x[r.IntN(vocab)] += float32(8 + 4*r.Float64())
	}
	return x
}

func BenchmarkNext(b *testing.B) {
	off := Params{TopP: 1, RepetitionPenalty: 1, Logprobs: -1}
	for _, vocab := range []int{8192, 151936} {
		row := rows(vocab)
		flat := make([]float32, vocab)
		for i := range flat {
			flat[i] = float32(i%977) * 1e-4
		}
		for _, c := range []struct {
			name string
			row  []float32
			set  func(*Params)
		}{
			{"greedy", row, func(*Params) {}},
			{"temperature", row, func(p *Params) { p.Temperature = 1 }},
			{"top_k=50", row, func(p *Params) { p.Temperature, p.TopK = 1, 50 }},
			{"top_p=0.9", row, func(p *Params) { p.Temperature, p.TopP = 1, 0.9 }},
			{"top_p=0.9,flat", flat, func(p *Params) { p.Temperature, p.TopP = 1, 0.9 }},
			{"top_k=50,top_p=0.9", row, func(p *Params) { p.Temperature, p.TopK, p.TopP = 1, 50, 0.9 }},
			{"top_k=half,top_p=0.9,flat", flat, func(p *Params) { p.Temperature, p.TopK, p.TopP = 1, vocab/2, 0.9 }},
			{"penalty", row, func(p *Params) { p.RepetitionPenalty = 1.1 }},
			{"logprobs=5", row, func(p *Params) { p.Logprobs = 5 }},
		} {
			b.Run(fmt.Sprintf("%d/%s", vocab, c.name), func(b *testing.B) {
				p := off
				c.set(&p)
				q, err := New(p, []int32{1, 2, 3}, vocab)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := q.Next(c.row); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
