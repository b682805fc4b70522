package actors

import (
	"cmp"
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

// rank is the state of a pipeline on one of its ranks.
type rank struct {
	load.Rank
	accel device.Accelerator // the device as one; nil: it is none
	index int
	name  string               // of the device, unique among ranks
	place *placement.Placement // of its routed experts; nil: they are on the device

	findsExperts bool // the device finds the routed experts by itself
	expertBytes  int  // of one routed expert, 0 without
	queues       int  // of an accelerator, which run steps at the same time; 0 on other devices
	times        bool // the device times copies

	stream    device.Stream // the schedule actor's
	pools     device.Device // where the expert pools compute
	poolSites []poolSite    // of the pools
	partition expert.Partition
}

// newRanks checks that ranks are consecutive parts of one model, with equal limits for what the
// scheduler decides.
func newRanks(list []load.Rank, opt *Options) ([]*rank, error) {
	if len(list) == 0 {
		return nil, errors.New("a pipeline without a rank")
	}
	first := list[0].Parts
	embed, head := opt.ends(len(list))
	var ranks []*rank
	for i, r := range list {
		a, b := r.Limits, first.Limits
		a.Window, a.QuantGroup, a.Queues, b.Window, b.QuantGroup, b.Queues = 0, 0, 0, 0, 0, 0
		if a != b {
			return nil, fmt.Errorf("rank %d has limits %+v, the first one %+v", i, a, b)
		}
		if (r.Embed != nil) != (i == embed) || (r.Head != nil) != (i == head) {
			return nil, fmt.Errorf("rank %d of %d: embedding %t, head %t", i, len(list), r.Embed != nil, r.Head != nil)
		}
		n := &rank{Rank: r, accel: r.Device.Accelerator(), index: i, name: r.Device.Name(), findsExperts: findsExperts(r.Parts), pools: r.Device}
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

// ends are the ranks with the embedding and with the head, of n here: the first and the last, or the first if
// others compute the last layers; -1: none has it.
func (o *Options) ends(n int) (embed, head int) {
	switch {
	case o.segment != nil:
		return -1, -1
	case o.Remote != nil:
		return 0, 0
	}
	return 0, n - 1
}

// last returns the rank with the head.
func (p *Pipeline) last() *rank {
	_, head := p.opt.ends(len(p.ranks))
	return p.ranks[head]
}

// rankOf returns the rank of a layer group.
func (p *Pipeline) rankOf(group int) *rank { return p.ranks[p.opt.Blueprint.Groups[group].Rank] }

// startsRank reports whether a layer group is the first of its rank.
func (p *Pipeline) startsRank(group int) bool {
	specs := p.opt.Blueprint.Groups
	return group == 0 || specs[group-1].Rank != specs[group].Rank
}

// poolLimits returns the limits of the rows that the rank's pools read.
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
func (r *rank) has(layer int) bool { return layer >= r.Groups[0].First && layer < r.end() }

// end returns the layer behind the rank's last.
func (r *rank) end() int { return r.Groups[len(r.Groups)-1].Last }

// keeps reports whether the meter counts a step of a batch whose routing stays on the device
// (group.Resident, placement.Whole), so that no split sees it. The routing of all layers is then
// copied at once after the step, which may therefore be replayed, and counted when that has ended.
func (r *rank) keeps(h *heatMeter, b *msg.Batch) bool {
	if b.Stream == nil || !h.wants(b.ID) && (r.place == nil || !r.place.Learns()) {
		return false
	}
	if r.place != nil {
		rows, watched := b.Step.Total(), b.Probe() != nil
		return r.place.Whole(rows, watched) || r.place.Unasked(rows, watched)
	}
	return r.findsExperts
}

// placements reports whether f holds for any rank whose routed experts are placed.
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

// deviceRings returns the number of the device's rows in the trace: one for each queue. A device without
// queues has one row if it times copies.
func (r *rank) deviceRings() int {
	if r.times {
		return max(1, r.queues)
	}
	return r.queues
}

// deviceRing returns the name of a queue's row in the trace.
func (r *rank) deviceRing(queue int) string {
	if r.queues < 2 {
		return r.name
	}
	return fmt.Sprintf("%s.%d", r.name, queue)
}

// queuesFor returns the number of queues that an accelerator runs at the same time: one for each
// micro-batch if layers have memory for that and experts stay in their slots, else one.
func (r *rank) queuesFor(micro int) int {
	if r.Limits.Queues < micro || r.place != nil && !r.place.Steady() {
		return 1
	}
	return micro
}

// batchStream makes a stream of a queue for a batch, with the scratch memory that was planned. If
// batches have several queues, the device's queue 0 is left to streams of no batch.
func (r *rank) batchStream(queue int) (device.AcceleratorStream, error) {
	if queue %= r.queues; r.queues > 1 {
		queue++
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
	devices []*trace.Ring // of the device's queues; none where it has none
	copies  copyTimes
	share   float64 // Options.TimingShare
}

// newStepEnd makes the end of steps on a rank, which records them in the rank's rows of the trace.
func (p *Pipeline) newStepEnd(r *rank) stepEnd {
	e := stepEnd{rank: r, heat: p.heat, share: p.opt.TimingShare}
	for queue := range r.deviceRings() {
		e.devices = append(e.devices, p.trace.Ring(r.deviceRing(queue)))
	}
	if r.times {
		e.copies.copies = p.trace.Ring(trace.CopyLane(r.name))
		for _, ring := range e.devices {
			e.copies.blocks = append(e.copies.blocks, p.trace.Ring(trace.KVLane(ring.Name())))
		}
	}
	return e
}

// end waits for a batch's step on the rank and records what the device measured. The step ended at, in
// the trace's clock; 0: when the wait ends. lost is set if a host call was not answered in time, or if
// other rows came from the rank before than it has sent: the step is lost, and the device works.
func (e *stepEnd) end(c *turn, b *msg.Batch, at int64, wait func() error) (lost, err error) {
	if b.Stream != nil && b.Abandoned.Load() {
		b.Stream.Repeat(0) // a partly enqueued step must not be captured to be replayed
	}
	err = wait()
	lost = e.served(b)
	if err == nil && lost == nil && b.Arriving {
		b.Arriving = false
		lost = b.Hop.Arrived()
	}
	if err != nil || lost != nil {
		return lost, err
	}
	if b.Kept {
		b.Kept = false
		e.chosen(b)
	}
	e.stepTimes(c, b, cmp.Or(at, c.now()))
	return nil, nil
}

// stepEnds ends a batch's step on the last of the ranks that it has passed here, and on those before that.
type stepEnds struct {
	stepEnd
	before []stepEnd
}

// newStepEnds makes the end of steps on a rank and on those before.
func (p *Pipeline) newStepEnds(last int) (n stepEnds) {
	for i, r := range p.ranks[:last+1] {
		e := p.newStepEnd(r)
		if n.stepEnd = e; i < last {
			n.before = append(n.before, e)
		}
	}
	return n
}

// ended ends the step on the last rank, and then on the ranks before that the batch has left while their
// devices worked. Each of these is taken to have ended when the next rank began.
func (n *stepEnds) ended(c *turn, b *msg.Batch, wait func() error) (lost, err error) {
	lost, err = n.end(c, b, 0, wait)
	at := c.now()
	for i := len(n.before) - 1; i >= 0 && lost == nil && err == nil; i-- {
		at -= int64(b.Took)
		if b.Enter(i); b.Unended {
			b.Unended = false
			lost, err = n.before[i].end(c, b, at, b.Stream.Synchronize)
		}
	}
	b.Enter(len(n.before))
	return lost, err
}

// served ends the host calls of a step that was waited for, if it has any.
func (e *stepEnd) served(b *msg.Batch) error {
	if !b.Serving {
		return nil
	}
	b.Serving = false
	if late := b.HostCalls.End(); late != nil {
		return fmt.Errorf("rank %d: the host did not do its part: %w", e.rank.index, late)
	}
	return nil
}

// chosen tells who counts what the routers chose in a step that has ended.
func (e *stepEnd) chosen(b *msg.Batch) {
	if e.heat != nil {
		e.heat.observeRoutes(stepOf(b), func(layer int) []int32 {
			if !e.rank.has(layer) {
				return nil
			}
			return b.State.Routes(layer)
		})
	}
	if p := e.rank.place; p != nil && p.Learns() {
		p.Note(b.Step.Total(), b.State.Routes)
	}
}
