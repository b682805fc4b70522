package actors

import (
	"slices"

	"krater/actors/engine"
	"krater/actors/msg"
	"krater/actors/placement"
	"krater/actors/trace"
	"krater/kernels/device"
	"krater/scheduler/dispatch"
	"krater/stages"
	"krater/stages/group"
)

// placed runs a group's routed experts where they lie on two devices: the group enqueues the
// device's part, and only the host's part goes to split, pools and merge. nil: all of them are
// where the rest of the group is.
type placed struct {
	*placement.Placement
	host device.Stream // of the host device, for this group alone
}

// placedOn makes what a group needs of a placement, nil for none.
func placedOn(p *placement.Placement) (*placed, error) {
	if p == nil {
		return nil, nil
	}
	s, err := p.Host().NewStream()
	return &placed{p, s}, err
}

// fetch enqueues the copy of the rows that the host's experts may take; the
// group then waits for it along with the router's choice.
func (p *placed) fetch(s device.Stream, b *msg.Batch) {
	if p != nil && p.Shares(b.State.Total()) {
		b.Mirror.Fetch(s, b.State)
	}
}

// parts returns the layers at which all pieces of b stop before they go on.
func (p *placed) parts(b *msg.Batch) []int {
	if p == nil {
		return nil
	}
	return p.Parts(b.State.Total())
}

// ahead begins the copies that a batch needs first when it enters the rank.
func (p *placed) ahead(b *msg.Batch) {
	if p == nil {
		return
	}
	if err := p.Ahead(b.State.Total(), b.State.Timing); err != nil {
		panic(err)
	}
}

// whole reports whether a batch's step runs without a wait in the middle.
func (p *placed) whole(b *msg.Batch) bool {
	return p != nil && p.Whole(b.State.Total(), b.Probe() != nil)
}

// usesHost reports whether the host takes part in the middle of a step, so that the step has to
// wait for it.
func usesHost(ranks []*rank, b *stages.Step) bool {
	return placements(ranks, func(p *placement.Placement) bool { return !p.Whole(len(b.Tokens), b.Watched) })
}

// links reports whether a rank copies experts for itself in the middle of a step.
func links(ranks []*rank, b *stages.Step) bool {
	return placements(ranks, func(p *placement.Placement) bool { return p.Links(len(b.Tokens), b.Watched) })
}

// overtaken reports whether the host computes experts of a batch of that many rows between two
// layers. A group works on other batches meanwhile, and these may finish first.
func overtaken(ranks []*rank, rows int) bool {
	return placements(ranks, func(p *placement.Placement) bool { return !p.Whole(rows, false) && p.Leaves(p.Phase(rows)) })
}

// callsHost reports whether the device calls the host in the middle of a step that still runs
// without a wait.
func (r *rank) callsHost(b *stages.Step) bool {
	return r.place != nil && r.place.Asks(len(b.Tokens), b.Watched)
}

// mix enqueues all of a layer's experts.
func (p *placed) mix(s device.Stream, g *group.Group, b *msg.Batch, layer int) {
	if p == nil {
		g.Mix(s, b.State, layer, b.Probe())
		return
	}
	if err := p.Mix(s, g, b.State, layer, b.HostCalls, b.Probe()); err != nil {
		panic(err)
	}
}

// drain waits for the experts that the device has been given.
func (p *placed) drain() {
	if p != nil {
		_ = p.Settle()
	}
}

// begin enqueues the device's part of work and returns the host's, which several streams may run.
func (p *placed) begin(s device.Stream, g *group.Group, b *msg.Batch, layer int, work []device.ExpertRows) []device.ExpertRows {
	if p == nil {
		return work
	}
	var err error
	if b.Host, err = p.Run(s, g, b.State, layer, work, b.Host[:0]); err != nil {
		panic(err)
	}
	if len(b.Host) > 0 {
		p.Prepare(p.host, b.Mirror, layer)
		if err := p.host.Synchronize(); err != nil {
			panic(err)
		}
	}
	return b.Host
}

// trace records, within the event of the current message, how long a layer's attention took until
// the router's choice was known, and how long it took to enqueue the device's part of the experts
// with its copies.
func (p *placed) trace(c *turn, layer int, began, chosen int64) {
	if p == nil {
		return
	}
	e := *c.event
	e.Layer, e.Enqueued = int16(layer), 0
	e.Kind, e.Started, e.Ended = trace.Attention, began, chosen
	c.ring.Record(&e)
	e.Kind, e.Started, e.Ended = trace.Split, chosen, c.now()
	c.ring.Record(&e)
}

// compute runs work that is left for the group itself.
func (p *placed) compute(s device.Stream, g *group.Group, b *msg.Batch, layer int, work []device.ExpertRows) {
	switch {
	case p == nil:
		g.Experts(s, b.State, layer, work)
	case len(work) > 0:
		p.Compute(p.host, b.Mirror.State(), layer, work)
		if err := p.host.Synchronize(); err != nil {
			panic(err)
		}
		p.back(s, b)
	}
}

// back enqueues the copy of what the host computed for the current layer.
func (p *placed) back(s device.Stream, b *msg.Batch) {
	if p != nil && len(b.Host) > 0 {
		b.Mirror.Return(s, b.State, b.Host)
	}
}

// tell adds the counters of the devices and placements to the pipeline's figures.
func (p *Pipeline) tell(s *engine.Stats) {
	p.mu.Lock()
	told := p.told
	p.mu.Unlock()
	if told != nil {
		count(s, told)
		return
	}
	count(s, &p.base)
	if h := p.help; h != nil {
		count(s, &engine.Stats{ExpertsComputed: map[string]uint64{h.name: h.computed.Load()}})
	}
	for _, r := range p.ranks {
		s.StepGraphs += r.Device.Memory().Graphs
		if r.place == nil {
			continue
		}
		for phase := range dispatch.Phases {
			x := r.place.Stats(phase)
			count(s, &engine.Stats{
				ExpertsComputed: map[string]uint64{"cpu": uint64(x.Host), r.name: uint64(x.Hits + x.Misses)},
				ExpertCaches: []engine.ExpertCache{{Strategy: r.place.Strategy(phase).Name(), Rank: r.name, Hits: uint64(x.Hits), Misses: uint64(x.Misses),
					Host: uint64(x.Host), Copies: uint64(x.Copies), CopiedBytes: uint64(x.CopiedBytes)}},
			})
		}
	}
}

// count adds the counts of experts in x to s.
func count(s, x *engine.Stats) {
	for name, n := range x.ExpertsComputed {
		s.ExpertsComputed[name] += n
	}
	for _, add := range x.ExpertCaches {
		i := slices.IndexFunc(s.ExpertCaches, func(c engine.ExpertCache) bool { return c.Strategy == add.Strategy && c.Rank == add.Rank })
		if i < 0 {
			s.ExpertCaches = append(s.ExpertCaches, add)
			continue
		}
		c := &s.ExpertCaches[i]
		c.Hits += add.Hits
		c.Misses += add.Misses
		c.Host += add.Host
		c.Copies += add.Copies
		c.CopiedBytes += add.CopiedBytes
	}
}

// figures are the counters that tell adds, for a pipeline that takes over.
func (p *Pipeline) figures() engine.Stats {
	s := engine.Stats{ExpertsComputed: map[string]uint64{}}
	p.tell(&s)
	s.StepGraphs = 0
	return s
}
