package actors

import (
	"context"
	"errors"
	"time"

	"krater/actors/msg"
)

// errClosed is the cause of requests that Close ends before their answer is complete.
var errClosed = errors.New("the pipeline is closed")

// Err returns the fatal failure, or nil.
func (p *Pipeline) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failure
}

// Failed returns a channel that is closed when the pipeline has failed for good.
func (p *Pipeline) Failed() <-chan struct{} { return p.failed }

// fail ends every open request and refuses new ones.
func (p *Pipeline) fail(cause error) {
	p.mu.Lock()
	if p.over {
		p.mu.Unlock()
		return
	}
	p.over = true
	if p.failure == nil {
		p.failure = cause
		close(p.failed)
	}
	if p.serving == p && p.suspended { // they cannot be collected
		p.requests.wake(p)
	}
	p.mu.Unlock()
	p.log.Error().Err(cause).Msg("pipeline failed")
	p.abort(cause)
	if p.opt.segment != nil {
		p.closeHops() // the others learn of it
	}
	p.quitHostCalls()
	// What still can come to its end does so without computing.
	p.host.send(p.routes.schedule, &msg.Drain{Cancel: true})
	close(p.dead)
}

// Drain refuses new requests and waits for the running ones. If ctx ends first, it cancels them.
func (p *Pipeline) Drain(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	done := make(chan struct{})
	p.host.send(p.routes.schedule, &msg.Drain{Done: done})
	select {
	case <-done:
		return p.Err() // a pipeline that has failed may still come to rest
	case <-p.failed:
		return p.Err()
	case <-p.halted:
		return nil
	case <-ctx.Done():
	}
	cancelled := make(chan struct{})
	p.host.send(p.routes.schedule, &msg.Drain{Cancel: true, Done: cancelled})
	grace := time.NewTimer(drainGrace)
	defer grace.Stop()
	select {
	case <-cancelled:
	case <-p.failed:
	case <-p.halted:
	case <-grace.C:
		return errors.New("the pipeline did not come to rest")
	}
	if err := p.Err(); err != nil {
		return err
	}
	return ctx.Err()
}

// drainGrace is the longest time in which a step may return after its requests were cancelled.
const drainGrace = 30 * time.Second

// Close drains without waiting for answers and ends every actor. Further calls wait for the first
// and return what it returned.
func (p *Pipeline) Close() error {
	p.closing.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		p.mu.Lock()
		if p.serving == p && p.suspended { // a rank is lost, and no other pipeline follows
			p.requests.wake(p)
		}
		p.mu.Unlock()
		err := p.Drain(ctx)
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		p.closeError = errors.Join(err, p.halt())
	})
	return p.closeError
}

// quitHostCalls ends steps whose host calls may be left without a pool that answers them.
func (p *Pipeline) quitHostCalls() {
	for _, l := range p.calls {
		l.Quit()
	}
}

// halt stops the actors and frees what the pipeline allocated.
func (p *Pipeline) halt() error {
	p.quitHostCalls()
	p.closeHops()
	err := p.host.halt()
	p.peers.readers.Wait()
	p.abort(errClosed) // nothing is left here unless the pipeline did not come to rest
	close(p.halted)
	if err != nil {
		return err // an actor is stuck: its goroutine still holds what would be freed
	}
	for _, h := range p.hops {
		h.Close()
	}
	p.help.close()
	for _, s := range p.streams {
		s.Close()
	}
	for _, r := range p.rows {
		r.Close()
	}
	for _, m := range p.mirrors {
		m.Close()
	}
	for _, l := range p.calls {
		l.Close()
	}
	for _, r := range p.ranks {
		closePoolSites(r.poolSites)
	}
	return nil
}
