package actors

import (
	"fmt"

	"krater/actors/msg"
	"krater/scheduler/files"
	"krater/stages/sample"
)

// Suspended is a request that a pipeline has left open for the next.
type Suspended = msg.Suspended

// RankError reports that a rank of a pipeline is lost: it cannot compute batches any more.
type RankError struct {
	Rank int
	Name string // of its device or machine
	Err  error
}

func (e *RankError) Error() string {
	return fmt.Sprintf("rank %d (%s) is lost: %v", e.Rank, e.Name, e.Err)
}

// Unwrap returns the cause.
func (e *RankError) Unwrap() error { return e.Err }

// lose ends the pipeline, because a rank is lost and with it every later batch. With Options.Replay
// the requests stay open for the next pipeline.
func (p *Pipeline) lose(rank int, name string, cause error) {
	lost := fmt.Errorf("%w: %w", errFatal, &RankError{rank, name, cause})
	p.CountLoss()
	if !p.opt.Replay {
		p.fail(lost)
		return
	}
	p.mu.Lock()
	first := p.failure == nil
	if first {
		p.failure = lost
		close(p.failed)
	}
	p.mu.Unlock()
	if !first {
		return
	}
	p.log.Error().Err(lost).Msg("a rank is lost")
	p.requests.suspend(p, p.host.now())
	p.quitHostCalls()
	p.host.send(p.routes.schedule, &msg.Suspend{})
}

// CountLoss counts a rank of the pipeline as lost. Only the first call counts. The pipeline counts the losses that it notices itself.
func (p *Pipeline) CountLoss() { p.loss.Do(func() { p.meters.lost.Add(1) }) }

// Suspend ends all actors without ending requests, and returns these: first those that had started.
// Tokens of steps in flight are not among their tokens; they are computed again with the same draws,
// so the answers are the same. Readers of answers notice a pause. Requests that are submitted or
// cancelled from now on wait for the next pipeline (Options.Before, Adopt), or until Abandon. A pipeline
// that has failed for another reason than a lost rank, or is closed, has no requests.
//
// Afterwards the pipeline is closed, and the ranks may be freed. Close returns the error of closing it.
func (p *Pipeline) Suspend() (list []*Suspended) {
	p.closing.Do(func() {
		p.requests.suspend(p, p.host.now())
		list = p.collect()
		told := p.figures()
		p.closeError = p.halt()
		p.mu.Lock()
		p.told = &told // what is counted elsewhere may be gone by now
		p.mu.Unlock()
	})
	return list
}

// collect asks the schedule actor for its requests, when their readers have all that was computed.
func (p *Pipeline) collect() []*Suspended {
	delivered := make(chan struct{})
	p.host.send(p.routes.schedule, &msg.Suspend{Delivered: delivered})
	select {
	case <-delivered: // and the schedule actor has been told of answers that ended there
	case <-p.dead:
		return nil
	}
	c := &msg.Collect{Suspend: msg.Suspend{Delivered: make(chan struct{})}}
	p.host.send(p.routes.schedule, c)
	select {
	case <-c.Delivered:
	case <-p.dead:
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return nil
	}
	p.over = true // nothing ends the requests any more
	return c.List
}

// Adopt makes the pipeline serve the requests of its gateway, and takes over the suspended ones.
func (p *Pipeline) Adopt(list []*Suspended) {
	m := &msg.Adopt{}
	for _, s := range list {
		own := *s
		sub := *s.Submit
		own.Submit = &sub
		if own.Fault == nil {
			sub.Sampler, own.Fault = again(s.Submit, s.Answer)
		}
		m.List = append(m.List, &own)
	}
	p.meters.replays.Add(uint64(len(list)))
	p.meters.room(p.lim.Blocks)
	p.host.send(p.routes.schedule, m)
	for _, id := range p.requests.serve(p) {
		p.requests.cancel(id)
	}
}

// again makes the sampler of a request that goes on: the old one may have made choices that
// do not count.
func again(m *msg.Submit, answer []int32) (_ *sample.Sequence, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the sampler: %w", files.Caught(r))
		}
	}()
	return m.Again(answer)
}

// Abandon ends the requests of a suspended pipeline that no other will take over, and refuses new ones.
func (p *Pipeline) Abandon(cause error) {
	p.mu.Lock()
	p.failure = fmt.Errorf("%w: %w", errFatal, cause)
	p.mu.Unlock()
	p.requests.serve(p)
	p.abort(cause)
}
