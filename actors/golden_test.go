package actors

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"krater/actors/engine"
	"krater/stages"
	"krater/stages/compare"
	"krater/stages/compare/goldens"
	"krater/stages/load"
)

// TestGoldensThroughScheduler submits the golden prompts as requests: chunked
// prefill, decode, several at once and several batches in flight give the
// golden's greedy ids. A golden takes one of the shapes in turn, or all with KRATER_GOLDENS=all. The
// short suite has a third of the goldens.
func TestGoldensThroughScheduler(t *testing.T) {
	turn := 0
	goldens.Each(t, func(t *testing.T, f goldens.Folder) {
		g, err := compare.ReadGolden(f.Dir)
		if err != nil {
			t.Fatal(err)
		}
		shapes := []struct{ groups, pools, chunk, copies int }{
			{1, 1, 1000, 1}, {2, 1, 7, 1}, {3, 2, 1, 3}, {2, 3, 32, 8}, {1, 1, 7, 8},
		}
		if turn++; testing.Short() && turn%6 != 0 && !goldens.Everything() {
			t.Skip("TestGoldensThroughActors has every golden; the scheduler is the same for all")
		}
		for i, c := range shapes {
			if i != turn%len(shapes) && !goldens.Everything() {
				continue
			}
			t.Run(fmt.Sprintf("groups%d/pools%d/chunk%d/copies%d", c.groups, c.pools, c.chunk, c.copies), func(t *testing.T) {
				r := newRig(t, setup{dir: f.Dir, groups: c.groups, pools: c.pools, chunk: c.chunk, share: 16})
				gw := r.gateway(t)
				type result struct {
					prompt compare.Prompt
					ids    []int32
					err    error
				}
				results := make(chan result)
				for range c.copies {
					for _, p := range g.Prompts {
						go func() {
							ids, err := generate(gw, p.IDs, len(p.Greedy))
							results <- result{p, ids, err}
						}()
					}
				}
				for range c.copies * len(g.Prompts) {
					res := <-results
					if res.err != nil {
						t.Error(res.err)
					} else if !slices.Equal(res.ids, res.prompt.Greedy) {
						t.Errorf("%s: %v, want %v", res.prompt.Name, res.ids, res.prompt.Greedy)
					}
				}
				rest(t, r, gw)
			})
		}
	})
}

// TestGoldensOnDevices cuts goldens into ranks on the processor and on simulated devices: the golden's greedy ids, with prompts whose
// chunks follow each other. A golden takes one of the cuts in turn, or all with KRATER_GOLDENS=all. The short suite has a third of them.
func TestGoldensOnDevices(t *testing.T) {
	cuts, turn := []string{"cs", "sc", "cc", "csc", "scs", "ccc", "c", "cscs", "ss", "s", "scsc"}, 0 // c: processor, s: simulated
	goldens.Each(t, func(t *testing.T, f goldens.Folder) {
		g, err := compare.ReadGolden(f.Dir)
		if err != nil {
			t.Fatal(err)
		}
		if turn++; testing.Short() && turn%3 != 0 && !goldens.Everything() {
			t.Skip("other goldens have this cut")
		}
		for i, cut := range cuts {
			if i != turn/3%len(cuts) && !goldens.Everything() {
				continue
			}
			t.Run(cut, func(t *testing.T) {
				o := setup{dir: f.Dir, chunk: 7, share: 16, depth: 2}.defaults()
				l := loadModel(t, o)
				ranks, err := l.spreadOn(t, o, load.Even(len(l.cfg.Layers), len(cut)), func(rank int) bool { return cut[rank] == 's' })
				if err != nil {
					t.Skip(err) // layers that belong together, or too few of them
				}
				gw := l.open(t, l.over(t, o, ranks, nil))
				for _, p := range g.Prompts {
					if ids, err := generate(gw, p.IDs, len(p.Greedy)); err != nil || !slices.Equal(ids, p.Greedy) {
						t.Errorf("%s: %v, %v, want %v", p.Name, ids, err, p.Greedy)
					}
				}
			})
		}
	})
}

// greedy asks for exactly n tokens after ids, with their ids in the events.
func greedy(ids []int32, n int) *engine.Request {
	return &engine.Request{
		ID: "test", Prompt: engine.Prompt{IDs: ids}, MaxTokens: n, IgnoreEOS: true,
		Sampling: engine.Sampling{TopP: 1, RepetitionPenalty: 1},
	}
}

// generate runs one request to its end and returns the ids.
func generate(g *Gateway, ids []int32, n int) ([]int32, error) {
	s, err := g.Submit(context.Background(), greedy(ids, n))
	if err != nil {
		return nil, err
	}
	out, last, err := collect(s)
	if err == nil && last.Kind != engine.Done {
		err = fmt.Errorf("ended with %+v", last)
	}
	return out, err
}

// collect reads a stream to its end.
func collect(s engine.Stream) (ids []int32, last engine.Event, err error) {
	defer s.Close()
	for {
		e, err := s.Next(context.Background())
		if errors.Is(err, io.EOF) {
			return ids, last, nil
		}
		if err != nil {
			return ids, last, err
		}
		for _, tok := range e.Tokens {
			ids = append(ids, tok.ID)
		}
		last = e
	}
}

// rest checks that nothing is left of past requests once the pipeline is idle.
func rest(t *testing.T, r *rig, g *Gateway) {
	t.Helper()
	// A raw step is answered when all batches are back and no request is live; by
	// the second answer the figures of the first are published.
	for range 2 {
		if err := r.Step(&stages.Step{}, nil, nil); !errors.Is(err, stages.ErrBatch) {
			t.Errorf("the pipeline is not idle: %v", err)
		}
	}
	s := g.Stats()
	if s.Running != 0 || s.Waiting != 0 || s.KVBlocksUsed != 0 {
		t.Errorf("left behind: %d running, %d waiting, %d KV blocks", s.Running, s.Waiting, s.KVBlocksUsed)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.outputs) != 0 {
		t.Errorf("%d outputs left", len(r.outputs))
	}
}
