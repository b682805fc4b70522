package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// member is a worker that has joined.
type member struct {
	name    string // in its certificate
	address string
	offer   Offer
	answers chan *message

	sending sync.Mutex
	control Control

	once  sync.Once
	lost  chan struct{}
	cause error // why it is lost

	mu          sync.Mutex
	rtt, offset time.Duration // of the best of the last heartbeats
	part        *Part         // that it has loaded, or is loading

	looking sync.Mutex // one look at a time
	looks   uint64
	saw     chan *seen // answers to looks
}

// Worker describes a worker for people and for the trace.
type Worker struct {
	Offer
	Part   *Part         // nil: it has none, and waits for a loss
	RTT    time.Duration // of heartbeats
	Offset time.Duration // of its trace clock, less the leader's
}

func (m *member) send(x *message) error {
	m.sending.Lock()
	defer m.sending.Unlock()
	return send(m.control, x)
}

// lose notes that the worker is gone.
func (m *member) lose(cause error) {
	m.once.Do(func() {
		m.cause = cause
		close(m.lost)
	})
}

// errLost reports a worker that is gone.
type errLost struct {
	worker string
	cause  error
}

func (e *errLost) Error() string { return fmt.Sprintf("worker %s is lost: %v", e.worker, e.cause) }
func (e *errLost) Unwrap() error { return e.cause }

// heard takes a heartbeat. A short round trip tells the offset best, so it counts for some time.
func (m *member) heard(rtt, offset time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rtt == 0 || rtt <= m.rtt {
		m.rtt, m.offset = rtt, offset
		return
	}
	m.rtt += m.rtt/16 + 1 // clocks drift: the best one is not the best for ever
}

// setPart records the part that the worker must load.
func (m *member) setPart(p *Part) {
	m.mu.Lock()
	m.part = p
	m.mu.Unlock()
}

// Join serves a worker's stream of control until it ends. name is that of its certificate.
func (l *Leader) Join(ctx context.Context, name string, c Control) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := &member{name: name, control: c, answers: make(chan *message, 8), lost: make(chan struct{}), saw: make(chan *seen, 1)}
	beat, err := l.welcome(m)
	if err != nil {
		l.log.Warn().Str("worker", m.offer.Worker).Str("certificate", name).Err(err).Msg("a worker is refused")
		_ = m.send(&message{Bye: &bye{Why: err.Error(), Final: !errors.Is(err, errSequence)}}) // it may be gone
		return err
	}
	go func() { m.lose(l.opt.Network.Ping(ctx, beat, l.opt.Timeout, m.heard)) }()
	go func() { // it ends with the stream, when Join has returned
		for {
			x, err := receive(c)
			if err != nil {
				m.lose(err)
				return
			}
			answers := m.answers
			if x.Seen != nil {
				answers = nil
				select {
				case m.saw <- x.Seen:
					continue
				default: // a second answer to one question
				}
			}
			select {
			case answers <- x:
			default:
				m.lose(errSequence)
				return
			}
		}
	}()
	l.log.Info().Str("worker", m.offer.Worker).Str("address", m.address).Str("device", m.offer.Device).Int64("memory", m.offer.Memory).Msg("a worker has joined")
	l.add(m)
	select {
	case <-m.lost:
	case <-ctx.Done():
		m.lose(context.Cause(ctx))
	case <-l.closed:
		_ = m.send(&message{Bye: &bye{Why: "the leader ends"}})
		m.lose(errClosed)
	}
	l.remove(m)
	if !errors.Is(m.cause, errClosed) {
		l.log.Error().Str("worker", m.offer.Worker).Err(m.cause).Msg("a worker is lost")
	}
	return m.cause
}

// errClosed: the leader ends.
var errClosed = errors.New("the cluster is closed")

// welcome learns who a worker is, and what it can take. It returns the token of its heartbeats.
func (l *Leader) welcome(m *member) (beat Token, err error) {
	next, failed := make(chan *message, 2), make(chan error, 1)
	go func() {
		for range 2 {
			x, err := receive(m.control)
			if err != nil {
				failed <- err
				return
			}
			next <- x
		}
	}()
	await := func(within time.Duration) (*message, error) {
		select {
		case x := <-next:
			return x, nil
		case err := <-failed:
			return nil, fmt.Errorf("%w: %w", errSequence, err)
		case <-time.After(within):
			return nil, fmt.Errorf("%w: nothing for %v", errSequence, within)
		}
	}
	x, err := await(joinTimeout)
	switch {
	case err != nil:
		return beat, err
	case x.Hello == nil:
		return beat, errSequence
	}
	m.offer.Worker, m.address = x.Hello.Worker, x.Hello.Address
	if x.Hello.Version != l.opt.Version {
		return beat, fmt.Errorf("it is version %s, the leader is %s", x.Hello.Version, l.opt.Version)
	}
	beat = NewToken()
	model := l.opt.Engine.Model()
	if err := m.send(&message{Open: &open{Model: model, Beat: beat}}); err != nil {
		return beat, fmt.Errorf("%w: %w", errSequence, err)
	}
	x, err = await(openTimeout)
	switch {
	case err != nil:
		return beat, err
	case x.Bye != nil:
		return beat, errors.New(x.Bye.Why)
	case x.Opened == nil:
		return beat, errSequence
	case x.Opened.Fingerprint != model.Fingerprint:
		return beat, fmt.Errorf("its files of %s are others than the leader's", model.Name)
	}
	worker := m.offer.Worker
	m.offer = x.Opened.Offer
	m.offer.Worker = worker
	return beat, nil
}

// openTimeout bounds how long a worker may take to find and check a model's files.
const openTimeout = 2 * time.Minute

// answer waits for an answer of a generation: f reports whether it is the one, and its error.
func (m *member) answer(ctx context.Context, f func(*message) (ok bool, fault string)) error {
	for {
		select {
		case x := <-m.answers:
			ok, fault := f(x)
			if !ok {
				continue
			}
			if fault != "" {
				return fmt.Errorf("worker %s: %s", m.offer.Worker, fault)
			}
			return nil
		case <-m.lost:
			return &errLost{m.offer.Worker, m.cause}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// add makes a worker one of the members.
func (l *Leader) add(m *member) {
	l.mu.Lock()
	l.members = append(l.members, m)
	slices.SortStableFunc(l.members, func(a, b *member) int {
		return cmp.Or(cmp.Compare(a.offer.Index, b.offer.Index), cmp.Compare(a.offer.Worker, b.offer.Worker))
	})
	l.mu.Unlock()
	l.tell()
}

func (l *Leader) remove(m *member) {
	l.mu.Lock()
	l.members = slices.DeleteFunc(l.members, func(x *member) bool { return x == m })
	l.mu.Unlock()
	l.tell()
}

// tell wakes Run.
func (l *Leader) tell() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// present returns the workers that are here, at most as many as are wanted.
func (l *Leader) present() []*member {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.members[:min(len(l.members), l.opt.Workers)])
}

// Workers lists the members.
func (l *Leader) Workers() (list []Worker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.members {
		m.mu.Lock()
		list = append(list, Worker{m.offer, m.part, m.rtt, m.offset})
		m.mu.Unlock()
	}
	return list
}
