package actors

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/actors/msg"
	"krater/stages"
	"krater/stages/compare"
)

// small are limits that let one request run at a time, or a few.
func small(seqs int) stages.Limits {
	return stages.Limits{Tokens: 128, Seqs: seqs, Blocks: 16 * seqs, BlockTokens: 8}
}

func lite(t *testing.T) *compare.Golden {
	t.Helper()
	g, err := compare.ReadGolden(golden("deepseek_v2_lite"))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// watch reports to the test how many batches are free each time that the
// schedule actor gets a raw step.
func watchFree(free *atomic.Int64) func(name string, n node) node {
	return func(name string, n node) node {
		s, ok := n.(*scheduleNode)
		if !ok {
			return n
		}
		return hook{n, func(_ *turn, m any) {
			if _, ok := m.(*msg.Raw); ok {
				free.Store(int64(len(s.credits)))
			}
		}}
	}
}

// settle waits until every batch has come back; a lost one takes a few messages
// after its requests have failed.
func settle(t *testing.T, r *rig, free *atomic.Int64) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		r.Step(&stages.Step{}, nil, nil)
		if free.Load() == int64(r.opt.Blueprint.MicroBatches) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d batches are free", free.Load(), r.opt.Blueprint.MicroBatches)
		}
	}
}

// together runs every prompt of the golden as a request and returns how many
// ended well and how many failed. Those that ended well have the golden's ids.
func together(t *testing.T, gw *Gateway, g *compare.Golden) (done, failed int) {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, p := range g.Prompts {
		wg.Add(1)
		go func() {
			defer wg.Done()
			st, err := gw.Submit(context.Background(), greedy(p.IDs, len(p.Greedy)))
			if err != nil {
				t.Error(err)
				return
			}
			events, err := everything(st)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
				return
			}
			ids, last := ending(t, events)
			switch {
			case last.Kind == engine.Done && slices.Equal(ids, p.Greedy):
				done++
			case last.Kind == engine.Failed && last.Err.Kind == engine.Internal && !strings.Contains(last.Err.Message, "injected"):
				failed++
				if n := last.Usage.Completion; n < len(ids) || last.Usage.Prompt != len(p.IDs) || !slices.Equal(ids, p.Greedy[:len(ids)]) {
					t.Errorf("failed with usage %+v after %v", last.Usage, ids)
				}
			default:
				t.Errorf("%s: %v, %+v", p.Name, ids, last)
			}
		}()
	}
	wg.Wait()
	return done, failed
}

// everything reads a stream to its end.
func everything(st engine.Stream) (events []engine.Event, err error) {
	for {
		e, err := st.Next(context.Background())
		if err != nil {
			if len(events) > 0 && errors.Is(err, io.EOF) {
				return events, nil
			}
			return events, err
		}
		events = append(events, e)
	}
}

// TestFailingActor lets each actor fail once, with its first, a middle and a
// later batch message: the requests of that batch fail, others do not notice,
// everything comes back and the actor works again.
func TestFailingActor(t *testing.T) {
	g := lite(t)
	for _, name := range []string{
		"embed", "group0", "group1", "link1", "split0", "split1", "pool0", "pool1", "merge0", "merge1", "head", "sample",
	} {
		for _, nth := range []int64{2, 1, 9} {
			if testing.Short() && nth != 2 {
				continue
			}
			t.Run(fmt.Sprintf("%s/message%d", name, nth), func(t *testing.T) {
				var free, seen atomic.Int64
				watch := watchFree(&free)
				r := newRig(t, setup{dir: golden("deepseek_v2_lite"), groups: 2, pools: 2, chunk: 16, share: 16, limits: small(3),
					wrap: func(actor string, n node) node {
						if actor != name {
							return watch(actor, n)
						}
						return hook{n, func(_ *turn, m any) {
							if _, ok := m.(msg.Carrier); ok && seen.Add(1) == nth {
								panic("injected")
							}
						}}
					}})
				gw := r.gateway(t)
				done, failed := together(t, gw, g)
				if failed == 0 || done+failed != len(g.Prompts) {
					t.Errorf("%d done, %d failed of %d", done, failed, len(g.Prompts))
				}
				settle(t, r, &free)
				rest(t, r, gw)
				if done, failed := together(t, gw, g); done != len(g.Prompts) || failed != 0 {
					t.Errorf("afterwards %d done, %d failed", done, failed)
				}
				rest(t, r, gw)
				if n := gw.Stats().Finished["error"]; n != uint64(len(g.Prompts)-done) {
					t.Errorf("%d counted as errors, want %d", n, failed)
				}
			})
		}
	}
}

