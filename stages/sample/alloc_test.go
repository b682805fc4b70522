//go:build !race

package sample

import "testing"

// The race detector makes sync.Pool forget at random.

// TestAllocations: none a token for the ways of choosing that have no history.
func TestAllocations(t *testing.T) {
	row := rows(8192)
	for name, set := range map[string]func(*Params){
		"greedy":      func(*Params) {},
		"temperature": func(p *Params) { p.Temperature = 1 },
		"top_p":       func(p *Params) { p.Temperature, p.TopP = 1, 0.9 },
		"top_k":       func(p *Params) { p.Temperature, p.TopK = 1, 40 },
		"all":         func(p *Params) { p.Temperature, p.TopK, p.TopP, p.MinP = 1, 40, 0.9, 0.05 },
		"bias":        func(p *Params) { p.LogitBias = map[int32]float32{3: 1} },
		"logprob":     func(p *Params) { p.Logprobs = 0 },
	} {
		p := off()
		set(&p)
		q := mustNew(t, p, nil, len(row))
		for range 3 { // the pool's memory grows to its size
			mustNext(t, q, row)
		}
		// The garbage collector empties the pool now and then: below one on average.
		if n := testing.AllocsPerRun(200, func() { mustNext(t, q, row) }); n >= 1 {
			t.Errorf("%s: %v allocations a token", name, n)
		}
	}
}
