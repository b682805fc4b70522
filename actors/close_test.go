package actors

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/stages"
)

// refused checks that a pipeline that is closing or closed takes nothing.
func refused(t *testing.T, r *rig, gw *Gateway) {
	t.Helper()
	var e *engine.Error
	if _, err := gw.Submit(context.Background(), greedy([]int32{5}, 1)); !errors.As(err, &e) || e.Kind != engine.Unavailable {
		t.Errorf("Submit: %v", err)
	}
	if err := gw.Ready(); !errors.As(err, &e) || e.Kind != engine.Unavailable {
		t.Errorf("Ready: %v", err)
	}
}

// TestDrain: what runs finishes, what waits is told that the server goes.
func TestDrain(t *testing.T) {
	g := lite(t)
	p := g.Prompts[1]
	gate := newGate()
	r := newRig(t, setup{dir: golden("deepseek_v2_lite"), limits: small(1), wrap: gate.wrap})
	gw := r.gateway(t)
	var open []engine.Stream
	for range 3 {
		st, err := gw.Submit(context.Background(), greedy(p.IDs, len(p.Greedy)))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, st)
	}
	<-gate.reached
	drained := make(chan error)
	go func() { drained <- r.Drain(context.Background()) }()
	for _, st := range open[1:] {
		events, err := everything(st)
		if err != nil {
			t.Fatal(err)
		}
		if _, last := ending(t, events); last.Kind != engine.Failed || last.Err.Kind != engine.Unavailable {
			t.Errorf("a waiting request ended with %+v", last)
		}
	}
	refused(t, r, gw)
	close(gate.open)
	if err := <-drained; err != nil {
		t.Errorf("Drain: %v", err)
	}
	// After Drain the answer is complete for any reader.
	ids, last := ending(t, drainEvents(t, open[0]))
	if last.Finish != engine.FinishLength || !slices.Equal(ids, p.Greedy) {
		t.Errorf("the running request ended with %+v after %v", last, ids)
	}
	rest(t, r, gw)
	if err := r.Drain(context.Background()); err != nil {
		t.Errorf("second Drain: %v", err)
	}
}

// TestDrainCancels: when the time for it is over, running requests are cancelled.
func TestDrainCancels(t *testing.T) {
	gate := newGate()
	r := newRig(t, setup{dir: golden("deepseek_v2_lite"), limits: small(1), wrap: gate.wrap})
	gw := r.gateway(t)
	st, err := gw.Submit(context.Background(), greedy([]int32{5}, 100))
	if err != nil {
		t.Fatal(err)
	}
	<-gate.reached
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	drained := make(chan error)
	go func() { drained <- r.Drain(ctx) }()
	events, err := everything(st)
	if err != nil {
		t.Fatal(err)
	}
	if _, last := ending(t, events); last.Finish != engine.FinishCancelled {
		t.Errorf("ended with %+v", last)
	}
	close(gate.open)
	if err := <-drained; !errors.Is(err, context.Canceled) {
		t.Errorf("Drain: %v", err)
	}
	rest(t, r, gw)
}

// TestCloseWhileRunning: every open request has its end when Close returns, and
// everything afterwards is answered at once.
func TestCloseWhileRunning(t *testing.T) {
	for range 5 {
		r := newRig(t, setup{dir: golden("deepseek_v2_lite"), groups: 2, pools: 2, limits: small(2)})
		gw := r.gateway(t)
		var open []engine.Stream
		for range 5 {
			st, err := gw.Submit(context.Background(), greedy([]int32{5}, 60))
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, st)
		}
		for { // one answers
			e, err := open[0].Next(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if e.Kind == engine.Tokens {
				break
			}
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := r.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		}
		wg.Wait()
		for i, st := range open {
			_, last := ending(t, drainEvents(t, st))
			if last.Finish != engine.FinishCancelled && last.Finish != engine.FinishLength && (last.Err == nil || last.Err.Kind != engine.Unavailable) {
				t.Errorf("request %d ended with %+v", i, last)
			}
			st.Close()
		}
		refused(t, r, gw)
		if err := r.Step(&stages.Step{}, nil, nil); !errors.Is(err, errClosed) {
			t.Errorf("Step: %v", err)
		}
		if err := r.Drain(context.Background()); err != nil {
			t.Errorf("Drain: %v", err)
		}
		gw.Stats()
	}
}