// TestFailingOperator lets operators panic in the midst of a node's work.
func TestFailingOperator(t *testing.T) {
	g := lite(t)
	for _, c := range []struct {
		op   string
		call int
	}{{"gather", 1}, {"gather", 2}, {"matmul", 1}, {"matmul", 30}, {"experts", 1}, {"experts", 6}, {"ffn", 1}, {"ffn", 7}, {"sum", 1}, {"sum", 5}} {
		t.Run(fmt.Sprintf("%s/call%d", c.op, c.call), func(t *testing.T) {
			var free atomic.Int64
			f := &faults{}
			r := newRig(t, setup{dir: golden("deepseek_v2_lite"), groups: 2, pools: 2, chunk: 16, share: 16, limits: small(3),
				faults: f, wrap: watchFree(&free)})
			gw := r.gateway(t)
			f.arm(func(op string, call int) bool { return op == c.op && call == c.call })
			if done, failed := together(t, gw, g); failed == 0 || done+failed != len(g.Prompts) {
				t.Errorf("%d done, %d failed of %d", done, failed, len(g.Prompts))
			}
			settle(t, r, &free)
			f.arm(nil)
			if done, failed := together(t, gw, g); done != len(g.Prompts) || failed != 0 {
				t.Errorf("afterwards %d done, %d failed", done, failed)
			}
			rest(t, r, gw)
		})
	}
}

// TestFailingRawStep: a step of a comparison is answered with the failure.
func TestFailingRawStep(t *testing.T) {
	var free atomic.Int64
	f := &faults{}
	r := newRig(t, setup{dir: golden("deepseek_v2_lite"), groups: 2, pools: 2, faults: f, wrap: watchFree(&free)})
	b := &stages.Step{Tokens: []int32{5}, Spans: []stages.Span{{Want: true}}}
	b.Spans[0].Len, b.Spans[0].Blocks = 1, []int32{0}
	f.arm(func(op string, call int) bool { return op == "experts" })
	if err := r.Step(b, nil, nil); err == nil || !strings.Contains(err.Error(), "injected") {
		t.Fatalf("got %v", err)
	}
	f.arm(nil)
	settle(t, r, &free)
	read := errors.New("read")
	if err := r.Step(b, nil, func(*stages.State) error { return read }); !errors.Is(err, read) {
		t.Fatalf("afterwards %v", err)
	}
	if err := r.Step(b, nil, func(*stages.State) error { panic("injected") }); err == nil || !strings.Contains(err.Error(), "injected") {
		t.Fatalf("a panicking reader: %v", err)
	}
	settle(t, r, &free)
}

// TestNaN: one sequence of a batch has unusable logits; the others go on.
func TestNaN(t *testing.T) {
	g := lite(t)
	var once atomic.Bool
	var gate atomic.Pointer[Gateway]
	r := newRig(t, setup{dir: golden("deepseek_v2_lite"), limits: small(3), wrap: func(actor string, n node) node {
		if actor != "sample" {
			return n
		}
		return hook{n, func(_ *turn, m any) {
			for end := time.Now().Add(10 * time.Second); !once.Load() && time.Now().Before(end); time.Sleep(time.Millisecond) {
				if s := gate.Load().Stats(); s.Running+s.Waiting == 3 {
					break // the first does not end before the last has come
				}
			}
			if b := m.(*msg.Batch); len(b.Rows) == 3 && !once.Swap(true) {
				b.State.LogitRow(1)[7] = float32(math.NaN())
			}
		}}
	}})
	gw := r.gateway(t)
	gate.Store(gw)
	if done, failed := together(t, gw, g); done != 2 || failed != 1 {
		t.Fatalf("%d done, %d failed", done, failed)
	}
	rest(t, r, gw)
}

