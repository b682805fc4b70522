package actors

import (
	"errors"
	"slices"

	"krater/actors/msg"
	"krater/actors/trace"
	"krater/kernels/device"
	"krater/stages/group"
)

// groupNode runs the layers of one group. It never waits for experts: it sends their work to its
// split, computes the shared expert meanwhile, takes the next batch from its mailbox, and continues
// this one when the merge answers.
//
// Work that takes less time than waking another actor is done at once: the same division into
// experts, the same kernels, no message.
type groupNode struct {
	index      int
	rank       int
	startsRank bool // it is the first of its rank
	group      *group.Group
	stream     device.Stream
	placed     *placed // nil: the group's experts are on its rank
	help       *help   // nil: no other device computes experts of it
	inline     func(rows int, work []device.ExpertRows) bool
	count      func(b *msg.Batch, layer int, work []device.ExpertRows)
	lost       func(cause error) // reports that the rank is lost
	// open are the batches that wait for a merge.
	open []*msg.Batch
	// behind has the batches that wait for one with earlier rows of a prompt of theirs.
	behind []*msg.Batch
	// done are those whose layers are computed, and that must not overtake such a batch.
	done []*msg.Batch
}

func (n *groupNode) receive(c *turn, m any) {
	n.handle(c, m)
	for i := 0; i < len(n.behind); i++ { // in the order in which they came
		if b := n.behind[i]; !n.waits(b) {
			n.behind = slices.Delete(n.behind, i, i+1)
			n.run(c, b, true)
			i = -1
		}
	}
	for i := 0; i < len(n.done); i++ {
		if b := n.done[i]; !n.overtakes(b) {
			n.done = slices.Delete(n.done, i, i+1)
			c.send(c.routes.after(n.index), b)
			i = -1
		}
	}
}

// overtakes reports whether a batch would leave the group before an earlier one with rows of its prompts.
func (n *groupNode) overtakes(b *msg.Batch) bool {
	if b.Follows == 0 || b.Abandoned.Load() {
		return false
	}
	before := func(p *msg.Batch) bool { return p != b && p.ID <= b.Follows && !p.Abandoned.Load() }
	return slices.ContainsFunc(n.open, before) || slices.ContainsFunc(n.behind, before) || slices.ContainsFunc(n.done, before)
}

// waits reports whether a batch must not enter its next layer yet, because an earlier batch with rows of its prompts has not passed that.
func (n *groupNode) waits(b *msg.Batch) bool {
	if b.Follows == 0 || b.Abandoned.Load() {
		return false
	}
	before := func(p *msg.Batch) bool { return p.ID <= b.Follows && !p.Abandoned.Load() }
	return slices.ContainsFunc(n.open, func(p *msg.Batch) bool { return before(p) && p.Walk.Layer < b.Walk.Layer }) ||
		slices.ContainsFunc(n.behind, func(p *msg.Batch) bool { return before(p) && p.Walk.Layer <= b.Walk.Layer })
}

func (n *groupNode) handle(c *turn, m any) {
	switch m := m.(type) {
	case *msg.Batch:
		if m.CallsHost && n.startsRank {
			serve(c, m, n.rank)
		}
		n.group.Move(m.On(n.stream), m.State)
		if !m.State.Repeated() && !m.Abandoned.Load() {
			if n.startsRank {
				n.placed.ahead(m)
			}
			m.Walk = n.group.Walk(m.State, n.placed.parts(m))
		}
		n.run(c, m, true)
	case *msg.Merged:
		b := m.Batch
		if !n.forget(b) {
			return // the batch has failed meanwhile
		}
		if m.Cause != nil {
			c.send(c.routes.schedule, &msg.Failed{Batch: b, Epoch: b.Epoch, Cause: m.Cause, Repeatable: errors.Is(m.Cause, errHelper)})
			return
		}
		more := false
		if s := b.On(n.stream); !b.Abandoned.Load() {
			n.placed.back(s, b)
			n.help.back(s, b)
			n.group.Combine(s, b.State, m.Layer, b.Probe())
			more = n.group.Next(s, b.State, &b.Walk)
		}
		n.run(c, b, more)
	case *msg.Forget:
		n.forget(m.Batch)
		n.drain(m.Batch)
		c.send(c.routes.schedule, &msg.Forgotten{Batch: m.Batch})
	}
}

