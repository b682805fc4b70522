package actors

import (
	"errors"
	"fmt"
	"slices"

	"krater/actors/msg"
	"krater/actors/placement"
	"krater/actors/trace"
	"krater/kernels/device"
	"krater/scheduler/files"
	"krater/stages"
	"krater/stages/expert"
	"krater/stages/group"
	"krater/stages/offload"
)

// nodeDevice is a device whose threads and memory have a place: NUMA nodes with threads of their
// own and memory near to them.
type nodeDevice interface {
	Nodes() int
	NodeThreads() []int
	// NewNodeStream returns a stream whose operators run on the node's threads.
	NewNodeStream(node int) (device.Stream, error)
	expert.Memory
}

// poolSite is where one pool computes.
type poolSite struct {
	stream device.Stream
	near   *expert.Near // the pool's copy of the rows it reads; nil: it reads the batch's
}

// nodesFor returns dev if its pools have nodes, and the number of nodes. With fewer pools than
// nodes none has, because some nodes would have no work.
func nodesFor(dev device.Device, pools int) (nodeDevice, int) {
	d, ok := dev.(nodeDevice)
	if !ok || d.Nodes() == 1 || d.Nodes() > pools {
		return nil, 0
	}
	return d, d.Nodes()
}

// newPoolSites gives every pool its node, in order, one each where there are as many.
func newPoolSites(dev device.Device, pools int, lim stages.Limits, hidden int) ([]poolSite, error) {
	seats := make([]poolSite, pools)
	d, nodes := nodesFor(dev, pools)
	for i := range seats {
		var err error
		if d == nil {
			seats[i].stream, err = dev.NewStream()
		} else if seats[i].stream, err = d.NewNodeStream(nodeOf(i, pools, nodes)); err == nil {
			seats[i].near, err = expert.NewNear(dev, d, nodeOf(i, pools, nodes), lim, hidden)
		}
		if err != nil {
			closePoolSites(seats)
			return nil, fmt.Errorf("expert pool %d of %d: %w", i, pools, err)
		}
	}
	return seats, nil
}

// nodeOf returns the node of a pool.
func nodeOf(pool, pools, nodes int) int { return pool * nodes / pools }

func closePoolSites(seats []poolSite) {
	for i := range seats {
		if seats[i].near != nil {
			seats[i].near.Close()
		}
		if seats[i].stream != nil {
			seats[i].stream.Close()
		}
	}
}

// Partition divides experts among pools as a pipeline on dev does: in proportion to the threads of
// the pools' nodes. Experts that are copied to their nodes must be copied by the same partition.
// Pools without a node get the first.
func Partition(dev device.Device, experts, pools int) expert.Partition {
	d, nodes := nodesFor(dev, pools)
	if d == nil {
		p := expert.Even(experts, pools)
		p.Nodes = make([]int, pools)
		return p
	}
	// A node's threads are shared by its pools; scaled, so that shares are whole.
	threads, on := d.NodeThreads(), make([]int, nodes)
	for i := range pools {
		on[nodeOf(i, pools, nodes)]++
	}
	weights, at := make([]int, pools), make([]int, pools)
	for i := range weights {
		at[i] = nodeOf(i, pools, nodes)
		weights[i] = threads[at[i]] * pools / on[at[i]]
	}
	p := expert.Spread(experts, weights)
	p.Nodes = at
	return p
}

// poolNode computes its share of a layer's experts. It runs the experts of every group that it
// owns, and writes disjoint rows of the batch's expert output, on a stream of its own, which may be
// that of a node.
type poolNode struct {
	index   int
	groups  []poolGroup
	ranks   []poolRank // by rank
	open    []*serving // steps whose host calls it answers
	failure error      // of one of them
}

// poolGroup is a layer group and its rank.
type poolGroup struct {
	*group.Group
	rank int
}

// poolRank holds a pool's state for one rank.
type poolRank struct {
	site   poolSite
	place  *placement.Placement // nil: the experts are where their groups are
	owner  []int32              // [E] the pools of experts
	phases poolPhases
}

func (n *poolNode) receive(c *turn, m any) {
	switch m := m.(type) {
	case *msg.Serve:
		n.begin(c, m)
	case *msg.Part:
		n.compute(c, m)
	}
	n.serve(c)
	// A part belongs to another batch, which must not fail. So the failure goes to the supervisor
	// only while the message is a Serve, which holds no batch.
	if _, served := m.(*msg.Serve); served && len(n.open) == 0 && n.failure != nil {
		panic(n.failure)
	}
}

