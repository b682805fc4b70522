package actors

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/scheduler"
	"krater/stages"
	"krater/stages/load"
)

// relay is a row of pipelines over one model: each takes over from the one before.
type relay struct {
	t      testing.TB
	l      *loaded
	o      setup
	ranks  []load.Rank
	change func(*Options)
	p      *Pipeline
}

func newRelay(t testing.TB, o setup, change func(*Options)) *relay {
	o = o.defaults()
	l := loadModel(t, o)
	r := &relay{t: t, l: l, o: o, ranks: l.placed(), change: change}
	r.start(nil)
	t.Cleanup(func() {
		if err := r.p.Close(); err != nil && !errors.Is(err, errFatal) {
			t.Errorf("closing the pipeline: %v", err)
		}
	})
	return r
}

// start starts a pipeline after another, or the first.
func (r *relay) start(before *Pipeline) {
	r.t.Helper()
	opt := r.l.options(r.t, r.o)
	opt.Blueprint.Groups = nil
	if opt.Before = before; r.change != nil {
		r.change(&opt)
	}
	p, err := Start(r.ranks, opt)
	if err != nil {
		r.t.Fatal(err)
	}
	r.p = p
}

// pass suspends the pipeline, lets the next one take over, and returns how many requests that has.
func (r *relay) pass() int {
	r.t.Helper()
	list := r.p.Suspend()
	if err := r.p.Close(); err != nil {
		r.t.Error(err)
	}
	r.start(r.p)
	r.p.Adopt(list)
	return len(list)
}

// stopAfter has the actor that chooses tokens wait, in its n-th step, until the pipeline is suspended. It
// calls reached then.
func stopAfter(n int, reached func() *requests) func(string, node) node {
	return func(actor string, x node) node {
		if actor != "sample" {
			return x
		}
		return hook{x, func(*turn, any) {
			if n--; n != 0 {
				return
			}
			r := reached()
			for suspended := false; !suspended; time.Sleep(50 * time.Microsecond) {
				r.mu.Lock()
				suspended = r.suspended
				r.mu.Unlock()
			}
		}}
	}
}

// told is all that a client sees of an answer, however it is cut into events.
type told struct {
	Text   string
	Tokens []engine.Token
	Scored []string
	Last   engine.Event
}

// hear reads an answer.
func hear(t testing.TB, st engine.Stream) (x told) {
	t.Helper()
	defer st.Close()
	for {
		e, err := st.Next(context.Background())
		if err != nil {
			return x
		}
		x.Text += e.Text
		if e.Kind == engine.Scored {
			for _, tok := range e.Tokens {
				x.Scored = append(x.Scored, fmt.Sprint(tok)) // the first is not a number
			}
		} else {
			x.Tokens = append(x.Tokens, e.Tokens...)
		}
		e.Usage.Cached = 0
		e.Position, e.Text, e.Tokens = 0, "", nil
		x.Last = e
	}
}

// kinds are requests of all kinds, more than run at a time.
func kinds(text bool) (list []*engine.Request) {
	for i := range 9 {
		ids := make([]int32, 9+11*i)
		for j := range ids {
			ids[j] = int32(100 + (j*j+3*(i%3)*j)%150)
		}
		req := greedy(append(ids, int32(50+i)), 30)
		seed := uint64(i)
		s := &req.Sampling
		s.Seed, s.Temperature, req.Logprobs = &seed, float64(i%3)/2, -1
		switch i % 6 {
		case 1:
			s.RepetitionPenalty, s.PresencePenalty, s.FrequencyPenalty = 1.1, 0.3, 0.2
		case 2:
			req.Logprobs, s.TopK, s.TopP, s.MinP = 3, 50, 0.9, 0.01
		case 3:
			scores := 2
			req.PromptLogprobs, req.MaxTokens = &scores, 12
		case 4:
			req.Stop, req.MinTokens, s.LogitBias = []string{"zq", "e"}, 5, map[int32]float32{70: 2}
		case 5:
			if text {
				req.IgnoreEOS, req.Format = false, &engine.Format{Kind: engine.Regexp, Source: []byte("[a-f]{3,30}[0-9]+ (yes|no){20}")}
			}
		}
		list = append(list, req)
	}
	return list
}