// TestSubmitDuringClose: a request that comes while the pipeline closes is
// refused or ends; nobody waits for ever.
func TestSubmitDuringClose(t *testing.T) {
	l := loadModel(t, setup{dir: golden("deepseek_v2_lite"), limits: small(2)}.defaults())
	for range 20 {
		o := setup{limits: small(2)}.defaults()
		p, err := Start(l.placed(), l.options(t, o))
		if err != nil {
			t.Fatal(err)
		}
		gw := l.open(t, p)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					st, err := gw.Submit(context.Background(), greedy([]int32{5}, 3))
					if err != nil {
						return
					}
					events, err := everything(st)
					if err != nil {
						t.Error(err)
						return
					}
					ending(t, events)
				}
			})
		}
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		wg.Wait()
	}
}

// TestNothingLeaks: after Close no goroutine and no memory of a pipeline is left.
func TestNothingLeaks(t *testing.T) {
	l := loadModel(t, setup{dir: golden("deepseek_v2_lite"), groups: 2, limits: small(2)}.defaults())
	used := l.dev.Memory().Used
	before := runtime.NumGoroutine()
	for i := range 20 {
		o := setup{groups: 2, pools: 2, depth: 3, limits: small(2)}.defaults()
		if i%4 == 3 { // also when it fails
			o.wrap = func(actor string, n node) node {
				return hook{n, func(*turn, any) {
					if actor == "link1" {
						panic("injected")
					}
				}}
			}
		}
		p, err := Start(l.placed(), l.options(t, o))
		if err != nil {
			t.Fatal(err)
		}
		gw := l.open(t, p)
		ctx, leave := context.WithCancel(context.Background())
		for range restartsMax + 2 {
			st, err := gw.Submit(ctx, greedy([]int32{5}, 3))
			if err != nil {
				continue
			}
			if _, err := everything(st); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := gw.Submit(ctx, greedy([]int32{5}, 100)); err != nil && o.wrap == nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil && o.wrap == nil {
			t.Fatal(err)
		}
		leave()
	}
	// The library's goroutines end on their own soon after.
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(end); {
		runtime.Gosched()
	}
	if now := runtime.NumGoroutine(); now > before {
		buf := make([]byte, 1<<20)
		t.Errorf("%d goroutines, %d before\n%s", now, before, buf[:runtime.Stack(buf, true)])
	}
	if now := l.dev.Memory().Used; now != used {
		t.Errorf("%d bytes on the device, %d before", now, used)
	}
}

// TestSubmitIsDroppedByTheEnd: the schedule actor stops with the request in its
// mailbox; its door does not wait for ever.
func TestSubmitIsDroppedByTheEnd(t *testing.T) {
	for _, failed := range []bool{false, true} {
		g := desk(t)
		p := g.r.last()
		p.halted, p.dead = make(chan struct{}), make(chan struct{})
		p.host.(*deskHost).sent = func(any) {
			p.mu.Lock()
			defer p.mu.Unlock()
			if failed {
				p.failure = errFatal
				close(p.dead)
			} else {
				p.closed = true
				close(p.halted)
			}
		}
		var e *engine.Error
		req := greedy([]int32{5}, 1)
		c, err := g.choices(req, req.Prompt.IDs)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.enqueue(context.Background(), newOutput(g, req, newAnswer(1), 1), req.Prompt.IDs, 1, req, c); !errors.As(err, &e) || e.Kind != engine.Unavailable {
			t.Errorf("failed %v: %v", failed, err)
		}
		if len(p.outputs) != 0 {
			t.Errorf("failed %v: the request is still open", failed)
		}
	}
}

// TestHaltWithAStuckActor: what it leaves open is ended, nothing is freed under
// its feet.
func TestHaltWithAStuckActor(t *testing.T) {
	g := desk(t)
	p := g.r.last()
	p.halted = make(chan struct{})
	p.rows = []*stages.Rows{nil} // closing it would panic
	p.host.(*deskHost).stuck = errors.New("stuck")
	a := newAnswer(3)
	p.outputs[7] = newOutput(g, &engine.Request{}, a, 1)
	if err := p.halt(); err == nil || err.Error() != "stuck" {
		t.Errorf("halt: %v", err)
	}
	if _, last := ending(t, drainEvents(t, a)); last.Err == nil || last.Err.Kind != engine.Unavailable {
		t.Errorf("the open request ended with %+v", last)
	}
	<-p.halted
}
