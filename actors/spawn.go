package actors

import (
	"fmt"

	"krater/actors/msg"
	"krater/actors/trace"
	"krater/kernels/device"
	"krater/scheduler"
	"krater/scheduler/dispatch"
	"krater/stages"
	"krater/stages/group"
	"krater/stages/link"
)

// spawn creates every actor, receivers before senders where that is possible. No actor sends before
// all addresses are known.
func (p *Pipeline) spawn(core *scheduler.Core) error {
	micro := p.scheduler.MicroBatches
	for _, r := range p.ranks {
		if r.accel != nil {
			r.queues = r.queuesFor(micro)
			if p.scheduler.Follow {
				r.queues = 1
			}
		}
		var err error
		if r.stream, err = p.stream(r); err != nil {
			return err
		}
		r.times = r.timesCopies()
		if r.poolSites, err = newPoolSites(r.pools, p.opt.Blueprint.Pools, r.poolLimits(), p.model.Hidden); err != nil {
			return err
		}
		if r.partition = p.opt.Partition; r.partition.Pools == 0 {
			r.partition = Partition(r.pools, p.model.MoE.Experts, p.opt.Blueprint.Pools)
		}
	}
	p.pairs = make([]*link.Pair, len(p.ranks))
	for i := 1; i < len(p.ranks); i++ {
		p.pairs[i] = &link.Pair{Deadline: p.opt.hopDeadline}
	}
	batches := make([]*msg.Batch, p.scheduler.Depth())
	for i := range batches {
		var err error
		if batches[i], err = p.newBatch(i); err != nil {
			return fmt.Errorf("batch %d of %d: %w", i+1, len(batches), err)
		}
	}
	for i := range p.opt.Blueprint.Groups {
		if g := &p.opt.Blueprint.Groups[i]; i > 0 && p.startsRank(i) {
			g.Link = batches[0].Ranks[g.Rank].Hop.Name()
		}
	}
	if p.opt.segment == nil {
		p.spawnSchedule(core, batches)
		if err := p.spawnEnds(); err != nil {
			return err
		}
	}
	p.spawnPools()
	if err := p.spawnHelper(batches); err != nil {
		return err
	}
	for i := range p.opt.Blueprint.Groups {
		if err := p.spawnGroup(i); err != nil {
			return err
		}
		p.routes.keep = append(p.routes.keep, p.routes.groups[i], p.routes.merges[i])
	}
	switch {
	case p.opt.segment != nil:
		return p.spawnSegment(batches)
	case p.opt.Remote != nil:
		return p.spawnRemote(batches)
	}
	return nil
}

// stream makes a stream of a rank's device.
func (p *Pipeline) stream(r *rank) (device.Stream, error) {
	s, err := r.Device.NewStream()
	if err == nil {
		p.streams = append(p.streams, s)
	}
	return s, err
}

