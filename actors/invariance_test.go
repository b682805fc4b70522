package actors

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"krater/actors/engine"
	"krater/stages"
)

// TestAnswersDoNotDependOnTheShape: the same requests, greedy and drawn, give
// the same ids bit for bit, with the same log-probabilities, however the model
// is cut, the experts are divided, prompts are chunked and whatever other requests
// are served. Logits that differed in one bit would show in a draw sooner or later,
// and in the log-probabilities at once.
func TestAnswersDoNotDependOnTheShape(t *testing.T) {
	g := lite(t)
	ask := func(seed uint64, temperature float64) *engine.Request {
		p := g.Prompts[seed%3]
		req := greedy(p.IDs, 20)
		req.Logprobs = 2
		req.Sampling.Temperature, req.Sampling.Seed = temperature, &seed
		return req
	}
	var want [8][]engine.Token
	for _, c := range []struct {
		groups, pools, depth, chunk int
		inline                      bool
	}{
		{1, 1, 1, 64, true}, {1, 1, 1, 1, false}, {1, 2, 2, 7, false}, {1, 3, 4, 64, false}, {2, 1, 2, 7, true}, {2, 2, 1, 64, false},
		{2, 3, 3, 1, false}, {3, 1, 4, 7, false}, {3, 2, 3, 64, true}, {3, 3, 2, 1, false},
	} {
		for _, together := range []int{1, 8} {
			if testing.Short() && together == 1 && want[0] != nil {
				continue
			}
			t.Run(fmt.Sprintf("%+v/together%d", c, together), func(t *testing.T) {
				o := setup{dir: golden("deepseek_v2_lite"), groups: c.groups, pools: c.pools, depth: c.depth, chunk: c.chunk, share: 16,
					limits: stages.Limits{Tokens: 80, Seqs: together, Blocks: 160, BlockTokens: 8}}
				if c.inline {
					o.inline = 1 << 40
				}
				gw := newRig(t, o).gateway(t)
				var open []engine.Stream
				for i := range want {
					st, err := gw.Submit(context.Background(), ask(uint64(i), float64(i%2)))
					if err != nil {
						t.Fatal(err)
					}
					open = append(open, st)
				}
				for i, st := range open {
					got := tokens(t, st)
					if want[i] == nil {
						want[i] = got
					}
					if !slices.EqualFunc(got, want[i], sameToken) {
						t.Errorf("request %d: %v, want %v", i, got, want[i])
					}
				}
			})
		}
	}
	greedy0, drawn := 0, 0
	for i := range want {
		for _, tok := range want[i] {
			if tok.ID != tok.Top[0].ID {
				drawn++
			} else if i%2 == 0 {
				greedy0++
			}
		}
	}
	if greedy0 != 4*20 || drawn < 20 {
		t.Errorf("%d greedy tokens, %d tokens drawn against the odds", greedy0, drawn)
	}
}

// tokens reads a whole answer.
func tokens(t *testing.T, st engine.Stream) (all []engine.Token) {
	t.Helper()
	events, err := everything(st)
	if err != nil {
		t.Fatal(err)
	}
	if _, last := ending(t, events); last.Finish != engine.FinishLength {
		t.Fatalf("ended with %+v", last)
	}
	for _, e := range events {
		all = append(all, e.Tokens...)
	}
	return all
}

func sameToken(a, b engine.Token) bool {
	return a.ID == b.ID && a.Logprob == b.Logprob && slices.EqualFunc(a.Top, b.Top, func(x, y engine.TokenProb) bool {
		return x.ID == y.ID && x.Logprob == y.Logprob
	})
}