// serving is a step whose host calls the pool answers.
type serving struct {
	offload.Server
	m *msg.Serve
}

// begin starts to answer the host calls of a step.
func (n *poolNode) begin(c *turn, m *msg.Serve) {
	m.Hold() // longer than this message, until the step has ended
	event, quiet, d := *c.event, m.Batch.Quiet, &n.ranks[m.Rank]
	event.Others = m.Batch.Others
	tell := func(layer, rows int, at offload.Progress) {
		if quiet {
			return
		}
		now := trace.Now()
		event.Layer, event.Rows = int16(layer), uint32(rows)
		switch at {
		case offload.Came:
			event.Started, event.Gathered, event.Computed = now, 0, 0
			d.phases.begin(true, now)
		case offload.Gathered:
			event.Gathered = uint32(now - event.Started)
			d.phases.until(&event, trace.PoolRows, now)
		case offload.Computed:
			event.Computed = uint32(now - event.Started)
			d.phases.products(&event)
		case offload.Answered:
			event.Enqueued, event.Ended = 0, now
			d.phases.until(&event, trace.PoolSum, now)
			d.phases.begin(false, 0)
			c.ring.Record(&event)
		}
	}
	owns := func(e int32) bool { return int(d.owner[e]) == n.index }
	n.open = append(n.open, &serving{m.HostCalls.Server(m.Step, d.site.stream, n.index, owns, tell), m})
	c.event.Kind = trace.Control // its calls are the work
}

// serve answers the host calls of the open steps as they come, until all steps have ended or a
// message waits. It goes on after that message.
func (n *poolNode) serve(c *turn) {
	if len(n.open) == 0 {
		return
	}
	if c.sent == 0 {
		c.sent = trace.Now() // the message has been handled
	}
	wait := func() bool { return len(n.open) > 1 || c.box.waiting() }
	for len(n.open) > 0 {
		for i := 0; i < len(n.open); i++ {
			v := n.open[i]
			if !v.Next(wait) {
				continue
			}
			if err := v.Err(); err != nil { // the actor that waits for the step learns it from the calls
				c.log.Error().Err(err).Msg("experts failed in the middle of a step")
				n.failure = err
			}
			v.m.Release()
			n.open = slices.Delete(n.open, i, i+1)
			i--
		}
		if c.box.waiting() {
			return
		}
	}
}

// abandon ends the service of the open steps when the node fails in other work: the device must not
// wait for it. The actors that wait for the steps learn it from their calls.
func (n *poolNode) abandon() {
	for _, v := range n.open {
		go func() {
			v.Abandon(errPoolFailed)
			v.m.Release()
		}()
	}
	n.open = nil
}

// errPoolFailed is the cause of steps whose pool has failed in other work.
var errPoolFailed = errors.New("the expert pool failed")

// compute runs the pool's part of a layer.
func (n *poolNode) compute(c *turn, p *msg.Part) {
	w := p.Work
	// A kernel's panic becomes the part's cause, so that the merge is never left
	// waiting; then it goes on to the supervisor.
	defer func() {
		r := recover()
		if r != nil {
			p.Cause = fmt.Errorf("expert pool %d, layer %d: %w", p.Pool, w.Layer, files.Caught(r))
		}
		c.send(c.routes.merges[w.Group], p)
		if r != nil {
			n.abandon()
			panic(r)
		}
	}()
	if w.Batch.Abandoned.Load() {
		return
	}
	g := n.groups[w.Group]
	st, d := w.Batch.State, &n.ranks[g.rank]
	bank, experts := g.Bank(w.Layer), g.Experts
	if d.place != nil {
		st, bank, experts = w.Batch.Mirror.State(), d.place.Bank(w.Layer), d.place.Experts.Compute
	}
	noted := p.Noted()
	if noted {
		d.phases.begin(true, c.now())
	}
	if d.site.near != nil {
		st = d.site.near.Fetch(d.site.stream, st, bank, p.Rows)
		if noted {
			d.phases.until(c.event, trace.PoolRows, c.now())
		}
	}
	experts(d.site.stream, st, w.Layer, p.Rows)
	if p.Cause = d.site.stream.Synchronize(); noted {
		d.phases.products(c.event)
		d.phases.begin(false, 0)
	}
}
