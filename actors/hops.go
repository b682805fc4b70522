package actors

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"krater/actors/engine"
	"krater/actors/hop"
	"krater/actors/msg"
	"krater/actors/trace"
	"krater/scheduler/dispatch"
	"krater/stages/model"
)

// Remote describes the layers of a model after those of a pipeline's ranks. Workers compute them: other
// processes, each with a Segment. The first rank then has the embedding and the head. The pipeline closes the
// connections when it ends.
type Remote struct {
	Out   hop.Conn   // to the first worker
	In    hop.Conn   // from the last one
	Sides []hop.Conn // to each worker, for batches that fail and are abandoned
	// Deadline is the longest time in which the workers may return a step, or abandon one; 0: workersDeadline. A late step
	// is repeated. If a second one is late, or a worker does not answer, the rank is lost (RankError).
	Deadline time.Duration
	// Accelerators says that a worker computes on an accelerator.
	Accelerators bool
	// Workers describes the workers in the order of their layers; nil: not known.
	Workers []Worker
}

// Worker is a process behind a pipeline's ranks. Its functions are safe for concurrent use.
type Worker struct {
	Name     string          // for people
	Topology engine.Topology // of its segment
	// Ask fetches the events that the worker's actors have recorded (trace.Remote).
	Ask func(from map[string]uint64, detail bool) (*trace.Told, error)
	// Ahead returns the time of the worker's trace clock less that of this process; nil: both are the same clock.
	Ahead func() time.Duration
	// Hop returns the cost of the hop to the worker since the pipeline started.
	Hop func() engine.Link
}

// workersDeadline is the default of Remote.Deadline: more than a pass over a long prompt takes on a CPU.
const workersDeadline = 2 * time.Minute

// errHop reports a frame that the receiver did not expect.
var errHop = errors.New("a frame that was not expected")

// check checks the options of a pipeline whose ranks end before a layer of a model, and completes them.
func (r *Remote) check(end int, cfg *model.Config) error {
	switch {
	case end >= len(cfg.Layers) || len(cfg.Layers)-end < len(r.Sides):
		return fmt.Errorf("%d workers for the %d layers behind layer %d", len(r.Sides), len(cfg.Layers)-end, end-1)
	case len(r.Workers) > 0 && len(r.Workers) != len(r.Sides):
		return fmt.Errorf("%d workers are described, of %d", len(r.Workers), len(r.Sides))
	case r.Out == nil || r.In == nil || len(r.Sides) == 0:
		return errors.New("remote layers without a connection out, in, or to a worker")
	}
	if r.Deadline == 0 {
		r.Deadline = workersDeadline
	}
	return nil
}

// peers are the connections of a pipeline to other processes.
type peers struct {
	list     []*hopEnd
	in       *hopEnd  // on the leader: from the last worker
	unfollow []func() // end the records of workers
	readers  sync.WaitGroup
	ending   atomic.Bool // they are closed on purpose
}

// hopEnd is a connection with its counters.
type hopEnd struct {
	hop.Conn
	rank                   int // that the pipeline loses with it
	received, takenBytes   atomic.Uint64
	way                    atomic.Int64  // time from sending frames until they were taken, ns
	late, failures, missed atomic.Uint64 // frames of steps that were given up; steps that failed, or did not come back in time
}

// cost adds up what has come from the peer.
func (e *hopEnd) cost() engine.Link {
	return engine.Link{
		Hops: e.received.Load(), Bytes: e.takenBytes.Load(), Faults: e.late.Load() + e.failures.Load() + e.missed.Load(), Time: time.Duration(e.way.Load()),
	}
}

// hopCosts adds up what hops have cost, each by the ranks that it connects.
func (p *Pipeline) hopCosts() (list []engine.Link) {
	o := p.opt.Remote
	if o == nil || p.peers.in == nil {
		return nil
	}
	here := len(p.ranks)
	for i := range o.Workers {
		l := o.Workers[i].Hop()
		l.Kind = fmt.Sprintf("rank%d to rank%d", here+i-1, here+i)
		list = append(list, l)
	}
	l := p.peers.in.cost()
	l.Kind = fmt.Sprintf("rank%d to rank0", here+len(o.Sides)-1)
	return append(list, l)
}

// rankName returns the name of a worker's rank in the trace.
func (p *Pipeline) rankName(worker int) string { return fmt.Sprintf("rank%d", len(p.ranks)+worker) }

// followWorkers adds the records of workers to the pipeline's.
func (p *Pipeline) followWorkers() {
	if p.opt.Remote == nil {
		return
	}
	for i, w := range p.opt.Remote.Workers {
		p.peers.unfollow = append(p.peers.unfollow, p.trace.Follow(&trace.Remote{Process: p.rankName(i), Ask: w.Ask}))
	}
}

// hop adds a connection whose loss is that of a rank.
func (p *Pipeline) hop(c hop.Conn, rank int) *hopEnd {
	e := &hopEnd{Conn: c, rank: rank}
	p.peers.list = append(p.peers.list, e)
	return e
}

