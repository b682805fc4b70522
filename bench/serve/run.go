// Package serve puts a load on a server of the OpenAI API and measures what its clients see. In an
// open loop requests arrive by a random process, whether or not the ones before are answered. In a
// closed loop a fixed number of clients ask again as soon as they are answered. docs/benchmarks.md
// defines the figures.
package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"
)

// Load is one load. Exactly one of Rate and Concurrency is set.
type Load struct {
	Door   Door
	Source *Source

	Rate        float64 // requests a second of an open loop
	Arrivals    Arrivals
	Concurrency int // streams of a closed loop

	Requests int           // number of requests; 0: as many as Duration allows
	Duration time.Duration // how long requests are sent; 0: as long as Requests lasts
	Timeout  time.Duration // of one request; 0: none
	OpenMost int           // requests in flight; an open loop does not send more
	Seed     uint64        // of the arrivals

	Bounds Bounds
	Out    io.Writer // one Record per line as JSON; nil: none
}

// check returns an error for a missing setting.
func (l *Load) check() error {
	switch {
	case (l.Rate > 0) == (l.Concurrency > 0) || l.Rate < 0 || l.Concurrency < 0:
		return errors.New("a load has a rate or a concurrency, above 0")
	case l.Requests <= 0 && l.Duration <= 0:
		return errors.New("a load has a number of requests or a duration")
	case l.Rate > 0:
		return l.Arrivals.Check()
	}
	return nil
}

// Run loads the server and waits for the last answer. When ctx ends, it sends no more, drops
// running requests, and returns the figures of the complete ones.
func (l *Load) Run(ctx context.Context) (*Point, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	r := &running{Load: l, tally: newTally(l.Bounds, time.Now(), l.Out)}
	if l.Rate > 0 {
		r.arrive(ctx)
	} else {
		r.circle(ctx)
	}
	r.all.Wait()
	p, err := r.tally.point()
	if err != nil {
		return nil, fmt.Errorf("writing the records: %w", err)
	}
	p.Door, p.Rate, p.Concurrency = l.Door.Name(), l.Rate, l.Concurrency
	return p, nil
}

// running is a load at work.
type running struct {
	*Load
	tally *tally
	all   sync.WaitGroup

	mu   sync.Mutex
	sent int
	open int
}

// next returns the number of the next request; false: there are no more.
func (r *running) next(ctx context.Context) (int, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil || r.Requests > 0 && r.sent >= r.Requests || r.Duration > 0 && time.Since(r.tally.begin) >= r.Duration {
		return 0, false
	}
	r.sent++
	return r.sent, true
}

// arrive sends requests when they are due. Each is made before its time, so that making it delays
// none.
func (r *running) arrive(ctx context.Context) {
	gaps := rand.New(rand.NewPCG(r.Seed, 0x676170))
	due := 0.0
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		if due += r.Arrivals.Gap(gaps, r.Rate); r.Duration > 0 && due >= r.Duration.Seconds() {
			r.tally.lasts(r.Duration) // the gap up to there belongs to the load
			return
		}
		a := r.Source.Next()
		at := r.tally.begin.Add(time.Duration(due * float64(time.Second)))
		wait.Reset(time.Until(at))
		select {
		case <-wait.C:
		case <-ctx.Done():
			return
		}
		n, more := r.next(ctx)
		if !more {
			return
		}
		r.tally.enter()
		r.mu.Lock()
		full := r.OpenMost > 0 && r.open >= r.OpenMost
		if !full {
			r.open++
		}
		r.mu.Unlock()
		if full {
			now := time.Now()
			r.tally.leave(&Record{Number: n, Door: r.Door.Name(), Rate: r.Rate, Talk: a.Talk, Turn: a.Turn, Arrival: due, Outcome: NotServed, end: now}, false)
			continue
		}
		r.all.Go(func() {
			r.one(ctx, n, a, at)
			r.mu.Lock()
			r.open--
			r.mu.Unlock()
		})
	}
}

// circle runs the streams of a closed loop. A stream that was refused waits as long as the server
// said.
func (r *running) circle(ctx context.Context) {
	for range r.Concurrency {
		r.all.Go(func() {
			for {
				n, more := r.next(ctx)
				if !more {
					r.tally.close(time.Now())
					return
				}
				r.tally.enter()
				record := r.one(ctx, n, r.Source.Next(), time.Now())
				if record.Outcome == Refused {
					rest(ctx, max(retryLeast, min(retryMost, record.RetryAfter)))
				}
			}
		})
	}
}

// Bounds of the wait after a refusal.
const (
	retryLeast = 100 * time.Millisecond
	retryMost  = 10 * time.Second
)

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// one sends a request that was due at a time and reads its answer.
func (r *running) one(life context.Context, n int, a *Ask, due time.Time) *Record {
	ctx := life
	if r.Timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, r.Timeout)
		defer stop()
	}
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	if a.Fault == Cancels {
		if _, socket := r.Door.(*socketDoor); !socket {
			defer time.AfterFunc(r.patience(a), leave).Stop()
		}
	}
	w := &watch{ask: a, sent: time.Now()}
	got, err := r.Door.ask(ctx, a, w)
	rec := &Record{
		Number: n, Door: r.Door.Name(), Rate: r.Rate, Concurrency: r.Concurrency, Talk: a.Talk, Turn: a.Turn,
		Arrival: due.Sub(r.tally.begin).Seconds(), Late: max(0, w.sent.Sub(due).Seconds()),
		Wanted: a.Prompt, Prompt: got.prompt, Cached: got.cached, Answer: got.answer, Outcome: OK,
		end: time.Now(), pieces: w.pieces,
	}
	if !w.begun.IsZero() {
		rec.Queue = w.begun.Sub(w.sent).Seconds()
	}
	switch {
	case err == nil:
	case errors.Is(err, errLeft) && a.Fault == Disconnects:
		rec.Outcome = Left
	case errors.Is(err, errLeft), errors.Is(err, errCancelled), life.Err() != nil, a.Fault == Cancels && errors.Is(err, context.Canceled):
		rec.Outcome = GivenUp
	case errors.Is(err, context.DeadlineExceeded):
		rec.Outcome, rec.Error = TimedOut, err.Error()
	default:
		rec.blame(err)
	}
	if rec.Outcome != OK { // the server's token count is unknown
		rec.Answer = w.tokens
	}
	rec.finish(w.sent)
	r.tally.leave(rec, a.Fault != NoFault)
	return rec
}

// patience returns how long a client waits before it drops a request over a door without
// cancellation: a random share of the usual time to the first token, so that many leave while their
// request waits or their prompt is computed.
func (r *running) patience(a *Ask) time.Duration {
	r.tally.mu.Lock()
	usual := r.tally.p.ttft.Percentile(0.5)
	r.tally.mu.Unlock()
	share := float64(a.Leave) / float64(a.Max)
	return time.Duration(share * max(usual, 0.005) * float64(time.Second))
}
