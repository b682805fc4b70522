package actors

import (
	"cmp"
	"fmt"

	"krater/actors/msg"
	"krater/actors/trace"
	"krater/kernels/device"
	"krater/scheduler"
	"krater/stages"
	"krater/stages/load"
)

// spawn creates every actor, the receivers before their senders where that is
// possible; nobody sends before all addresses are known.
func (p *Pipeline) spawn(dev device.Device, core *scheduler.Core) error {
	lim, bp := p.parts.Limits, p.opt.Blueprint
	p.device, p.poolDevice = dev.Name(), dev.Name()
	p.memory = dev.Memory
	if device.LayoutOf(dev) != nil {
		p.homes = p.lanes(dev)
	}
	batches := make([]*msg.Batch, p.opt.Scheduler.Depth())
	for i := range batches {
		st, err := stages.NewState(dev, p.parts.Config, lim)
		if err != nil {
			return fmt.Errorf("batch %d of %d: %w", i+1, len(batches), err)
		}
		st.Histories = p.parts.Histories
		p.states = append(p.states, st)
		batches[i] = msg.NewBatch(st, bp.Pools)
		if device.LayoutOf(dev) != nil {
			batches[i].Home = i % p.lanes(dev)
			if batches[i].Stream, err = p.batchStream(dev, batches[i].Home); err != nil {
				return fmt.Errorf("batch %d of %d: %w", i+1, len(batches), err)
			}
			p.streams = append(p.streams, batches[i].Stream)
			if err := reserve(dev, batches[i].Stream, p.parts); err != nil {
				return fmt.Errorf("batch %d of %d: %w", i+1, len(batches), err)
			}
		}
		if p.opt.Placement != nil {
			if batches[i].Mirror, err = p.opt.Placement.NewMirror(); err != nil {
				return fmt.Errorf("batch %d of %d: %w", i+1, len(batches), err)
			}
			p.mirrors = append(p.mirrors, batches[i].Mirror)
			if batches[i].Letters = p.opt.Placement.NewLetters(bp.Pools); batches[i].Letters != nil {
				p.letters = append(p.letters, batches[i].Letters)
			}
		}
	}
	var streams []device.Stream
	for range 3 + len(bp.Groups) {
		s, err := dev.NewStream()
		if err != nil {
			return err
		}
		streams = append(streams, s)
		p.streams = append(p.streams, s)
	}
	pools := dev // where the experts of pools compute
	if p.opt.Placement != nil {
		pools = p.opt.Placement.Host()
		p.poolDevice = pools.Name()
		lim.QuantGroup = p.opt.Placement.QuantGroup() // rows are integers there, whatever the device takes
	}
	var err error
	if p.seats, err = newSeats(pools, bp.Pools, lim, p.parts.Config.Hidden); err != nil {
		return err
	}
	next := func() device.Stream {
		s := streams[0]
		streams = streams[1:]
		return s
	}
	p.times = p.timesCopies(streams[0])
	r := &p.routes
	r.stream = p.actor("stream", trace.Stream, ownGoroutine, func() node { return streamNode{} })
	scheduleStream := next()
	r.schedule = p.actor("schedule", trace.Schedule, crewGuest, func() node {
		n := newScheduleNode(core, scheduleStream, p.meters, p.host, batches, lim.Seqs)
		n.ahead, n.experts, n.trace, n.times = p.opt.Scheduler.Ahead, p.opt.Placement, p.trace, p.times
		return n
	})
	var devices []*trace.Ring
	for home := range p.deviceLanes() {
		devices = append(devices, p.trace.Ring(p.deviceRing(home)))
	}
	var copies copyLanes
	if p.times {
		copies.copies = p.trace.Ring(trace.CopyLane(p.device))
		for _, r := range devices {
			copies.blocks = append(copies.blocks, p.trace.Ring(trace.KVLane(r.Name())))
		}
	}
	r.sample = p.actor("sample", trace.Sample, crewMember, func() node {
		return &sampleNode{heat: p.heat, devices: devices, copies: copies, share: cmp.Or(p.opt.LapShare, lapShare)}
	})
	headStream := next()
	r.head = p.actor("head", trace.Head, crewMember, func() node { return &headNode{stage: p.parts.Head, stream: headStream, keeps: p.keeps} })
	partition := p.opt.Partition
	if partition.Pools == 0 {
		partition = Partition(pools, p.parts.Config.MoE.Experts, bp.Pools)
	}
	p.partition = partition
	for i, where := range p.seats {
		r.pools = append(r.pools, p.actor(fmt.Sprintf("pool%d", i), trace.Experts, ownGoroutine, func() node {
			return &poolNode{
				index: i, groups: p.parts.Groups, seat: where, place: p.opt.Placement, owner: partition.Owner,
				phases: p.newPoolPhases(fmt.Sprintf("pool%d", i), where.stream),
			}
		}))
	}
	for i, g := range p.parts.Groups {
		r.merges = append(r.merges, p.actor(fmt.Sprintf("merge%d", i), trace.Merge, ownGoroutine, func() node { return newMergeNode() }))
		r.splits = append(r.splits, p.actor(fmt.Sprintf("split%d", i), trace.Split, ownGoroutine, func() node { return newSplitNode(partition, p.expertBytes) }))
		s := next()
		placed, err := placedOn(p.opt.Placement)
		if err != nil {
			return err
		}
		r.groups = append(r.groups, p.actor(fmt.Sprintf("group%d", i), trace.Group, crewMember, func() node {
			return &groupNode{index: i, group: g, stream: s, placed: placed, inline: p.inline, count: p.countWork, lost: p.lose}
		}))
		r.links = append(r.links, nil)
		if i > 0 {
			r.links[i] = p.actor(fmt.Sprintf("link%d", i), trace.Link, crewMember, func() node {
				return &linkNode{to: i, width: 4 * p.parts.Config.Hidden, bytes: &p.linkBytes}
			})
		}
	}
	embedStream := next()
	r.embed = p.actor("embed", trace.Embed, crewMember, func() node { return &embedNode{stage: p.parts.Embed, stream: embedStream} })
	return nil
}

// lanes is how many orders of steps the device runs at the same time: one for each
// micro-batch, where layers have room for so many and experts stay where they are.
func (p *Pipeline) lanes(dev device.Device) int {
	_, several := dev.(device.LaneStreamer)
	if !several || p.parts.Limits.Lanes < p.opt.Scheduler.Lanes || p.opt.Placement != nil && !p.opt.Placement.Steady() {
		return 1
	}
	return p.opt.Scheduler.Lanes
}

// batchStream is a stream for batches of a lane.
func (p *Pipeline) batchStream(dev device.Device, lane int) (device.Stream, error) {
	if p.lanes(dev) == 1 {
		return dev.NewStream()
	}
	return dev.(device.LaneStreamer).NewLaneStream(lane)
}

// reserve gives a batch's stream the scratch memory that was planned.
func reserve(dev device.Device, s device.Stream, parts *load.Parts) error {
	if r, ok := s.(device.Submitter); ok {
		return r.Reserve(device.LayoutOf(dev).ScratchBytes(load.StepSizes(parts.Config, parts.Limits)))
	}
	return nil
}

// actor spawns one node.
func (p *Pipeline) actor(name string, kind trace.Kind, b berth, fresh func() node) address {
	return p.host.spawn(name, b, p.newShell(name, kind, p.trace.Device(p.deviceOf(kind)), fresh))
}
