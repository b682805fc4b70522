package batches

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"krater/scheduler/batchqueue"
)

const (
	// sweepEvery is the time between searches for expired files.
	sweepEvery = time.Hour
	// failPause is how long the store rests after a failure (such as a full disk). For an input
	// that cannot be opened or read, the pause doubles each time up to failPauseMost.
	failPause     = 2 * time.Second
	failPauseMost = time.Minute
)

// runner works the store off. Four kinds of goroutines share it: the keeper carries batches from
// status to status, the feeder hands out lines in order, a worker runs one line, the committer
// makes answers durable in groups.
type runner struct {
	opt   *Options
	store *batchqueue.Store

	going context.Context // ends when no line may be started any more
	stop  context.CancelFunc
	wake  chan struct{}           // wakes the keeper: something changed
	more  chan struct{}           // for the feeder: there may be lines
	slots chan struct{}           // one element a line in flight
	ends  chan batchqueue.Settled // to the committer

	workers sync.WaitGroup // and the feeder and the keeper
	closing sync.Once      // of ends
	over    chan struct{}  // closed when the committer has ended

	mu      sync.Mutex
	started bool
	runs    []batchqueue.Batch // those whose lines may be started, in order
	flight  map[string]int     // batch -> lines started and not committed
	cursors map[string]*cursor
	turns   map[string]int // owner -> the number of the turn that was its last
	turn    int
}

// cursor is the position in a batch's lines.
type cursor struct {
	lines *batchqueue.Lines // nil when there are no more, or not now
	// again is when to reopen an input that could not be read, and pause is the wait before that;
	// zero while the input is readable.
	again time.Time
	pause time.Duration
}

func newRunner(o *Options) *runner {
	r := &runner{
		opt: o, store: o.Store, wake: make(chan struct{}, 1), more: make(chan struct{}, 1),
		slots: make(chan struct{}, o.InFlight), ends: make(chan batchqueue.Settled, o.InFlight), over: make(chan struct{}),
		flight: map[string]int{}, cursors: map[string]*cursor{}, turns: map[string]int{},
	}
	r.going, r.stop = context.WithCancel(context.Background())
	return r
}

func (r *runner) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started || r.going.Err() != nil {
		return
	}
	r.started = true
	go r.commit()
	r.workers.Go(r.keep)
	r.workers.Go(r.feed)
}

// shutdown ends all goroutines; lines in flight are waited for until ctx ends.
func (r *runner) shutdown(ctx context.Context) error {
	r.stop()
	r.mu.Lock()
	started := r.started
	r.mu.Unlock()
	if !started {
		return nil
	}
	go r.closing.Do(func() {
		r.workers.Wait()
		close(r.ends)
	})
	select {
	case <-r.over:
	case <-ctx.Done():
		return ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.cursors {
		c.close()
	}
	return nil
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is waiting there already
	}
}

// poke wakes the keeper.
func (r *runner) poke() { poke(r.wake) }

// pause waits, and is false when the runner stops meanwhile.
func (r *runner) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.going.Done():
		return false
	}
}

// keep advances batches whenever something changes, and at deadlines.
func (r *runner) keep() {
	tick := time.NewTicker(r.opt.Poll)
	defer tick.Stop()
	swept := r.store.Now()
	for {
		err := r.round()
		if now := r.store.Now(); err == nil && now.Sub(swept) >= sweepEvery {
			swept, err = now, r.store.Sweep()
		}
		if r.going.Err() != nil {
			return
		}
		if err != nil {
			r.opt.Log.Error().Err(err).Msg("batches are not carried on")
			if !r.pause(failPause) {
				return
			}
		}
		select {
		case <-r.wake:
		case <-tick.C:
		case <-r.going.Done():
			return
		}
	}
}

// round does for every batch what its status asks for.
func (r *runner) round() error {
	active, err := r.store.Active()
	if err != nil {
		return err
	}
	r.setRuns(active)
	var errs []error
	changed := false
	for _, b := range active {
		if r.going.Err() != nil {
			return nil
		}
		did, err := r.carry(&b)
		if errors.Is(err, batchqueue.ErrState) { // a cancel came between: the next round sees it
			did, err = true, nil
		}
		changed = changed || did
		errs = append(errs, err)
	}
	if changed {
		r.poke()
	}
	return errors.Join(errs...)
}

// carry does one thing for a batch, if there is one to do.
func (r *runner) carry(b *batchqueue.Batch) (did bool, err error) {
	after, from := *b, b.Status
	switch {
	case b.Due(r.store.Now()):
		r.halt(b.ID)
		after, err = r.store.Expire(b.ID)
	case b.Status == batchqueue.Validating:
		after, err = r.store.Validate(r.going, b.ID)
	case b.Ending() && r.idle(b.ID):
		if after, err = r.store.Finish(r.going, b.ID); err == nil {
			r.forget(b.ID)
		}
	default:
		return false, nil
	}
	if err == nil {
		c := after.Counts
		r.opt.Log.Info().Str("batch", b.ID).Str("from", string(from)).Str("status", string(after.Status)).
			Int("total", c.Total).Int("completed", c.Completed).Int("failed", c.Failed).Msg("batch")
	}
	return true, err
}

