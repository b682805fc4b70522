package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/actors/msg"
	"krater/stages/compare"
)

// ticking is a virtual clock.
type ticking struct{ at time.Duration }

func (c *ticking) Now() time.Duration    { return c.at }
func (c *ticking) Enter(t time.Duration) { c.at = t }

// newVirtual makes a pipeline in virtual time over the golden's model.
func newVirtual(t *testing.T, c Clock, o setup) (*Virtual, *Gateway, *loaded) {
	t.Helper()
	o.dir = golden("deepseek_v2_lite")
	o = o.defaults()
	l := loadModel(t, o)
	v, err := StartVirtual(l.placed(), l.options(t, o), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil && !errors.Is(err, errFatal) {
			t.Error(err)
		}
	})
	return v, l.open(t, v.Pipeline), l
}

// submit hands in every prompt of the golden.
func submit(t *testing.T, gw *Gateway, g *compare.Golden) (open []engine.Stream) {
	t.Helper()
	for _, p := range g.Prompts {
		st, err := gw.Submit(context.Background(), greedy(p.IDs, len(p.Greedy)))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, st)
	}
	return open
}

// TestVirtualTime: an actor's work takes the time it says, those of different actors at
// the same time, and the answers are the golden's.
func TestVirtualTime(t *testing.T) {
	g := lite(t)
	for depth := 1; depth <= 3; depth++ {
		var took [2]time.Duration
		for try := range took {
			clock := &ticking{}
			var busy map[string]time.Duration
			v, gw, _ := newVirtual(t, clock, setup{depth: depth, pools: 2, chunk: 100, share: 100, wrap: func(actor string, n node) node {
				cost := map[string]time.Duration{"group0": 3, "pool0": 5, "pool1": 4, "head": 2}[actor] * time.Millisecond
				return hook{n, func(*turn, any) {
					clock.at += cost
					busy[actor] += cost
				}}
			}})
			busy = map[string]time.Duration{}
			open := submit(t, gw, g)
			if clock.at != 0 {
				t.Fatalf("%v went by before Run", clock.at)
			}
			if err := v.Run(); err != nil {
				t.Fatal(err)
			}
			took[try] = clock.at
			for i, st := range open {
				if ids, _ := ending(t, drainEvents(t, st)); !slices.Equal(ids, g.Prompts[i].Greedy) {
					t.Errorf("depth %d: %v, want %v", depth, ids, g.Prompts[i].Greedy)
				}
			}
			all := busy["group0"] + max(busy["pool0"], busy["pool1"]) + busy["head"]
			if most := max(busy["group0"], busy["pool0"]); took[try] < most || depth == 1 && took[try] < all || depth > 1 && took[try] >= all {
				t.Errorf("depth %d: %v, busy %v", depth, took[try], busy)
			}
			for _, track := range v.Trace().Snapshot(0) {
				for _, e := range track.Events {
					if e.Enqueued > e.Started || e.Started > e.Ended || e.Ended > int64(clock.at) {
						t.Fatalf("%s: %+v", track.Name, e)
					}
				}
			}
		}
		if took[0] != took[1] {
			t.Errorf("depth %d: %v, then %v", depth, took[0], took[1])
		}
	}
}

// TestVirtualFailures: a pool that fails costs the requests of that batch; what was
// submitted afterwards is served, raw steps too; a schedule actor that fails ends all.
func TestVirtualFailures(t *testing.T) {
	g, fail := lite(t), ""
	v, gw, l := newVirtual(t, &ticking{}, setup{depth: 2, wrap: func(actor string, n node) node {
		return hook{n, func(_ *turn, m any) {
			if _, ok := m.(*msg.Drain); actor == fail && !ok {
				fail = ""
				panic("deliberate")
			}
		}}
	}})
	fail = "pool0"
	failed := 0
	open := submit(t, gw, g)
	if err := v.Run(); err != nil {
		t.Fatal(err)
	}
	for i, st := range open {
		switch ids, last := ending(t, drainEvents(t, st)); {
		case last.Kind == engine.Failed:
			failed++
		case !slices.Equal(ids, g.Prompts[i].Greedy):
			t.Errorf("%v, want %v", ids, g.Prompts[i].Greedy)
		}
	}
	if failed == 0 || failed == len(open) {
		t.Errorf("%d of %d failed", failed, len(open))
	}
	if r, err := compare.Run(v, l.cfg, g, compare.Weights(l.set), compare.Options{Chunk: 7, Batch: 1}); err != nil || !r.OK() {
		t.Errorf("%+v, %v", r, err)
	}
	open = submit(t, gw, g)
	fail = "schedule"
	if err := v.Run(); !errors.Is(err, errFatal) {
		t.Fatalf("Run = %v", err)
	}
	for _, st := range open {
		if _, last := ending(t, drainEvents(t, st)); last.Kind != engine.Failed {
			t.Errorf("ended with %+v", last)
		}
	}
}

// TestVirtualDeadline: the alarm rings in virtual time.
func TestVirtualDeadline(t *testing.T) {
	clock := &ticking{}
	v, gw, _ := newVirtual(t, clock, setup{wrap: func(actor string, n node) node {
		return hook{n, func(*turn, any) {
			if actor == "group0" {
				clock.at += time.Hour
			}
		}}
	}})
	req := greedy(lite(t).Prompts[0].IDs, 20)
	req.Deadline = time.Now().Add(5 * time.Hour)
	st, err := gw.Submit(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Run(); err != nil {
		t.Fatal(err)
	}
	ids, last := ending(t, drainEvents(t, st))
	if n := len(ids); n == 0 || n > 5 || last.Kind != engine.Done && last.Kind != engine.Failed {
		t.Errorf("%d tokens, then %s", n, fmt.Sprint(last))
	}
}
