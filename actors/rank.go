package actors

import (
	"errors"
	"fmt"

	"krater/actors/msg"
	"krater/actors/placement"
	"krater/actors/trace"
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/expert"
	"krater/stages/load"
)

// rank is what a pipeline has on one of its ranks.
type rank struct {
	load.Rank
	accel device.Accelerator // the device as one; nil: it is none
	index int
	name  string               // of the device, unique among ranks
	place *placement.Placement // of its routed experts; nil: they are with the rest

	resident    bool // the device finds the routed experts by itself
	expertBytes int  // of one routed expert, 0 without
	homes       int  // orders of steps of a device that computes apart from the host; 0 elsewhere
	times       bool // the device tells what copies take

	stream    device.Stream // the schedule actor's
	pools     device.Device // where the expert pools compute
	seats     []seat        // of the pools
	partition expert.Partition
}

// newRanks checks that ranks are one model, cut one rank after the other, with equal limits for
// what the scheduler decides.
func newRanks(list []load.Rank, opt *Options) ([]*rank, error) {
	if len(list) == 0 {
		return nil, errors.New("a pipeline without a rank")
	}
	first, last := list[0].Parts, list[len(list)-1].Parts
	if first.Embed == nil || last.Head == nil {
		return nil, errors.New("the first rank has no embedding, or the last one no head")
	}
	var ranks []*rank
	for i, r := range list {
		a, b := r.Limits, first.Limits
		a.Window, a.QuantGroup, b.Window, b.QuantGroup = 0, 0, 0, 0
		if a != b {
			return nil, fmt.Errorf("rank %d has limits %+v, the first one %+v", i, a, b)
		}
		if (r.Embed != nil) != (i == 0) || (r.Head != nil) != (i == len(list)-1) {
			return nil, fmt.Errorf("rank %d of %d: embedding %t, head %t", i, len(list), r.Embed != nil, r.Head != nil)
		}
		n := &rank{Rank: r, accel: r.Device.Accelerator(), index: i, name: r.Device.Name(), resident: findsExperts(r.Parts), pools: r.Device}
		for _, other := range ranks {
			if other.name == n.name {
				n.name = fmt.Sprintf("%s.rank%d", r.Device.Name(), i)
			}
		}
		if i < len(opt.Placements) && opt.Placements[i] != nil {
			n.place = opt.Placements[i]
			n.pools = n.place.Host()
		}
		n.expertBytes = expertBytes(r.Parts, n.place)
		ranks = append(ranks, n)
	}
	return ranks, nil
}

// poolsName names where the expert pools compute.
func (r *rank) poolsName() string {
	if r.pools == r.Device {
		return r.name
	}
	return r.pools.Name()
}

// last is the rank with the head.
func (p *Pipeline) last() *rank { return p.ranks[len(p.ranks)-1] }

// of is the rank of a layer group.
func (p *Pipeline) of(group int) *rank { return p.ranks[p.opt.Blueprint.Groups[group].Rank] }

// leads reports whether a layer group is the first of its rank.
func (p *Pipeline) leads(group int) bool {
	specs := p.opt.Blueprint.Groups
	return group == 0 || specs[group-1].Rank != specs[group].Rank
}

// poolLimits are those of rows that the rank's pools read.
func (r *rank) poolLimits() stages.Limits {
	lim := r.Limits
	if r.place != nil {
		lim.QuantGroup = r.place.QuantGroup() // rows are integers there, whatever the device takes
	}
	return lim
}

// residents are the experts of a layer that lie on the rank, nil where they are not placed.
func (r *rank) residents(layer int) []bool {
	if r.place == nil {
		return nil
	}
	return r.place.Resident(nil, layer)
}

// has reports whether a layer is on the rank.
func (r *rank) has(layer int) bool {
	return layer >= r.Groups[0].First && layer < r.Groups[len(r.Groups)-1].Last
}

