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

// chaosRun is one seed.
type chaosRun struct {
	t    *testing.T
	seed uint64
	sim  *sim
	gw   *Gateway
	open []*chaosRequest
	late []*deadlineOutput
}

type chaosRequest struct {
	engine.Stream
	want   []int32
	cancel bool
}

// odds is true once in n times.
func (c *chaosRun) odds(n int) bool { return c.sim.rng.IntN(n) == 0 }

func chaos(t *testing.T, l *loaded, seed uint64, o setup, g *compare.Golden) chaosCount {
	t.Helper()
	c := &chaosRun{t: t, seed: seed}
	o.wrap = func(name string, n node) node {
		return hook{n, func(_ *turn, m any) {
			b, ok := m.(*msg.Batch)
			if name == "sample" && ok && len(b.Rows) > 0 && c.odds(60) {
				b.State.LogitRow(c.sim.rng.IntN(len(b.Rows)))[3] = float32(math.NaN())
			}
			if _, ok := m.(msg.Carrier); ok && name != "schedule" && c.odds(400) {
				panic("injected: " + name)
			}
		}}
	}
	c.sim = newSim(t, l, seed, o)
	defer c.sim.p.halt()
	o.faults.arm(func(string, int) bool { return c.odds(3000) })
	defer o.faults.arm(nil)
	c.gw = l.open(t, c.sim.p)
	for range 12 {
		p := g.Prompts[c.sim.rng.IntN(len(g.Prompts))]
		n := 1 + c.sim.rng.IntN(len(p.Greedy))
		c.submit(p, n)
		for range c.sim.rng.IntN(40) {
			c.sim.step()
		}
		if victim := c.open[c.sim.rng.IntN(len(c.open))]; c.odds(6) {
			victim.cancel = true
			victim.Stream.(*answer).cancel()
		}
	}
	if err := c.sim.run(); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	return c.count()
}

// submit asks for n tokens, and now and then for as many with a deadline on the
// simulation's clock.
func (c *chaosRun) submit(p compare.Prompt, n int) {
	c.t.Helper()
	st, err := c.gw.Submit(context.Background(), greedy(p.IDs, n))
	if err != nil {
		c.t.Fatalf("seed %d: %v", c.seed, err)
	}
	c.open = append(c.open, &chaosRequest{Stream: st, want: p.Greedy[:n]})
	if !c.odds(4) {
		return
	}
	o := &deadlineOutput{}
	c.late = append(c.late, o)
	sampler := samplerOf(c.t, c.gw, greedy(p.IDs, n))
	s := c.sim
	s.handle(s.box("schedule"), &msg.Submit{
		Request: scheduler.Request{ID: 1000 + uint64(len(c.late)), PromptLen: len(p.IDs), MaxNew: n, Deadline: s.clock + 1000*int64(1+s.rng.IntN(300))},
		Prompt:  slices.Clone(p.IDs), Sampler: sampler, Output: o, Reply: make(chan error, 1),
	})
}

// count holds every end to what may have happened.
func (c *chaosRun) count() (sum chaosCount) {
	t := c.t
	t.Helper()
	sum.panics = c.sim.failures
	for i, r := range c.open {
		ids, last := ending(t, drainEvents(t, r))
		switch {
		case last.Kind == engine.Done && last.Finish == engine.FinishLength:
			sum.done++
			if !slices.Equal(ids, r.want) {
				t.Fatalf("seed %d: request %d: %v, want %v", c.seed, i, ids, r.want)
			}
		case last.Kind == engine.Done && last.Finish == engine.FinishCancelled && r.cancel:
			sum.cancelled++
			if len(ids) > len(r.want) || !slices.Equal(ids, r.want[:len(ids)]) {
				t.Fatalf("seed %d: request %d: %v, want the beginning of %v", c.seed, i, ids, r.want)
			}
		case last.Kind == engine.Failed && strings.Contains(last.Err.Message, "NaN"):
			sum.nan++
		case last.Kind == engine.Failed && last.Err.Kind == engine.Internal && c.sim.failures > 0:
			sum.failed++
			if strings.Contains(last.Err.Message, "injected") {
				t.Fatalf("the client is told %q", last.Err.Message)
			}
		default:
			t.Fatalf("seed %d: request %d ended with %+v", c.seed, i, last)
		}
	}
	for i, o := range c.late {
		if o.ends != 1 {
			t.Fatalf("seed %d: request with deadline %d ended %d times", c.seed, i, o.ends)
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

func (o *deadlineOutput) Queued(int)                      {}
func (o *deadlineOutput) Started(int64, int)              {}
func (o *deadlineOutput) Prefilled(int)                   {}
func (o *deadlineOutput) Scored(sample.Result)            {}
func (o *deadlineOutput) Token(sample.Result, int64) bool { return false }
func (o *deadlineOutput) Abort(error)                     {}
func (o *deadlineOutput) Ended(why scheduler.Reason, _ error, _ int64) trace.Event {
	o.why = why
	o.ends++
	return trace.Event{}
}
