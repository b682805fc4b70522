package sample

import (
	"math"
	"testing"
)

// TestDistribution draws many times under each filter and compares the counts with the
// probabilities (chi-square at six standard deviations; fixed seeds).
func TestDistribution(t *testing.T) {
	row := []float32{2, 1, 0.5, 3, -1, 0, 2.5, 1.5, -3, 2}
	for _, set := range []func(*Params){
		func(p *Params) { p.Temperature = 1 },
		func(p *Params) { p.Temperature = 2.5 },
		func(p *Params) { p.Temperature = 0.6 },
		func(p *Params) { p.Temperature, p.TopK = 1, 4 },
		func(p *Params) { p.Temperature, p.TopP = 1, 0.8 },
		func(p *Params) { p.Temperature, p.MinP = 1.3, 0.2 },
		func(p *Params) { p.Temperature, p.TopK, p.TopP, p.MinP = 1.2, 7, 0.9, 0.1 },
	} {
		p := off()
		p.Seed = 42
		set(&p)
		dist := (&oracle{p: p}).distribution((&oracle{p: p}).row(row))
		counts := make([]int, len(row))
		const draws = 40_000
		q := mustNew(t, p, nil, len(row))
		for range draws {
			counts[mustNext(t, q, row).ID]++
		}
		chi, free := 0.0, -1.0
		for i, c := range counts {
			want := dist[i] * draws
			if want == 0 {
				if c != 0 {
					t.Errorf("%+v: token %d was filtered out and drawn %d times", p, i, c)
				}
				continue
			}
			chi += (float64(c) - want) * (float64(c) - want) / want
			free++
		}
		if limit := free + 6*math.Sqrt(2*free); chi > limit {
			t.Errorf("%+v: chi-square %.1f over %.1f: %v, want %v", p, chi, limit, counts, dist)
		}
	}
}

// TestSeedsDiffer: other seeds and later tokens give independent draws: the joint counts of
// neighbours are even.
func TestSeedsDiffer(t *testing.T) {
	p := off()
	p.Temperature = 1
	row := make([]float32, 4)
	for name, next := range map[string]func(i uint64) (a, b int32){
		"neighbouring seeds": func(i uint64) (int32, int32) {
			p, o := p, p
			p.Seed, o.Seed = i, i+1
			return mustNext(t, mustNew(t, p, nil, 4), row).ID, mustNext(t, mustNew(t, o, nil, 4), row).ID
		},
		"neighbouring tokens": func(i uint64) (int32, int32) {
			p := p
			p.Seed = i
			q := mustNew(t, p, nil, 4)
			return mustNext(t, q, row).ID, mustNext(t, q, row).ID
		},
	} {
		counts := [16]int{}
		for i := range uint64(16_000) {
			a, b := next(i)
			counts[4*a+b]++
		}
		chi := 0.0
		for _, c := range counts {
			chi += float64((c-1000)*(c-1000)) / 1000
		}
		if chi > 15+6*math.Sqrt(30) {
			t.Errorf("%s: chi-square %.1f of %v", name, chi, counts)
		}
	}
}