// keeps reports whether a step of a batch that the meter counts is kept by the device
// to itself there (group.Resident, placement.Whole), so that no split sees it: what routers
// chose is then copied, all layers at once, behind the step, which so may be a repeated one, and
// counted when that has ended.
func (r *rank) keeps(h *heatMeter, b *msg.Batch) bool {
	if b.Stream == nil || !h.counts(b.ID) {
		return false
	}
	if r.place != nil {
		return r.place.Whole(b.Step.Total(), b.Probe() != nil)
	}
	return r.resident
}

// placements reports whether f holds for a rank whose routed experts are placed.
func placements(ranks []*rank, f func(*placement.Placement) bool) bool {
	for _, r := range ranks {
		if r.place != nil && f(r.place) {
			return true
		}
	}
	return false
}

// timesCopies reports whether there are copies, and the device has a clock that times them.
func (r *rank) timesCopies() bool {
	return r.stream.Clock() != nil && (r.place != nil || r.Limits.HostBlocks > 0)
}

// deviceLanes is how many lanes of the trace the device has: one for each of its orders of
// steps; one where it has none, and tells of copies alone and of what needs them.
func (r *rank) deviceLanes() int {
	if r.times {
		return max(1, r.homes)
	}
	return r.homes
}

// deviceRing is the lane of a device's order of steps in the trace.
func (r *rank) deviceRing(home int) string {
	if r.homes < 2 {
		return r.name
	}
	return fmt.Sprintf("%s.%d", r.name, home)
}

// lanes is how many orders of steps the device runs at the same time: one for each
// micro-batch, where layers have room for so many and experts stay where they are.
func (r *rank) lanes(micro int) int {
	if r.accel == nil || r.Limits.Lanes < micro || r.place != nil && !r.place.Steady() {
		return 1
	}
	return micro
}

// batchStream makes a stream for batches of a lane, with the scratch memory that was planned.
// Queue 0 is that of streams which belong to no batch, such as those of the actors.
func (r *rank) batchStream(lane int) (device.AcceleratorStream, error) {
	queue := 0
	if r.homes > 1 {
		queue = 1 + lane%r.homes
	}
	s, err := r.accel.NewQueueStream(queue)
	if err != nil {
		return nil, err
	}
	return s, s.Reserve(r.accel.ScratchBytes(load.StepSizes(r.Config, r.Limits)))
}

// stepEnd ends a batch's step on a rank.
type stepEnd struct {
	rank    *rank
	heat    *heatMeter
	devices []*trace.Ring // of the device's orders of steps; none where it has none
	copies  copyTimes
	share   float64 // Options.TimingShare
}

// newStepEnd makes the end of steps on a rank, whose notes go to its lanes of the trace.
func (p *Pipeline) newStepEnd(r *rank) stepEnd {
	e := stepEnd{rank: r, heat: p.heat, share: p.opt.TimingShare}
	for home := range r.deviceLanes() {
		e.devices = append(e.devices, p.trace.Ring(r.deviceRing(home)))
	}
	if r.times {
		e.copies.copies = p.trace.Ring(trace.CopyLane(r.name))
		for _, ring := range e.devices {
			e.copies.blocks = append(e.copies.blocks, p.trace.Ring(trace.KVLane(ring.Name())))
		}
	}
	return e
}

// end waits for what a batch has on the rank and counts what the device tells of it. late is
// why the host did not give the device what it asked for: the device is well, the step is lost.
func (e *stepEnd) end(c *turn, b *msg.Batch, wait func() error) (late, err error) {
	if b.Stream != nil && b.Abandoned.Load() {
		b.Stream.Repeat(0) // a partly enqueued step must not be captured to be replayed
	}
	err = wait()
	if b.Asked {
		b.Asked = false
		late = b.HostCalls.End()
	}
	if err != nil || late != nil {
		return late, err
	}
	if b.Kept {
		b.Kept = false
		e.heat.observeRoutes(b.Step.Total(), func(layer int) []int32 {
			if !e.rank.has(layer) {
				return nil
			}
			return b.State.Routes(layer)
		})
	}
	e.stepTimes(c, b)
	return nil, nil
}
