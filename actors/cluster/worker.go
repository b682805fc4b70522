package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/actors/hop"
	"krater/actors/trace"
)

// Host is a worker's part of a model. Its methods are called one at a time.
type Host interface {
	// Open finds a model's files and returns their fingerprint and the memory and rate that this machine offers.
	Open(ctx context.Context, m Model) (fingerprint string, o Offer, err error)
	// Load loads a part, unless it is the one that is loaded. A part before it is freed.
	Load(ctx context.Context, p Part) error
	// Start begins to compute batches that come over the hops.
	Start(h *Hops) (Segment, error)
	// Stop ends that, if it has begun; the part stays loaded.
	Stop()
}

// Segment is a part that computes.
type Segment interface {
	Running
	Trace() *trace.Registry
	Topology() engine.Topology
	Hop() engine.Link // what the hop to it has cost so far; its time is from the clock of the member before to its own
}

// WorkerOptions of a worker.
type WorkerOptions struct {
	Host    Host
	Network Network
	Version string
	Name    string        // in logs and errors
	Index   int           // place in the chain, where it has one; else 0
	Address string        // where others connect to
	Leader  string        // name in the leader's certificate
	Timeout time.Duration // after which a silent leader is lost
	Log     zerolog.Logger
}

// ErrRefused reports a leader that will not take this worker.
var ErrRefused = errors.New("the leader refuses this worker")

// worker is one membership.
type worker struct {
	opt     WorkerOptions
	sending sync.Mutex
	control Control
	end     context.CancelCauseFunc // ends the membership
	job     chan struct{}           // closed when the job is done; nil: there is none
	cancel  context.CancelFunc      // of the job
	hops    *Hops
	segment atomic.Pointer[Segment] // nil: there is none
}

// Work is a member of the leader at the other end of c until that is lost, ctx ends, or it is refused.
func Work(ctx context.Context, c Control, opt WorkerOptions) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	w := &worker{opt: opt, control: c, end: end}
	defer w.reset()
	if err := w.send(&message{Hello: &hello{opt.Version, opt.Name, opt.Address}}); err != nil {
		return err
	}
	messages := make(chan *message)
	go func() {
		for {
			x, err := receive(c)
			if err != nil {
				end(err)
				return
			}
			select {
			case messages <- x:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case x := <-messages:
			if err := w.handle(ctx, x); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (w *worker) send(x *message) error {
	w.sending.Lock()
	defer w.sending.Unlock()
	return send(w.control, x)
}

// handle does what the leader says.
func (w *worker) handle(ctx context.Context, x *message) error {
	switch {
	case x.Open != nil:
		return w.open(ctx, x.Open)
	case x.Assign != nil:
		w.reset()
		w.start(ctx, func(ctx context.Context) *message {
			return &message{Loaded: &loaded{x.Assign.Generation, text(w.opt.Host.Load(ctx, x.Assign.Part))}}
		})
	case x.Connect != nil:
		w.start(ctx, func(ctx context.Context) *message {
			top, err := w.connect(ctx, x.Connect)
			return &message{Connected: &connected{x.Connect.Generation, text(err), top}}
		})
	case x.Look != nil:
		return w.look(x.Look)
	case x.Reset != nil:
		w.reset()
	case x.Bye != nil && x.Bye.Final:
		return fmt.Errorf("%w: %s", ErrRefused, x.Bye.Why)
	case x.Bye != nil:
		return errors.New(x.Bye.Why)
	default:
		return errSequence
	}
	return nil
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// open answers what this worker can take, and begins to answer heartbeats.
func (w *worker) open(ctx context.Context, x *open) error {
	print, offer, err := w.opt.Host.Open(ctx, x.Model)
	if err != nil {
		return errors.Join(err, w.send(&message{Bye: &bye{Why: err.Error()}}))
	}
	offer.Index = w.opt.Index
	go func() { w.end(fmt.Errorf("the leader is lost: %w", w.opt.Network.Answer(ctx, x.Beat, w.opt.Timeout))) }()
	return w.send(&message{Opened: &opened{print, offer}})
}

// start does a job beside the messages, after the one before, and sends its answer.
func (w *worker) start(ctx context.Context, do func(context.Context) *message) {
	w.wait()
	ctx, w.cancel = context.WithCancel(ctx)
	done := make(chan struct{})
	w.job = done
	go func() {
		defer close(done)
		if err := w.send(do(ctx)); err != nil {
			w.end(err)
		}
	}()
}

// wait ends the job, if there is one.
func (w *worker) wait() {
	if w.job != nil {
		w.cancel()
		<-w.job
		w.job = nil
	}
}

// reset ends the job and all batches.
func (w *worker) reset() {
	w.wait()
	w.hops.Close()
	w.hops = nil
	w.segment.Store(nil)
	w.opt.Host.Stop()
}

// connect makes the worker's hops and starts its part.
func (w *worker) connect(ctx context.Context, x *connect) (top engine.Topology, err error) {
	name := x.Next.Name
	if x.Next.Leader {
		name = w.opt.Leader
	}
	n := w.opt.Network
	conns, err := together(ctx, []func(context.Context) (hop.Conn, error){
		func(ctx context.Context) (hop.Conn, error) { return n.Expect(ctx, x.In, x.FrameBytes) },
		func(ctx context.Context) (hop.Conn, error) {
			return dial(ctx, n, x.Next.Address, name, x.Next.Token, x.FrameBytes)
		},
		func(ctx context.Context) (hop.Conn, error) {
			return dial(ctx, n, "", w.opt.Leader, x.Side, x.FrameBytes)
		},
	})
	if err != nil {
		return top, err
	}
	h := &Hops{In: conns[0], Out: conns[1], Side: conns[2]}
	part, err := w.opt.Host.Start(h)
	if err != nil {
		h.Close()
		return top, err
	}
	w.hops = h
	w.segment.Store(&part)
	go func() {
		select {
		case <-part.Failed():
			w.opt.Log.Error().Err(part.Err()).Msg("the part of the pipeline has ended")
			h.Close() // the leader notices, and begins anew
		case <-ctx.Done():
		}
	}()
	return part.Topology(), nil
}

const (
	// eventsMost bounds the events of an answer: 6 MiB.
	eventsMost = 1 << 16
	// detailFor is how long a worker records every batch after the leader has asked for that.
	detailFor = 2 * time.Second
)

// look answers what the part has recorded.
func (w *worker) look(x *look) error {
	a := &seen{Number: x.Number}
	if s := w.segment.Load(); s != nil {
		a.Hop = (*s).Hop()
		if x.Detail {
			(*s).Trace().WatchFor(detailFor)
		}
		if x.Events {
			a.Told = (*s).Trace().Tell(x.From, eventsMost)
		}
	}
	return w.send(&message{Seen: a})
}
