package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/actors/hop"
)

// Engine is the model on the leader. Run calls its methods one at a time.
type Engine interface {
	Model() Model
	// Plan divides the layers among the leader, which has the first, and workers in the order of their offers: one
	// part for each. An error says why the model does not fit them.
	Plan(offers []Offer) ([]Part, error)
	// FrameBytes bounds a frame of the largest batch of the last plan.
	FrameBytes() int
	// Load loads the leader's layers of the last plan, unless they are loaded.
	Load(ctx context.Context) error
	// Start starts a pipeline over the leader's layers and those behind the hops; without workers h is nil. It goes on
	// with the requests that the last one left.
	Start(h *Hops) (Running, error)
	// Suspend ends the pipeline, if there is one, and keeps its requests for the next. lost says that a member was lost.
	Suspend(lost bool)
	// Abandon fails the requests that were kept.
	Abandon(cause error)
	// Idle reports whether there are no requests.
	Idle() bool
}

// Running computes on a member: a pipeline, or a part of one. Err says why it has failed.
type Running interface {
	Failed() <-chan struct{} // closed when it has failed
	Err() error
}

// LeaderOptions of a cluster.
type LeaderOptions struct {
	Workers int // that are wanted; further ones wait for a loss
	Engine  Engine
	Network Network
	Version string        // of the program: all members have the same
	Timeout time.Duration // after which a silent worker is lost
	// Replay says that the requests of a lost worker go on with other workers. They fail when none can take over
	// for ReplayWait. Without Replay they fail at once.
	Replay     bool
	ReplayWait time.Duration
	Log        zerolog.Logger
}

// Leader gathers workers and serves with them.
type Leader struct {
	opt     LeaderOptions
	log     zerolog.Logger
	changed chan struct{} // members have come or gone
	closed  chan struct{}

	mu      sync.Mutex
	members []*member

	generation uint64
	served     bool      // it has served before
	since      time.Time // requests are suspended since then; zero: they are not
}

// NewLeader makes a leader. Workers join by Join, and Run serves with them.
func NewLeader(opt LeaderOptions) *Leader {
	return &Leader{opt: opt, log: opt.Log, changed: make(chan struct{}, 1), closed: make(chan struct{})}
}