// run takes b through the layers from its place in the walk, if there are more, until its end or
// until it has to wait for experts.
func (n *groupNode) run(c *turn, b *msg.Batch, more bool) {
	st, probe, s := b.State, b.Probe(), b.On(n.stream)
	for ; more && !b.Abandoned.Load() && !st.Repeated(); more = n.group.Next(s, st, &b.Walk) {
		layer := b.Walk.Layer
		if n.waits(b) {
			flush(b)
			n.behind = append(n.behind, b)
			return
		}
		began := c.now()
		n.group.Attend(s, st, layer, probe)
		if !n.group.MoE(layer) {
			continue
		}
		if n.group.Resident(layer) || n.placed.whole(b) {
			// The choice stays on the device until the step has ended: see Pipeline.keeps.
			n.placed.mix(s, n.group, b, layer)
			continue
		}
		if n.help.mixes(s, n.group, b, layer) {
			n.split(c, b, layer, nil)
			return
		}
		n.placed.fetch(s, b)
		n.group.Ask(s, st, layer)
		if err := s.Synchronize(); err != nil {
			panic(err)
		}
		work := n.group.Work(st, layer)
		n.count(b, layer, work)
		chosen := c.now()
		work, helped := n.help.divide(s, b, layer, work)
		work = n.placed.begin(s, n.group, b, layer, work)
		n.placed.trace(c, layer, began, chosen)
		if helped || len(work) > 0 && !n.inline(st.T, work) {
			n.split(c, b, layer, work)
			return
		}
		n.group.Shared(s, st, layer, probe)
		n.placed.compute(s, n.group, b, layer, work)
		n.group.Combine(s, st, layer, probe)
	}
	waitAnchored(c, b, n.stream)
	timePart(b, trace.DeviceGroup)
	flush(b)
	if n.overtakes(b) {
		n.done = append(n.done, b)
		return
	}
	c.send(c.routes.after(n.index), b)
}

// flush keeps the work of the batch that comes next from getting between pieces of this one's.
func flush(b *msg.Batch) {
	if b.Stream != nil {
		b.Stream.Flush()
	}
}

// wait blocks until the stage's output is ready. It does nothing if the batch has its own stream.
func wait(b *msg.Batch, s device.Stream) {
	if b.Stream != nil {
		return
	}
	if err := s.Synchronize(); err != nil {
		panic(err)
	}
}

// split sends the routed experts of a layer away and computes the shared one.
func (n *groupNode) split(c *turn, b *msg.Batch, layer int, work []device.ExpertRows) {
	n.open = append(n.open, b)
	w := &b.Work
	w.Layer, w.Group, w.Rows = layer, n.index, work
	c.send(c.routes.splits[n.index], w)
	s := b.On(n.stream)
	n.group.Shared(s, b.State, layer, b.Probe())
	s.Record() // the device begins with it
	c.sent = 0
}

// drain waits for the work that the device was given for an abandoned batch, since it would write
// to the state when the next batch uses it. It also recovers a stream whose driver has refused a
// call. One group waits for the batch's own stream; the others are asked at the same time.
func (n *groupNode) drain(b *msg.Batch) {
	n.placed.drain()
	n.help.drop(b)
	l := &b.Ranks[n.rank]
	if l.Stream != nil && !n.startsRank {
		return
	}
	s := l.On(n.stream)
	var err error
	if l.CallsHost && n.startsRank {
		l.Serving = false
		err = l.HostCalls.Dismiss(s.Recover)
	} else {
		err = s.Recover()
	}
	if err != nil {
		n.lost(err)
	}
}

// serve makes the pools answer the host calls of a step. It comes before any of the step is
// enqueued: the device may begin with a part of it, and a wait for the device while the rest is
// made would wait for answers that no pool gives.
func serve(c *turn, b *msg.Batch, rank int) {
	b.Serving = true
	step := b.HostCalls.Begin(b.Step.Total())
	for i := range c.routes.pools {
		c.send(c.routes.pools[i], msg.NewServe(b, rank, step))
	}
	c.sent = 0
}

// forget removes b from the batches that wait; false if it is not among those that wait for a merge.
func (n *groupNode) forget(b *msg.Batch) bool {
	is := func(x *msg.Batch) bool { return x == b }
	n.behind, n.done = slices.DeleteFunc(n.behind, is), slices.DeleteFunc(n.done, is)
	i := slices.Index(n.open, b)
	if i < 0 {
		return false
	}
	n.open = slices.Delete(n.open, i, i+1)
	return true
}

// held implements holder.
func (n *groupNode) held() []*msg.Batch { return slices.Concat(n.open, n.behind, n.done) }