// TestGivingUp: a fault that comes back with every batch ends the pipeline: with
// the failure after the last allowed restart every open request fails.
func TestGivingUp(t *testing.T) {
	for _, name := range []string{"embed", "group0", "split0", "pool0", "merge0", "head", "sample"} {
		t.Run(name, func(t *testing.T) {
			var told atomic.Int64
			r := newRig(t, setup{dir: golden("deepseek_v2_lite"), limits: small(1), wrap: func(actor string, n node) node {
				return hook{n, func(_ *turn, m any) {
					if _, ok := m.(msg.Carrier); ok && actor == name {
						panic("injected")
					}
					if d, ok := m.(*msg.Drain); ok && d.Cancel {
						told.Add(1)
					}
				}}
			}})
			gw := r.gateway(t)
			var open []engine.Stream
			for range restartsMax + 5 {
				st, err := gw.Submit(context.Background(), greedy([]int32{5}, 4))
				if err == nil {
					open = append(open, st)
				}
			}
			for i, st := range open {
				events, err := everything(st)
				if err != nil {
					t.Fatal(err)
				}
				if _, last := ending(t, events); last.Kind != engine.Failed || last.Err.Kind != engine.Internal {
					t.Errorf("request %d ended with %+v", i, last)
				}
			}
			if len(open) <= restartsMax {
				t.Errorf("%d requests were accepted", len(open))
			}
			for <-r.Failed(); told.Load() == 0; { // what is left is cancelled
				runtime.Gosched()
			}
			dead(t, r, gw)
		})
	}
}

// dead checks a pipeline that has failed for good.
func dead(t *testing.T, r *rig, gw *Gateway) {
	t.Helper()
	<-r.Failed()
	if !errors.Is(r.Err(), errFatal) {
		t.Errorf("failed with %v", r.Err())
	}
	var e *engine.Error
	if _, err := gw.Submit(context.Background(), greedy([]int32{5}, 4)); !errors.As(err, &e) || e.Kind != engine.Unavailable || strings.Contains(e.Message, "injected") {
		t.Errorf("Submit: %v", err)
	}
	if err := gw.Ready(); !errors.As(err, &e) || e.Kind != engine.Unavailable {
		t.Errorf("Ready: %v", err)
	}
	if err := r.Step(&stages.Step{}, nil, nil); err == nil {
		t.Error("a step was answered")
	}
	if err := r.Drain(context.Background()); !errors.Is(err, errFatal) {
		t.Errorf("Drain: %v", err)
	}
	for range 2 {
		if err := r.Close(); !errors.Is(err, errFatal) {
			t.Errorf("Close: %v", err)
		}
	}
	if n := gw.Stats().Finished["error"]; n == 0 {
		t.Error("no request counts as an error")
	}
}

// TestFailingSchedule: the books cannot be trusted after a panic, so the first
// one ends the pipeline.
func TestFailingSchedule(t *testing.T) {
	var fail atomic.Bool
	r := newRig(t, setup{dir: golden("deepseek_v2_lite"), limits: small(1), wrap: func(actor string, n node) node {
		return hook{n, func(_ *turn, m any) {
			if actor == "schedule" && fail.Load() {
				panic("injected")
			}
		}}
	}})
	gw := r.gateway(t)
	var open []engine.Stream
	for range 3 {
		st, err := gw.Submit(context.Background(), greedy([]int32{5}, 24))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, st)
	}
	fail.Store(true)
	for _, st := range open {
		events, err := everything(st)
		if err != nil {
			t.Fatal(err)
		}
		// The first may have made it in time.
		if _, last := ending(t, events); last.Kind != engine.Failed && st != open[0] {
			t.Errorf("ended with %+v", last)
		}
	}
	dead(t, r, gw)
}