// Run serves until ctx ends, or until the model cannot be served by the workers that were wanted at the start.
func (l *Leader) Run(ctx context.Context) error {
	defer close(l.closed)
	defer l.opt.Engine.Suspend(false)
	pause := time.Duration(0)
	for {
		list, err := l.gather(ctx)
		if err != nil {
			return err
		}
		began := time.Now()
		err = l.serve(ctx, list)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errOwn) && !l.served:
			return err
		case errors.Is(err, errMore):
			l.log.Info().Msg("the model is divided again: a worker has come")
			continue
		}
		l.log.Error().Err(err).Uint64("generation", l.generation).Msg("the pipeline is interrupted")
		// What fails again and again must not take all the time of the members.
		if pause = min(2*pause+10*time.Millisecond, time.Second); time.Since(began) > time.Minute {
			pause = 0
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// gather waits for workers that the model fits: at the start for as many as are wanted, after a loss for
// what is left. Requests that wait too long fail.
func (l *Leader) gather(ctx context.Context) ([]*member, error) {
	for {
		list := l.present()
		var err error
		if full := len(list) == l.opt.Workers; full || l.served {
			var parts []Part
			if parts, err = l.opt.Engine.Plan(offers(list)); err == nil {
				for i, m := range list {
					m.setPart(&parts[i])
				}
				return list, nil
			}
			if full && !l.served {
				return nil, err
			}
			l.log.Warn().Err(err).Int("workers", len(list)).Msg("the model does not fit the members that are left; waiting for workers")
		} else {
			err = fmt.Errorf("%d of %d workers have joined", len(list), l.opt.Workers)
		}
		var late <-chan time.Time
		if !l.since.IsZero() {
			late = time.After(time.Until(l.since.Add(l.opt.ReplayWait)))
		}
		select {
		case <-l.changed:
		case <-late:
			l.abandon(err)
		case <-ctx.Done():
			return nil, nil
		}
	}
}

func offers(list []*member) (o []Offer) {
	for _, m := range list {
		o = append(o, m.offer)
	}
	return o
}

var (
	errMore = errors.New("a worker has come that a smaller cluster waited for")
	errOwn  = errors.New("the leader") // wraps faults of the leader alone; at the start they end it, because waiting does not help
)

// serve is one generation: it loads, connects, starts, and waits for the end.
func (l *Leader) serve(ctx context.Context, list []*member) error {
	l.generation++
	whole := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, m := range list {
		go func() {
			select {
			case <-m.lost:
				cancel(&errLost{m.offer.Worker, m.cause})
			case <-ctx.Done():
			}
		}()
	}
	if err := l.load(ctx, list); err != nil {
		return err
	}
	hops, workers, err := l.connect(ctx, list)
	if err != nil {
		return err
	}
	defer hops.Close()
	p, err := l.opt.Engine.Start(hops)
	if err != nil {
		return fmt.Errorf("%w: %w", errOwn, err)
	}
	l.served, l.since = true, time.Time{}
	for _, m := range list {
		m.mu.Lock()
		l.log.Info().Str("worker", m.offer.Worker).Stringer("ahead", m.offset).Stringer("within", m.rtt/2).Msg("the clock of a worker")
		m.mu.Unlock()
	}
	l.log.Info().Int("workers", len(list)).Uint64("generation", l.generation).Msg("the cluster serves")
	err = l.watch(ctx, workers, p)
	l.suspend(list, err, whole.Err() == nil && !errors.Is(err, errMore))
	return err
}

// watch waits for the end of a generation.
func (l *Leader) watch(ctx context.Context, all []*peer, p Running) error {
	more := time.NewTicker(time.Second)
	defer more.Stop()
	for {
		select {
		case <-p.Failed():
			return p.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-more.C: // a better division waits for a moment without requests
			if now := l.present(); len(now) > len(all) && l.opt.Engine.Idle() {
				return errMore
			}
			for _, w := range all {
				go w.refresh()
			}
		}
	}
}

// suspend ends the pipeline, and what the workers have of its batches. lost says that a member was lost.
func (l *Leader) suspend(list []*member, cause error, lost bool) {
	l.opt.Engine.Suspend(lost)
	if l.since = time.Now(); !l.opt.Replay && !errors.Is(cause, errMore) {
		l.abandon(cause)
	}
	for _, m := range list {
		if err := m.send(&message{Reset: &reset{l.generation}}); err != nil {
			m.lose(err)
		}
	}
}

// abandon fails the requests that were suspended.
func (l *Leader) abandon(cause error) {
	l.opt.Engine.Abandon(cause)
	l.since = time.Time{}
}

// load has every member load its layers.
func (l *Leader) load(ctx context.Context, list []*member) error {
	for _, m := range list {
		if err := m.send(&message{Assign: &assign{l.generation, *m.part}}); err != nil {
			m.lose(err)
		}
	}
	own := make(chan error, 1)
	go func() {
		err := l.opt.Engine.Load(ctx)
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", errOwn, err)
		}
		own <- err
	}()
	var fault error
	for _, m := range list {
		err := m.answer(ctx, func(x *message) (bool, string) {
			if x.Loaded == nil || x.Loaded.Generation != l.generation {
				return false, ""
			}
			return true, x.Loaded.Error
		})
		if err != nil && ctx.Err() == nil {
			m.lose(err) // it cannot take its part
		}
		fault = errors.Join(fault, err)
	}
	return errors.Join(<-own, fault)
}

// connect makes the hops of a generation.
func (l *Leader) connect(ctx context.Context, list []*member) (*Hops, []*peer, error) {
	if len(list) == 0 {
		return nil, nil, nil
	}
	back, most, tokens := NewToken(), l.opt.Engine.FrameBytes(), make([]connect, len(list))
	for i := range list {
		tokens[i] = connect{Generation: l.generation, In: NewToken(), Side: NewToken(), FrameBytes: most}
	}
	expect := func(t Token) func(context.Context) (hop.Conn, error) {
		return func(ctx context.Context) (hop.Conn, error) { return l.opt.Network.Expect(ctx, t, most) }
	}
	makes := []func(context.Context) (hop.Conn, error){
		func(ctx context.Context) (hop.Conn, error) {
			return dial(ctx, l.opt.Network, list[0].address, list[0].name, tokens[0].In, most)
		},
		expect(back),
	}
	for i, m := range list {
		x := &tokens[i]
		if x.Next = (place{Leader: true, Token: back}); i+1 < len(list) {
			x.Next = place{Address: list[i+1].address, Name: list[i+1].name, Token: tokens[i+1].In}
		}
		makes = append(makes, expect(x.Side))
		if err := m.send(&message{Connect: x}); err != nil {
			m.lose(err)
		}
	}
	conns, err := together(ctx, makes)
	if err != nil {
		return nil, nil, fmt.Errorf("hops: %w", err)
	}
	h := &Hops{Out: conns[0], In: conns[1], Sides: conns[2:]}
	drawn := make([]engine.Topology, len(list))
	for i, m := range list {
		err = errors.Join(err, m.answer(ctx, func(x *message) (bool, string) {
			if x.Connected == nil || x.Connected.Generation != l.generation {
				return false, ""
			}
			drawn[i] = x.Connected.Topology
			return true, x.Connected.Error
		}))
	}
	if err != nil {
		h.Close()
		return nil, nil, err
	}
	all, told := peers(list, drawn)
	h.Peers = told
	return h, all, nil
}
