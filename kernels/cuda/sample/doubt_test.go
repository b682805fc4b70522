//go:build cuda

package sample

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	host "krater/stages/sample"
)

// alike has kinds of rows that bins cannot separate, so that the row itself is searched: all
// tokens equal, two values, neighbouring values below one that is far above.
func alike(r *rand.Rand, kind, vocab int) []float32 {
	x := make([]float32, vocab)
	for i := range x {
		switch kind % 3 {
		case 1:
			x[i] = float32(r.IntN(2))
		case 2:
			x[i] = math.Float32frombits(0x3f800000 + uint32(r.IntN(5000)))
		}
	}
	if kind%3 == 2 {
		x[vocab/2] = 9
	}
	return x
}

// TestAlike: rows in which more tokens are in doubt than the list can hold.
func TestAlike(t *testing.T) {
	c := cudatest.Open(t)
	const vocab = 9000
	rng := rand.New(rand.NewPCG(7, 1))
	b := batch{vocab: vocab}
	var want []int32
	for i := range 12 {
		p := host.Params{Temperature: 2, TopP: 1, RepetitionPenalty: 1, Logprobs: -1, Seed: uint64(i)}
		if i/3%2 == 0 {
			p.TopP = 0.7
		}
		if i/3 > 0 {
			p.TopK = 4000 + i
		}
		row := alike(rng, i, vocab)
		want = append(want, b.ask(t, row, p))
	}
	if ids, _ := b.run(c, 0, 0); !slices.Equal(ids, want) {
		t.Errorf("%v, want %v", ids, want)
	}
}

// TestAlone: a row's token is the same whatever other rows there are (these determine how many
// blocks share it), and in every run.
func TestAlone(t *testing.T) {
	c := cudatest.Open(t)
	const vocab = 5000 // five blocks alone
	rng := rand.New(rand.NewPCG(8, 1))
	one := batch{vocab: vocab, logits: randomRow(rng, 0, vocab)}
	one.params = []host.Params{{Temperature: 1.2, TopP: 0.9, TopK: 3000, MinP: 1e-4, Seed: 5, Logprobs: -1}}
	many := batch{vocab: vocab, logits: slices.Clone(one.logits), params: slices.Clone(one.params)}
	for i := 1; i < 3; i++ {
		many.logits, many.params = append(many.logits, randomRow(rng, i, vocab)...), append(many.params, randomParams(rng, vocab))
	}
	tall := batch{vocab: 2049} // fewer blocks per row if there are many rows
	for i := range 300 {
		tall.logits, tall.params = append(tall.logits, one.logits[:2049]...), append(tall.params, one.params[0])
		tall.params[i].TopK = 1000
	}
	few := batch{vocab: 2049, logits: tall.logits[:2049], params: tall.params[:1]}
	for n := range uint64(20) {
		alone, _ := one.run(c, n%4, 0)
		beside, _ := many.run(c, n%4, 0)
		if alone[0] != beside[0] {
			t.Errorf("token %d: alone %d, beside others %d", n%4, alone[0], beside[0])
		}
	}
	alone, _ := few.run(c, 0, 0)
	if beside, _ := tall.run(c, 0, 0); slices.Max(beside) != alone[0] || slices.Min(beside) != alone[0] {
		t.Errorf("alone %d, 300 times %v", alone[0], beside)
	}
}

// TestLarge: a vocabulary of 200,000, few rows.
func TestLarge(t *testing.T) {
	if testing.Short() {
		t.Skip("slow on an emulated GPU")
	}
	c := cudatest.Open(t)
	const vocab = 200_003
	rng := rand.New(rand.NewPCG(9, 1))
	b := batch{vocab: vocab}
	var want []int32
	for i, p := range []host.Params{{TopP: 0.95, Temperature: 0.8}, {TopP: 1, TopK: 40, Temperature: 1}, {TopP: 0.5, TopK: 100_000, Temperature: 1.1}} {
		p.RepetitionPenalty, p.Logprobs, p.Seed = 1, -1, uint64(i)
		row := randomRow(rng, i, vocab)
		want = append(want, b.ask(t, row, p))
	}
	if ids, _ := b.run(c, 0, 1); !slices.Equal(ids, want) {
		t.Errorf("%v, want %v", ids, want)
	}
}
