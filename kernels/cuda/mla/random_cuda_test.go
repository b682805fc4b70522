//go:build cuda

package mla

import (
	"math/rand/v2"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/tensor"
)

// Batches of random shapes.
func TestRandomBatches(t *testing.T) {
	if testing.Short() {
		t.Skip("seconds on the emulator")
	}
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(78, 1))
	for i := range 3 {
		p := lite
		p.Heads = 1
		p.BlockTokens = []int{16, 64, 1, 100}[rng.IntN(4)]
		var seqs []seq
		for range 1 + rng.IntN(3) {
			switch rng.IntN(3) {
			case 0:
				seqs = append(seqs, seq{past: rng.IntN(300), rows: 1, decode: true})
			default:
				seqs = append(seqs, seq{past: rng.IntN(2) * rng.IntN(300), rows: 1 + rng.IntN(150)})
			}
		}
		dt := []tensor.DType{tensor.BF16, tensor.F8E4M3, tensor.I8}[rng.IntN(3)]
		b := newProblem(c, uint64(i), p, tensor.BF16, dt, tensor.BF16, seqs)
		want := b.want()
		t.Log(i, seqs, dt, p.BlockTokens)
		cols := p.V
		if len(b.prefill) > 0 {
			for _, gpu := range gpus(c) {
				got := b.runPrefill(gpu, tensor.F32, 128*(1+rng.IntN(3)))
				for _, s := range b.prefill {
					compare(t, "prefill", got[s.Row*cols:(s.Row+s.Len)*cols], want[s.Row*cols:(s.Row+s.Len)*cols], epsExpanded)
				}
			}
		}
		if len(b.decode) > 0 {
			got := b.runDecode(tensor.F32)
			for _, s := range b.decode {
				compare(t, "decode", got[s.Row*cols:(s.Row+s.Len)*cols], want[s.Row*cols:(s.Row+s.Len)*cols], epsMMA)
			}
		}
	}
}