// cut is the end of a connection.
type cut struct{ err error }

// read hands what comes over a connection to an actor, until the connection ends. Frames of other kinds end it.
func (p *Pipeline) read(e *hopEnd, to address, kinds ...hop.Kind) {
	p.peers.readers.Go(func() {
		for {
			f, err := e.Receive()
			if err == nil && !oneOf(f.Kind, kinds) {
				err = fmt.Errorf("%w: of kind %d", errHop, f.Kind)
				f.Release()
			}
			if err != nil {
				e.Close()
				if !p.peers.ending.Load() {
					p.host.send(to, &cut{err})
				}
				return
			}
			if f.Kind == hop.Step {
				p.opt.Turn(true)
			}
			e.received.Add(1)
			e.takenBytes.Add(uint64(f.Bytes()))
			p.host.send(to, f)
		}
	})
}

func oneOf(k hop.Kind, kinds []hop.Kind) bool {
	for _, x := range kinds {
		if x == k {
			return true
		}
	}
	return false
}

// loseHop ends the pipeline, because a connection is lost or its peer does not do its part.
func (p *Pipeline) loseHop(e *hopEnd, cause error) {
	if !p.peers.ending.Load() {
		p.lose(e.rank, e.Name(), cause)
	}
}

// closeHops ends the connections, so that no actor waits for a peer.
func (p *Pipeline) closeHops() {
	p.peers.ending.Store(true)
	for _, stop := range p.peers.unfollow {
		stop()
	}
	for _, e := range p.peers.list {
		e.Close()
	}
}

// spawnOut creates the actor that sends batches to the next member.
func (p *Pipeline) spawnOut(to *hopEnd, n outNode) error {
	r := p.ranks[len(p.ranks)-1]
	from, err := p.stream(r)
	if err != nil {
		return err
	}
	n.stepEnds, n.from, n.to, n.lost, n.turn = p.newStepEnds(r.index), from, to, p.loseHop, p.opt.Turn
	n.selection = !n.back && p.model.TakesSelection(r.end())
	p.routes.out = p.actor("out", trace.Link, anyWorker, "host", func() node {
		own := n
		return &own
	})
	return nil
}

// spawnRemote creates the leader's actors at its hops.
func (p *Pipeline) spawnRemote(batches []*msg.Batch) error {
	o := p.opt.Remote
	here, last := len(p.ranks), len(p.ranks)+len(o.Sides)-1
	if err := p.spawnOut(p.hop(o.Out, here), outNode{leader: true}); err != nil {
		return err
	}
	s, err := p.stream(p.ranks[0])
	if err != nil {
		return err
	}
	in := p.hop(o.In, last)
	p.peers.in = in
	var ahead func() time.Duration
	if len(o.Workers) > 0 {
		ahead = o.Workers[len(o.Workers)-1].Ahead
	}
	p.routes.in = p.actor("in", trace.Link, anyWorker, "host", func() node {
		return &inNode{away: make([]*msg.Batch, len(batches)), from: in, ahead: ahead, stream: s, deadline: o.Deadline, lost: p.loseHop}
	})
	var sides []*hopEnd
	for i, c := range o.Sides {
		side := p.hop(c, here+i)
		sides = append(sides, side)
		p.routes.sides = append(p.routes.sides, p.actor(fmt.Sprintf("side%d", i), trace.Control, ownGoroutine, "host", func() node {
			return &sideNode{batches: batches, to: side, deadline: o.Deadline, lost: p.loseHop, asked: make([]forgetting, len(batches))}
		}))
	}
	p.routes.keep = append(p.routes.keep, p.routes.sides...)
	p.read(in, p.routes.in, hop.Step)
	for i, side := range sides {
		p.read(side, p.routes.sides[i], hop.Failed, hop.Forgotten)
	}
	return nil
}

// spawnSegment creates a worker's actors at its hops.
func (p *Pipeline) spawnSegment(batches []*msg.Batch) error {
	o := p.opt.segment
	first, end := p.ranks[0], p.ranks[len(p.ranks)-1].end()
	if err := p.spawnOut(p.hop(o.Out, 0), outNode{back: end == len(p.model.Layers)}); err != nil {
		return err
	}
	in, side := p.hop(o.In, 0), p.hop(o.Side, 0)
	p.peers.in = in
	p.routes.schedule = p.actor("keeper", trace.Link, ownOrWorker, "host", func() node {
		return &keeperNode{
			sender: sender{batches: batches, ranks: p.ranks, stream: first.stream, phases: make([]dispatch.Phase, len(p.ranks))},
			trace:  p.trace, alarm: p.host.alarm, renew: p.renewRows, in: in, side: side, selection: p.model.TakesSelection(first.Groups[0].First), kept: make([]keeping, len(batches)), failed: p.loseHop,
		}
	})
	p.read(in, p.routes.schedule, hop.Step)
	p.read(side, p.routes.schedule, hop.Forget)
	return nil
}