// all submits requests and reads their answers at the same time.
func all(t testing.TB, gw *Gateway, list []*engine.Request) []told {
	t.Helper()
	answers, open := make([]told, len(list)), make([]engine.Stream, len(list))
	for i, req := range list {
		own := *req
		var err error
		if open[i], err = gw.Submit(context.Background(), &own); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for i, st := range open {
		wg.Go(func() { answers[i] = hear(t, st) })
	}
	wg.Wait()
	return answers
}

// TestSuspend: answers of all kinds are the same if other pipelines take over in the middle of them.
func TestSuspend(t *testing.T) {
	for _, c := range []struct {
		dir  string
		seqs int
	}{{"", 5}, {"deepseek_v2_lite", 5}, {"qwen3_next", 4}} {
		name := c.dir
		o := setup{limits: stages.Limits{Tokens: 64, Seqs: c.seqs, LogitRows: 64, Blocks: 60, BlockTokens: 8}, chunk: 16, share: 16, groups: 2, depth: 2, inline: time.Second}
		if c.dir != "" {
			o.dir = golden(c.dir)
		}
		t.Run(name, func(t *testing.T) {
			list := kinds(c.dir == "")
			reached := make(chan struct{}, 4)
			var gw *Gateway
			steps := 0
			r := newRelay(t, o, func(o *Options) {
				if steps > 0 { // the second stops at once
					o.wrap = stopAfter(steps, func() *requests { reached <- struct{}{}; return gw.r })
				}
			})
			gw = r.l.open(t, r.p)
			want := all(t, gw, list)
			before := gw.Stats()
			taken := 0
			steps = 20
			r.pass()
			go func() {
				for _, steps = range []int{1, 30, 0} {
					<-reached
					taken += r.pass()
				}
				close(reached)
			}()
			got := all(t, gw, list)
			<-reached
			for i := range want {
				if want[i].Last.Kind != engine.Done {
					t.Errorf("answer %d ended with %+v", i, want[i].Last)
				}
				if !reflect.DeepEqual(got[i], want[i]) {
					t.Errorf("answer %d of %+v\n is %.300v\nwant %.300v", i, list[i].Sampling, fmt.Sprint(got[i]), fmt.Sprint(want[i]))
				}
			}
			if taken <= c.seqs {
				t.Errorf("%d requests were taken over, want also some that wait", taken)
			}
			rest(t, &rig{Pipeline: r.p, loaded: r.l}, gw)
			after := gw.Stats()
			if after.Steps <= before.Steps || after.GeneratedTokens != 2*before.GeneratedTokens || after.TTFT.Count != 2*uint64(len(list)) || after.Links[0].Bytes <= before.Links[0].Bytes {
				t.Errorf("%d steps, %d tokens, %d requests, links %+v; before %d, %d, %d, %+v", after.Steps, after.GeneratedTokens, after.TTFT.Count, after.Links,
					before.Steps, before.GeneratedTokens, before.TTFT.Count, before.Links)
			}
			if n := len(gw.Trace().Roster().Last(1)); n != 1 || gw.Trace() != r.p.Trace() {
				t.Error("the trace does not go on")
			}
		})
	}
}

// TestCancelWhileSuspended: clients that leave meanwhile, and those that come, find the next pipeline.
func TestCancelWhileSuspended(t *testing.T) {
	r := newRelay(t, setup{dir: golden("deepseek_v2_lite"), limits: small(2), queue: 8}, nil)
	gw := r.l.open(t, r.p)
	ctx, leave := context.WithCancel(context.Background())
	left, err := gw.Submit(ctx, greedy([]int32{5}, 100))
	closed, err2 := gw.Submit(context.Background(), greedy([]int32{6}, 100))
	stays, err3 := gw.Submit(context.Background(), greedy([]int32{7}, 20))
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	list := r.p.Suspend()
	if len(list) != 3 {
		t.Errorf("%d requests are suspended", len(list))
	}
	leave()
	closed.Close()
	if err := gw.Ready(); err != nil {
		t.Errorf("not ready at once: %v", err)
	}
	gw.r.mu.Lock()
	gw.r.since -= int64(3 * time.Second)
	gw.r.mu.Unlock()
	var e *engine.Error
	if err := gw.Ready(); !errors.As(err, &e) || e.Kind != engine.Unavailable || e.Lasting {
		t.Errorf("after three seconds: %v", err)
	}
	come := make(chan error)
	for range 6 { // one more than the queue has room for beside the open requests
		go func() {
			_, err := generate(gw, []int32{8}, 3)
			come <- err
		}()
	}
	if err := <-come; !errors.As(err, &e) || e.Kind != engine.Overloaded {
		t.Errorf("one too many: %v", err)
	}
	short, over := context.WithTimeout(context.Background(), time.Millisecond)
	defer over()
	if _, err := gw.Submit(short, greedy([]int32{5}, 1)); !errors.As(err, &e) {
		t.Errorf("one that leaves again: %v", err)
	}
	r.start(r.p)
	r.p.Adopt(list)
	for range 5 {
		if err := <-come; err != nil {
			t.Error(err)
		}
	}
	if _, last, err := collect(left); err != nil || last.Finish != engine.FinishCancelled {
		t.Errorf("the one that left ended with %+v, %v", last, err)
	}
	if ids, last, err := collect(stays); err != nil || len(ids) != 20 || last.Finish != engine.FinishLength {
		t.Errorf("the one that stays ended with %+v, %v", last, err)
	}
	rest(t, &rig{Pipeline: r.p, loaded: r.l}, gw)
}

// TestLostRank: with Replay a lost rank leaves the requests to the next pipeline; without, or if none
// comes, they fail.
func TestLostRank(t *testing.T) {
	cause := errors.New("fell off the bus")
	for _, c := range []string{"replay", "abandon", "close", "fail", "smaller"} {
		var slow atomic.Bool // a token takes so long that no answer ends before the rank is lost
		r := newRelay(t, setup{dir: golden("deepseek_v2_lite"), limits: small(2), wrap: func(actor string, n node) node {
			if actor != "sample" {
				return n
			}
			return hook{n, func(*turn, any) {
				if slow.Load() {
					time.Sleep(20 * time.Millisecond)
				}
			}}
		}}, func(o *Options) { o.Replay = c != "fail" })
		gw := r.l.open(t, r.p)
		want, err := generate(gw, []int32{5, 6}, 60)
		if err != nil {
			t.Fatal(err)
		}
		slow.Store(true)
		st, err := gw.Submit(context.Background(), greedy([]int32{5, 6}, 60))
		if err != nil {
			t.Fatal(err)
		}
		p := r.p
		p.lose(0, "gpu", cause)
		<-p.Failed()
		if lost, ok := errors.AsType[*RankError](p.Err()); !ok || lost.Name != "gpu" || !errors.Is(lost, cause) {
			t.Errorf("%s: failed with %v", c, p.Err())
		}
		switch c {
		case "replay":
			if n := r.pass(); n != 1 {
				t.Errorf("%d requests were taken over", n)
			}
		case "abandon":
			p.Suspend()
			p.Abandon(p.Err())
		case "close":
			p.Close()
		case "smaller":
			list := p.Suspend()
			list[0].Fault = scheduler.ErrTooLong
			r.start(p)
			r.p.Adopt(list)
		}
		slow.Store(false)
		ids, last, err := collect(st)
		if c == "replay" {
			if err != nil || !slices.Equal(ids, want) {
				t.Errorf("%v after %v, want %v", last, ids, want)
			}
			continue
		}
		if err != nil || last.Kind != engine.Failed || last.Err.Kind != engine.Unavailable {
			t.Errorf("%s: ended with %+v, %v", c, last, err)
		}
		if err := gw.Ready(); (err == nil) != (c == "smaller") {
			t.Errorf("%s: %v", c, err)
		}
	}
}