// setRuns notes whose lines may be started: batches of the served model.
func (r *runner) setRuns(active []batchqueue.Batch) {
	var runs []batchqueue.Batch
	for _, b := range active {
		if b.Runs() && b.Model == r.opt.Model {
			runs = append(runs, b)
		}
	}
	r.mu.Lock()
	r.runs = runs
	r.mu.Unlock()
	if len(runs) > 0 {
		poke(r.more)
	}
}

// halt starts no more lines of a batch.
func (r *runner) halt(batch string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs = slices.DeleteFunc(r.runs, func(b batchqueue.Batch) bool { return b.ID == batch })
}

// idle reports whether no line of the batch is in flight.
func (r *runner) idle(batch string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.flight[batch] == 0
}

// running reports whether lines of the batch may be started.
func (r *runner) running(batch string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.runs, func(b batchqueue.Batch) bool { return b.ID == batch })
}

// landed takes a line out of flight.
func (r *runner) landed(batch string) {
	r.mu.Lock()
	if r.flight[batch]--; r.flight[batch] == 0 {
		delete(r.flight, batch)
	}
	r.mu.Unlock()
	r.poke()
}

// inFlight counts lines.
func (r *runner) inFlight() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.flight {
		n += k
	}
	return n
}

// forget drops the cursor of a batch that has ended.
func (r *runner) forget(batch string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.cursors[batch]; c != nil {
		c.close()
		delete(r.cursors, batch)
	}
}

func (c *cursor) close() {
	if c.lines != nil {
		c.lines.Close()
		c.lines = nil
	}
}

// feed starts a worker for every line, as slots come free.
func (r *runner) feed() {
	for {
		select {
		case r.slots <- struct{}{}:
		case <-r.going.Done():
			return
		}
		t, ok := r.next()
		if ok {
			r.workers.Go(func() {
				defer func() { <-r.slots }()
				r.run(t)
			})
			continue
		}
		<-r.slots
		select {
		case <-r.more:
		case <-r.going.Done():
			return
		}
	}
}

// next returns the next open line and counts it as in flight. Owners take turns, so that none waits
// for the end of another's batches. Among an owner's batches, the one whose time ends first comes
// first.
func (r *runner) next() (*task, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	turns := make([]*batchqueue.Batch, len(r.runs))
	for i := range r.runs {
		turns[i] = &r.runs[i]
	}
	slices.SortStableFunc(turns, func(a, b *batchqueue.Batch) int { return r.turns[a.Owner] - r.turns[b.Owner] })
	for _, b := range turns {
		c := r.cursor(b)
		if c.lines == nil {
			continue
		}
		index, line, fault, err := c.lines.Next()
		if err != nil {
			c.close()
			if !errors.Is(err, io.EOF) {
				r.broken(b, c, err)
			}
			continue
		}
		r.flight[b.ID]++
		r.turn++
		r.turns[b.Owner] = r.turn
		return &task{
			expires: b.Expires, batch: b.ID, owner: b.Owner, endpoint: b.Endpoint, index: index, customID: line.CustomID,
			body: append([]byte(nil), line.Body...), fault: fault,
		}, true
	}
	return nil, false
}

// cursor returns a batch's cursor. Its input is opened the first time, and again after a failed
// read, but not while lines are in flight: these are open and would be read twice. r.mu is held.
func (r *runner) cursor(b *batchqueue.Batch) *cursor {
	c := r.cursors[b.ID]
	if c == nil {
		c = &cursor{}
		r.cursors[b.ID] = c
	} else if c.again.IsZero() || time.Now().Before(c.again) || r.flight[b.ID] > 0 {
		return c
	}
	lines, err := r.store.Lines(b)
	if err != nil {
		r.broken(b, c, err)
		return c
	}
	c.lines, c.again = lines, time.Time{}
	return c
}

// broken notes that a batch's input cannot be read now. r.mu is held.
func (r *runner) broken(b *batchqueue.Batch, c *cursor, err error) {
	c.pause = min(max(failPause, 2*c.pause), failPauseMost)
	c.again = time.Now().Add(c.pause)
	r.opt.Log.Error().Err(err).Str("batch", b.ID).Dur("again_ms", c.pause).Msg("the input of a batch cannot be read")
}

// commit makes answers durable; answers that arrive close together share a commit. It ends when
// ends is closed.
func (r *runner) commit() {
	defer close(r.over)
	for first := range r.ends {
		group, bytes := []batchqueue.Settled{first}, len(first.Text)
		delay := time.NewTimer(r.opt.CommitDelay)
		for open := true; open && len(group) < r.opt.CommitLines && bytes < r.opt.CommitBytes; {
			select {
			case s, ok := <-r.ends:
				if open = ok; ok {
					group, bytes = append(group, s), bytes+len(s.Text)
				}
			case <-delay.C:
				open = false
			}
		}
		delay.Stop()
		r.settle(group)
	}
}

// settle commits a group. While the store fails it keeps trying, which stops the workers. What it
// cannot commit before the end is computed again after a restart.
func (r *runner) settle(group []batchqueue.Settled) {
	for {
		_, err := r.store.Settle(group)
		if err == nil {
			break
		}
		r.opt.Log.Error().Err(err).Int("answers", len(group)).Msg("answers are not committed yet")
		if !r.pause(failPause) {
			break
		}
	}
	for _, s := range group {
		r.landed(s.Batch)
	}
}
