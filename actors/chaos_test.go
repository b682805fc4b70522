package actors

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"krater/actors/engine"
	"krater/actors/msg"
	"krater/actors/trace"
	"krater/scheduler"
	"krater/stages"
	"krater/stages/compare"
	"krater/stages/sample"
)

// TestChaos runs requests through simulated pipelines in which messages are
// handled in a random order while operators and nodes panic, logits turn to NaN,
// and clients come and go. Whatever happens, every request has one end, what
// ended well has the golden's ids, and in the end everything is back.
func TestChaos(t *testing.T) {
	g, err := compare.ReadGolden(golden("deepseek_v2_lite"))
	if err != nil {
		t.Fatal(err)
	}
	seeds := 40
	if testing.Short() {
		seeds = 6
	}
	for _, c := range []struct{ groups, pools, depth int }{{1, 1, 1}, {1, 2, 2}, {2, 2, 2}, {3, 3, 4}} {
		t.Run(fmt.Sprintf("groups%d/pools%d/depth%d", c.groups, c.pools, c.depth), func(t *testing.T) {
			o := setup{dir: golden("deepseek_v2_lite"), groups: c.groups, pools: c.pools, depth: c.depth, chunk: 24, share: 16, faults: &faults{},
				limits: stages.Limits{Tokens: 64, Seqs: 4, Blocks: 24, BlockTokens: 8}}.defaults()
			l := loadModel(t, o)
			var sum chaosCount
			for seed := range seeds {
				sum.add(chaos(t, l, uint64(seed), o, g))
			}
			t.Logf("%+v", sum)
			if sum.done == 0 || sum.failed == 0 || sum.cancelled == 0 || sum.timeout == 0 || sum.nan == 0 {
				t.Errorf("a kind of end did not occur: %+v", sum)
			}
		})
	}
}

// chaosCount counts the ends of requests.
type chaosCount struct{ done, failed, nan, cancelled, timeout, panics int }

func (c *chaosCount) add(d chaosCount) {
	c.done += d.done
	c.failed += d.failed
	c.nan += d.nan
	c.cancelled += d.cancelled
	c.timeout += d.timeout
	c.panics += d.panics
}

func chaos(t *testing.T, l *loaded, seed uint64, o setup, g *compare.Golden) (sum chaosCount) {
	t.Helper()
	var s *sim
	odds := func(n int) bool { return s.rng.IntN(n) == 0 }
	o.wrap = func(name string, n node) node {
		return hook{n, func(_ *turn, m any) {
			b, ok := m.(*msg.Batch)
			if name == "sample" && ok && len(b.Rows) > 0 && odds(60) {
				b.State.LogitRow(s.rng.IntN(len(b.Rows)))[3] = float32(math.NaN())
			}
			if _, ok := m.(msg.Carrier); ok && name != "schedule" && odds(400) {
				panic("injected: " + name)
			}
		}}
	}
	s = newSim(t, l, seed, o)
	defer s.p.halt()
	o.faults.arm(func(op string, _ int) bool { return odds(3000) })
	defer o.faults.arm(nil)
	gw := l.open(t, s.p)
	type request struct {
		engine.Stream
		want   []int32
		cancel bool
	}
	var open []*request
	var late []*deadlineOutput
	for range 12 {
		p := g.Prompts[s.rng.IntN(len(g.Prompts))]
		n := 1 + s.rng.IntN(len(p.Greedy))
		st, err := gw.Submit(context.Background(), greedy(p.IDs, n))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		r := &request{Stream: st, want: p.Greedy[:n]}
		open = append(open, r)
		if odds(4) {
			o := &deadlineOutput{}
			late = append(late, o)
			sampler, err := gw.sampler(greedy(p.IDs, n), p.IDs)
			if err != nil {
				t.Fatal(err)
			}
			s.handle(s.box("schedule"), &msg.Submit{
				Request: scheduler.Request{ID: 1000 + uint64(len(late)), PromptLen: len(p.IDs), MaxNew: n, Deadline: s.clock + 1000*int64(1+s.rng.IntN(300))},
				Prompt:  slices.Clone(p.IDs), Sampler: sampler, Output: o, Reply: make(chan error, 1),
			})
		}
		for range s.rng.IntN(40) {
			s.step()
		}
		if victim := open[s.rng.IntN(len(open))]; odds(6) {
			victim.cancel = true
			victim.Stream.(*answer).cancel()
		}
	}
	if err := s.run(); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	sum.panics = s.failures
	for i, r := range open {
		ids, last := ending(t, drainEvents(t, r))
		switch {
		case last.Kind == engine.Done && last.Finish == engine.FinishLength:
			sum.done++
			if !slices.Equal(ids, r.want) {
				t.Fatalf("seed %d: request %d: %v, want %v", seed, i, ids, r.want)
			}
		case last.Kind == engine.Done && last.Finish == engine.FinishCancelled && r.cancel:
			sum.cancelled++
			if len(ids) > len(r.want) || !slices.Equal(ids, r.want[:len(ids)]) {
				t.Fatalf("seed %d: request %d: %v, want the beginning of %v", seed, i, ids, r.want)
			}
		case last.Kind == engine.Failed && strings.Contains(last.Err.Message, "NaN"):
			sum.nan++
		case last.Kind == engine.Failed && last.Err.Kind == engine.Internal && s.failures > 0:
			sum.failed++
			if strings.Contains(last.Err.Message, "injected") {
				t.Fatalf("the client is told %q", last.Err.Message)
			}
		default:
			t.Fatalf("seed %d: request %d ended with %+v", seed, i, last)
		}
	}
	for i, o := range late {
		if o.ends != 1 {
			t.Fatalf("seed %d: request with deadline %d ended %d times", seed, i, o.ends)
		}
		if o.why == scheduler.Expired {
			sum.timeout++
		}
	}
	return sum
}

// deadlineOutput notes how a request ended.
type deadlineOutput struct {
	why  scheduler.Reason
	ends int
}

func (o *deadlineOutput) Queued()                         {}
func (o *deadlineOutput) Started(int64)                   {}
func (o *deadlineOutput) Token(sample.Result, int64) bool { return false }
func (o *deadlineOutput) Abort(error)                     {}
func (o *deadlineOutput) Ended(why scheduler.Reason, _ error, _ int64) trace.Event {
	o.why = why
	o.ends++
	return trace.Event{}
}
