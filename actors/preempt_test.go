package actors

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"krater/actors/engine"
	"krater/stages"
	"krater/stages/compare"
)

// TestPreemptedAnswers: with memory for little more than one answer, eight at once take blocks from each other,
// and each has the tokens that it has alone. With grouped-query attention they have
// the same bits; MLA computes again in the form for prompts what it has generated.
func TestPreemptedAnswers(t *testing.T) {
	for _, c := range []struct {
		model string
		exact bool
	}{{"qwen2", true}, {"deepseek_v2_lite", false}} {
		t.Run(c.model, func(t *testing.T) {
			g, err := compare.ReadGolden(golden(c.model))
			if err != nil {
				t.Fatal(err)
			}
			const answer = 80
			longest := 0
			for _, p := range g.Prompts {
				longest = max(longest, len(p.IDs)+answer)
			}
			serve := func(blocks int) (all [8][]engine.Token, preemptions uint64) {
				var seen atomic.Uint64
				o := setup{dir: golden(c.model), groups: 2, pools: 2, depth: 2, share: 16, limits: stages.Limits{Tokens: 80, Seqs: 8, Blocks: blocks, BlockTokens: 4}}
				o.wrap = func(name string, n node) node {
					if s, ok := n.(*scheduleNode); ok {
						return hook{n, func(*turn, any) { seen.Store(s.core.Stats().Preemptions) }}
					}
					return n
				}
				gw := newRig(t, o).gateway(t)
				var open []engine.Stream
				for i := range all {
					req := greedy(g.Prompts[i%len(g.Prompts)].IDs, answer)
					req.Logprobs = 2
					st, err := gw.Submit(context.Background(), req)
					if err != nil {
						t.Fatal(err)
					}
					open = append(open, st)
				}
				for i, st := range open {
					all[i] = tokens(t, st)
				}
				return all, seen.Load()
			}
			want, none := serve(1024)
			got, preemptions := serve((longest+3)/4 + 4)
			if none != 0 || preemptions < 2 {
				t.Errorf("%d preemptions, with room %d", preemptions, none)
			}
			same := sameToken
			if !c.exact {
				same = func(a, b engine.Token) bool { return a.ID == b.ID }
			}
			for i := range got {
				if !slices.EqualFunc(got[i], want[i], same) {
					t.Errorf("request %d: %v, want %v", i, got[i], want[i])
				}
			}
		})
	}
}