// newBatch makes the i-th batch, with rows and streams on every rank and links between them.
func (p *Pipeline) newBatch(i int) (*msg.Batch, error) {
	queues := 1
	var rows []*stages.Rows
	for _, r := range p.ranks {
		queues = max(queues, r.queues)
		x, err := p.newRows(r)
		if err != nil {
			return nil, err
		}
		rows = append(rows, x)
	}
	step, states := stages.NewStep(p.model, p.lim, rows...), make([]*stages.State, len(rows))
	for j, x := range rows {
		states[j] = &stages.State{Step: step, Rows: x}
	}
	b := msg.NewBatch(p.opt.Blueprint.Pools, states...)
	b.Index, b.Queue = i, i%queues
	_, b.Head = p.opt.ends(len(p.ranks))
	for j, r := range p.ranks {
		if err := p.local(b, r, &b.Ranks[j]); err != nil {
			return nil, err
		}
		if j == 0 {
			continue
		}
		if err := p.connect(&b.Ranks[j-1], &b.Ranks[j], j, i == 0); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// newRows makes rows of a batch on a rank.
func (p *Pipeline) newRows(r *rank) (*stages.Rows, error) {
	x, err := stages.NewRows(r.Device, p.model, r.Limits, r.Head != nil)
	if err == nil {
		x.Histories = r.Histories
		p.rows = append(p.rows, x)
	}
	return x, err
}

// local makes what a batch has on a rank besides its rows.
func (p *Pipeline) local(b *msg.Batch, r *rank, l *msg.Local) (err error) {
	if r.accel != nil {
		if l.Stream, err = r.batchStream(b.Queue); l.Stream != nil {
			p.streams = append(p.streams, l.Stream)
		}
		if err != nil {
			return err
		}
	}
	if r.place == nil {
		return nil
	}
	if l.Mirror, err = r.place.NewMirror(); err != nil {
		return err
	}
	p.mirrors = append(p.mirrors, l.Mirror)
	if l.HostCalls = r.place.NewHostCalls(p.opt.Blueprint.Pools); l.HostCalls != nil {
		p.calls = append(p.calls, l.HostCalls)
	}
	return nil
}

// connect chooses the link between a batch's rows on two ranks by a test with patterns.
func (p *Pipeline) connect(from, to *msg.Local, rank int, first bool) error {
	kinds := p.opt.links
	if kinds == nil {
		kinds = link.Kinds()
	}
	var fallen []error
	var err error
	more := from.State.More()
	to.Hop, fallen, err = link.Open(p.pairs[rank], kinds, from.On(p.ranks[rank-1].stream), to.On(p.ranks[rank].stream), from.State.Room(), to.State.Room(), more)
	if to.Hop != nil {
		p.hops = append(p.hops, to.Hop)
	}
	if err != nil {
		return fmt.Errorf("rank %d to rank %d: %w", rank-1, rank, err)
	}
	for _, fault := range fallen {
		if first {
			p.log.Warn().Int("from", rank-1).Int("to", rank).Err(fault).Str("used", to.Hop.Name()).Msg("a kind of link between two ranks does not work")
		}
	}
	return nil
}

// spawnSchedule creates the actors that compute nothing.
func (p *Pipeline) spawnSchedule(core *scheduler.Core, batches []*msg.Batch) {
	r := &p.routes
	r.stream = p.actor("stream", trace.Stream, ownGoroutine, "host", func() node { return streamNode{} })
	r.schedule = p.actor("schedule", trace.Schedule, ownOrWorker, "host", func() node {
		n := newScheduleNode(core, p.ranks[0].stream, p.meters, p.host, batches, p.lim.Seqs)
		n.ahead, n.ranks, n.trace, n.renew = p.scheduler.Ahead, p.ranks, p.trace, p.renewRows
		n.placed = p.ranks[0].place != nil // a pipeline that runs ahead has one rank
		n.phases = make([]dispatch.Phase, len(p.ranks))
		n.shares = exchanging(p.ranks, &p.opt)
		if p.opt.Remote != nil {
			n.deadline = p.opt.Remote.Deadline
		}
		return n
	})
}

// spawnPools creates the actors that compute experts.
func (p *Pipeline) spawnPools() {
	r := &p.routes
	for i := range p.opt.Blueprint.Pools {
		name := fmt.Sprintf("pool%d", i)
		r.pools = append(r.pools, p.actor(name, trace.Experts, ownGoroutine, p.ranks[0].poolsName(), func() node {
			n := &poolNode{index: i}
			for _, r := range p.ranks {
				n.ranks = append(n.ranks, poolRank{
					site: r.poolSites[i], place: r.place, owner: r.partition.Owner, phases: p.newPoolPhases(name, r.poolSites[i].stream),
				})
			}
			for i, spec := range p.opt.Blueprint.Groups {
				n.groups = append(n.groups, poolGroup{p.group(i), spec.Rank})
			}
			return n
		}))
	}
}

// group is a layer group of the blueprint as it was loaded.
func (p *Pipeline) group(i int) *group.Group {
	groups, first := p.opt.Blueprint.Groups, i
	for first > 0 && groups[first-1].Rank == groups[i].Rank {
		first--
	}
	return p.rankOf(i).Groups[i-first]
}

// spawnEnds creates the actors before and after the layers.
func (p *Pipeline) spawnEnds() error {
	first, last := p.ranks[0], p.last()
	embedStream, err := p.stream(first)
	if err != nil {
		return err
	}
	headStream, err := p.stream(last)
	if err != nil {
		return err
	}
	ended := sampleNode{p.newStepEnds(last.index)}
	p.routes.sample = p.actor("sample", trace.Sample, anyWorker, last.name, func() node {
		n := ended
		return &n
	})
	p.routes.head = p.actor("head", trace.Head, anyWorker, last.name, func() node {
		n := &headNode{stage: last.Head, stream: headStream, keeps: func(b *msg.Batch) bool { return last.keeps(p.heat, b) }, placed: last.place != nil}
		if p.opt.Remote != nil { // its layers ended before the hop
			n.keeps = func(*msg.Batch) bool { return false }
		}
		return n
	})
	p.routes.embed = p.actor("embed", trace.Embed, anyWorker, first.name, func() node { return &embedNode{stage: first.Embed, stream: embedStream} })
	return nil
}

// spawnGroup creates the actors of a layer group.
func (p *Pipeline) spawnGroup(i int) error {
	r, routes := p.rankOf(i), &p.routes
	s, err := p.stream(r)
	if err != nil {
		return err
	}
	placed, err := placedOn(r.place)
	if err != nil {
		return err
	}
	name := func(kind string) string { return fmt.Sprintf("%s%d", kind, i) }
	routes.merges = append(routes.merges, p.actor(name("merge"), trace.Merge, ownGoroutine, "host", func() node { return newMergeNode() }))
	routes.splits = append(routes.splits, p.actor(name("split"), trace.Split, ownGoroutine, "host", func() node { return newSplitNode(r.partition, r.expertBytes) }))
	routes.groups = append(routes.groups, p.actor(name("group"), trace.Group, anyWorker, r.name, func() node {
		return &groupNode{
			index: i, rank: r.index, startsRank: p.startsRank(i), group: p.group(i), stream: s, placed: placed, help: p.help, count: p.countWork,
			lost:   func(cause error) { p.lose(r.index, r.name, cause) },
			inline: func(rows int, work []device.ExpertRows) bool { return p.inline(r, rows, work) },
		}
	}))
	routes.links = append(routes.links, nil)
	if i == 0 {
		return nil
	}
	var cross *crossing
	if p.startsRank(i) {
		before := p.ranks[r.index-1]
		cross = &crossing{stepEnd: p.newStepEnd(before), rank: r.index, selection: p.model.TakesSelection(p.opt.Blueprint.Groups[i].First), accelerators: before.accel != nil && r.accel != nil}
		if cross.from, err = p.stream(before); err != nil {
			return err
		}
		if cross.into, err = p.stream(r); err != nil {
			return err
		}
	}
	routes.links[i] = p.actor(name("link"), trace.Link, anyWorker, "host", func() node {
		n := &linkNode{to: i, width: 4 * p.model.Hidden, bytes: &p.stayed}
		if cross != nil {
			own := *cross
			n.cross = &own
		}
		return n
	})
	return nil
}

// actor spawns one node that computes on a device.
func (p *Pipeline) actor(name string, kind trace.Kind, b affinity, dev string, fresh func() node) address {
	return p.host.spawn(name, b, p.newShell(name, kind, p.trace.Device(dev), fresh))
}
