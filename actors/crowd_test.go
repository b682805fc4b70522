package actors

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"krater/actors/engine"
	"krater/actors/msg"
	"krater/stages/compare"
)

// TestCrowd is the chaos of TestChaos with real goroutines: clients that come,
// read and leave while actors fail now and then, each less often than the
// supervisor gives up at.
func TestCrowd(t *testing.T) {
	g := lite(t)
	var free atomic.Int64
	var mu sync.Mutex
	failures := map[string]int{}
	watch := watchFree(&free)
	r := newRig(t, setup{dir: golden("deepseek_v2_lite"), groups: 2, pools: 2, depth: 3, chunk: 24, share: 16, limits: small(4), wrap: func(actor string, n node) node {
		n = watch(actor, n)
		if h, ok := n.(hook); ok {
			return h
		}
		return hook{n, func(_ *turn, m any) {
			if _, ok := m.(msg.Carrier); !ok || rand.IntN(150) > 0 {
				return
			}
			mu.Lock()
			failures[actor]++
			fail := failures[actor] < restartsMax
			mu.Unlock()
			if fail {
				panic("injected")
			}
		}}
	}})
	gw := r.gateway(t)
	var wg sync.WaitGroup
	var done, failed, cancelled atomic.Int64
	for range 6 {
		wg.Go(func() {
			for range 12 {
				switch last := visit(t, gw, g); {
				case last.Kind == engine.Failed:
					failed.Add(1)
				case last.Finish == engine.FinishCancelled:
					cancelled.Add(1)
				default:
					done.Add(1)
				}
			}
		})
	}
	wg.Wait()
	settle(t, r, &free)
	rest(t, r, gw)
	if r.Err() != nil || done.Load() == 0 || failed.Load() == 0 || cancelled.Load() == 0 {
		t.Errorf("%d done, %d failed, %d cancelled; %v", done.Load(), failed.Load(), cancelled.Load(), r.Err())
	}
}

// visit runs one request as a client that may lose patience, and returns its
// last event.
func visit(t *testing.T, gw *Gateway, g *compare.Golden) engine.Event {
	p := g.Prompts[rand.IntN(len(g.Prompts))]
	n := 1 + rand.IntN(len(p.Greedy))
	patience := rand.IntN(3 * n)
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	st, err := gw.Submit(ctx, greedy(p.IDs, n))
	if err != nil {
		t.Error(err)
		return engine.Event{}
	}
	var events []engine.Event
	seen := 0
	for {
		e, err := st.Next(context.Background())
		if err != nil {
			break
		}
		events = append(events, e)
		if seen += len(e.Tokens); seen > patience {
			leave()
		}
	}
	ids, last := ending(t, events)
	if !slices.Equal(ids, p.Greedy[:min(len(ids), n)]) || last.Finish == engine.FinishLength && len(ids) != n {
		t.Errorf("%v, want %v of %v; %+v", ids, n, p.Greedy, last)
	}
	return last
}
