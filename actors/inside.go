package actors

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"krater/actors/engine"
	"krater/actors/trace"
	"krater/scheduler/heat"
)

// deviceOf names the device that an actor of a kind computes on; the host's actors compute
// nothing.
func (p *Pipeline) deviceOf(kind trace.Kind) string {
	switch kind {
	case trace.Embed, trace.Group, trace.Head, trace.Sample:
		return p.device
	case trace.Experts:
		return p.poolDevice
	}
	return "host"
}

// Topology draws the live blueprint.
func (p *Pipeline) Topology() engine.Topology {
	var t engine.Topology
	bp := &p.opt.Blueprint
	node := func(name string, kind engine.NodeKind, index int, group *GroupSpec) string {
		n := engine.Node{Name: name, Kind: kind, Index: index, MemoryNode: -1}
		if group != nil {
			n.First, n.Last, n.Rank = group.First, group.Last, group.Rank
		}
		switch kind {
		case engine.NodeEmbed, engine.NodeGroup, engine.NodeHead, engine.NodeSample:
			n.Device = p.device
		case engine.NodeDevice:
			if p.homes > 0 {
				n.Device = p.device
			}
		case engine.NodePool:
			n.Device, n.MemoryNode = p.poolDevice, p.partition.Node(index)
		}
		t.Nodes = append(t.Nodes, n)
		return name
	}
	edge := func(from, to string) { t.Edges = append(t.Edges, engine.Edge{From: from, To: to}) }

	gateway, schedule := node("gateway", engine.NodeGateway, 0, nil), node("schedule", engine.NodeSchedule, 0, nil)
	embed := node("embed", engine.NodeEmbed, 0, nil)
	edge(gateway, schedule)
	edge(schedule, embed)
	var pools []string
	if p.expertBytes > 0 {
		for i := range bp.Pools {
			pools = append(pools, node(fmt.Sprintf("pool%d", i), engine.NodePool, i, nil))
		}
	}
	from := embed
	for i := range bp.Groups {
		g := &bp.Groups[i]
		if i > 0 {
			link := node(fmt.Sprintf("link%d", i), engine.NodeLink, i, g)
			edge(from, link)
			from = link
		}
		group := node(fmt.Sprintf("group%d", i), engine.NodeGroup, i, g)
		edge(from, group)
		from = group
		if len(pools) == 0 {
			continue
		}
		split, merge := node(fmt.Sprintf("split%d", i), engine.NodeSplit, i, g), node(fmt.Sprintf("merge%d", i), engine.NodeMerge, i, g)
		edge(group, split)
		for _, pool := range pools {
			edge(split, pool)
			edge(pool, merge)
		}
		edge(merge, group)
	}
	head, sample, stream := node("head", engine.NodeHead, 0, nil), node("sample", engine.NodeSample, 0, nil), node("stream", engine.NodeStream, 0, nil)
	edge(from, head)
	edge(head, sample)
	edge(sample, schedule)
	edge(schedule, stream)
	for home := range p.deviceLanes() {
		name := node(p.deviceRing(home), engine.NodeDevice, home, nil)
		for i := range bp.Groups {
			edge(fmt.Sprintf("group%d", i), name)
		}
	}
	if p.opt.Placement != nil {
		copies := node("copies", engine.NodeCopies, 0, nil)
		edge(copies, "group0")
	}
	return t
}

// Topology is that of the pipeline.
func (g *Gateway) Topology() engine.Topology { return g.p.Topology() }

// Trace is the record of what the pipeline's actors did.
func (g *Gateway) Trace() *trace.Registry { return g.p.trace }

// Cancel ends an open request.
func (g *Gateway) Cancel(id uint64) { g.p.cancel(id) }

// endedKept is how many requests that have ended are remembered.
const endedKept = 16

// Running lists the open requests by their age, the oldest first, behind the newest of those
// that have ended.
func (g *Gateway) Running() []engine.Running {
	g.p.mu.Lock()
	list := slices.Clone(g.p.ended)
	open := make([]*output, 0, len(g.p.outputs))
	for _, o := range g.p.outputs {
		open = append(open, o)
	}
	g.p.mu.Unlock()
	slices.SortFunc(open, func(a, b *output) int { return cmp.Compare(a.id, b.id) })
	now := g.p.host.now()
	for _, o := range open {
		list = append(list, o.running(now))
	}
	return list
}

// remember keeps what there is to say of a request that has ended.
func (p *Pipeline) remember(r engine.Running, o engine.Origin) {
	r.Phase = engine.Ended
	p.mu.Lock()
	defer p.mu.Unlock()
	p.origins.keep(r.ID, o)
	if len(p.ended) == endedKept {
		p.ended = slices.Delete(p.ended, 0, 1)
	}
	p.ended = append(p.ended, r)
}

// running is the request as it is now.
func (o *output) running(now int64) engine.Running {
	started, first, last, n := o.seen.started.Load(), o.seen.first.Load(), o.seen.last.Load(), o.seen.tokens.Load()
	r := engine.Running{
		ID: o.id, Name: o.name, Owner: o.owner, Phase: engine.Waiting, Priority: o.priority,
		Prompt: o.answer.prompt, Cached: int(o.seen.cached.Load()), Generated: int(n), Most: o.most,
		Since: time.Duration(now - o.submitted), Waited: time.Duration(now - o.submitted),
	}
	if started != 0 {
		r.Phase, r.Waited = engine.Prefilling, time.Duration(started-o.submitted)
	}
	if first != 0 {
		r.Phase, r.ToFirst = engine.Decoding, time.Duration(first-o.submitted)
		if n > 1 {
			r.PerToken = time.Duration((last - first) / (n - 1))
		}
	}
	return r
}

// Heat is what routers have chosen so far, and which experts lie on the rank.
func (g *Gateway) Heat() engine.Heat {
	m := g.p.Heat(heat.Identity{})
	if m == nil {
		return engine.Heat{}
	}
	shape := m.Shape()
	h := engine.Heat{Experts: shape.Experts, TopK: shape.TopK}
	for _, layer := range shape.Layers {
		h.Layers = append(h.Layers, int(layer))
		h.Tokens = append(h.Tokens, m.Tokens(layer))
		h.Counts = append(h.Counts, m.Counts(layer))
		if place := g.p.opt.Placement; place != nil {
			h.Resident = append(h.Resident, place.Resident(nil, int(layer)))
		}
	}
	return h
}
