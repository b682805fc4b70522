package dispatch

import (
	"math/rand/v2"
	"testing"
)

// BenchmarkDecide is a step of 94 layers of 128 experts, 60 % of which fit: what the
// host does for decisions and accounts.
func BenchmarkDecide(b *testing.B) {
	setup := &Setup{Experts: 128, Bytes: 1, Budget: 94 * 128 * 6 / 10}
	for l := range int32(94) {
		setup.Layers = append(setup.Layers, l)
	}
	for _, s := range everyone(b) {
		x, err := Settle(s, setup)
		if err != nil {
			b.Fatal(err)
		}
		for _, phase := range []Phase{Prefill, Decode} {
			b.Run(s.Name()+"/"+phase.String(), func(b *testing.B) {
				r := rand.New(rand.NewPCG(1, 2))
				residency := NewResidency()
				residency.Add(&x.Start)
				var d Decision
				in := &Step{Setup: setup, Start: &x.Start, Phase: phase, Residency: residency}
				for b.Loop() {
					for i := range setup.Layers {
						n := 8
						if phase == Prefill {
							n = 1000
						}
						in.Index, in.Work = i, in.Work[:0]
						for _, e := range routing(r, setup.Experts, n) {
							in.Work = append(in.Work, Rows{e, 1})
						}
						x.Decide(&d, in)
						residency.Apply(&d, in)
					}
				}
			})
		}
	}
}
