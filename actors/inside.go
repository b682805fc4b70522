package actors

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"krater/actors/engine"
	"krater/actors/placement"
	"krater/actors/trace"
	"krater/scheduler/heat"
)

// Topology draws the live blueprint, with the actors of workers.
func (p *Pipeline) Topology() engine.Topology {
	t := drawing{p: p}
	node, edge := t.node, t.edge
	if p.opt.segment != nil {
		edge(t.groups(node("keeper", engine.NodeHop, 0, nil)), node("out", engine.NodeLink, len(p.opt.Blueprint.Groups), nil))
		t.devices()
		return t.Topology
	}
	gateway, schedule := node("gateway", engine.NodeGateway, 0, nil), node("schedule", engine.NodeSchedule, 0, nil)
	embed := node("embed", engine.NodeEmbed, 0, nil)
	edge(gateway, schedule)
	edge(schedule, embed)
	from := t.groups(embed)
	if p.opt.Remote != nil {
		from = t.workers(from)
	}
	head, sample, stream := node("head", engine.NodeHead, 0, nil), node("sample", engine.NodeSample, 0, nil), node("stream", engine.NodeStream, 0, nil)
	edge(from, head)
	edge(head, sample)
	edge(sample, schedule)
	edge(schedule, stream)
	t.devices()
	return t.Topology
}

// groups adds the layer groups and what serves them behind a node, and returns the last group.
func (t *drawing) groups(from string) string {
	p, node, edge := t.p, t.node, t.edge
	bp := &p.opt.Blueprint
	var pools []string
	if slices.ContainsFunc(p.ranks, func(r *rank) bool { return r.expertBytes > 0 }) {
		for i := range bp.Pools {
			pools = append(pools, node(fmt.Sprintf("pool%d", i), engine.NodePool, i, nil))
		}
	}
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
	return from
}

// workers adds the actors of workers between the hops, and returns the last of these.
func (t *drawing) workers(from string) string {
	o := t.p.opt.Remote
	out := t.node("out", engine.NodeLink, len(t.p.opt.Blueprint.Groups), nil)
	t.edge(from, out)
	for i, w := range o.Workers {
		name := func(actor string) string { return trace.Lane(t.p.rankName(i), actor) }
		for _, n := range w.Topology.Nodes {
			n.Name, n.Rank, n.Machine = name(n.Name), len(t.p.ranks)+i, w.Name
			t.Nodes = append(t.Nodes, n)
		}
		for _, e := range w.Topology.Edges {
			t.edge(name(e.From), name(e.To))
		}
		t.edge(out, name("keeper"))
		out = name("out")
	}
	in := t.node("in", engine.NodeHop, 0, nil)
	t.edge(out, in)
	return in
}

// drawing is a topology that is being made.
type drawing struct {
	engine.Topology
	p *Pipeline
}

// node adds a node and returns its name.
func (t *drawing) node(name string, kind engine.NodeKind, index int, group *GroupSpec) string {
	n := engine.Node{Name: name, Kind: kind, Index: index, MemoryNode: -1}
	if group != nil {
		n.First, n.Last, n.Rank = group.First, group.Last, group.Rank
	}
	first := t.p.ranks[0]
	switch kind {
	case engine.NodeEmbed:
		n.Device = first.name
	case engine.NodeGroup:
		n.Device = t.p.ranks[n.Rank].name
	case engine.NodeHead, engine.NodeSample:
		last := t.p.last()
		n.Device, n.Rank = last.name, last.index
	case engine.NodePool:
		n.Device, n.MemoryNode = first.poolsName(), first.partition.Node(index)
	}
	t.Nodes = append(t.Nodes, n)
	return name
}

func (t *drawing) edge(from, to string) { t.Edges = append(t.Edges, engine.Edge{From: from, To: to}) }

// devices adds the devices of the ranks, and the copies of experts.
func (t *drawing) devices() {
	groups := t.p.opt.Blueprint.Groups
	for _, r := range t.p.ranks {
		for queue := range r.deviceRings() {
			name := t.node(r.deviceRing(queue), engine.NodeDevice, queue, nil)
			if n := &t.Nodes[len(t.Nodes)-1]; r.queues > 0 {
				n.Device, n.Rank = r.name, r.index
			}
			for i := range groups {
				if groups[i].Rank == r.index {
					t.edge(fmt.Sprintf("group%d", i), name)
				}
			}
		}
	}
	if i := slices.IndexFunc(groups, func(g GroupSpec) bool { return t.p.ranks[g.Rank].place != nil }); i >= 0 {
		t.edge(t.node("copies", engine.NodeCopies, 0, nil), fmt.Sprintf("group%d", i))
	}
}

// Topology is that of the pipeline.
func (g *Gateway) Topology() engine.Topology { return g.r.last().Topology() }

// Trace returns the record of what the pipeline's actors did.
func (g *Gateway) Trace() *trace.Registry { return g.r.last().trace }

// Cancel ends an open request.
func (g *Gateway) Cancel(id uint64) { g.r.cancel(id) }

// endedKept is how many requests that have ended are remembered.
const endedKept = 16

// Running lists the open requests by age, the oldest first, after the newest of those that have
// ended.
func (g *Gateway) Running() []engine.Running {
	g.r.mu.Lock()
	list := slices.Clone(g.r.ended)
	open := make([]*output, 0, len(g.r.outputs))
	for _, o := range g.r.outputs {
		open = append(open, o)
	}
	g.r.mu.Unlock()
	slices.SortFunc(open, func(a, b *output) int { return cmp.Compare(a.id, b.id) })
	now := g.r.now()
	for _, o := range open {
		list = append(list, o.running(now))
	}
	return list
}

// running returns the request as it is now.
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

// Heat returns how often each router chose each expert so far, and which experts are in the memory of their rank.
func (g *Gateway) Heat() engine.Heat {
	p := g.r.last()
	m := p.Heat(heat.Identity{})
	if m == nil {
		return engine.Heat{}
	}
	shape := m.Shape()
	h := engine.Heat{Experts: shape.Experts, TopK: shape.TopK}
	placed := placements(p.ranks, func(*placement.Placement) bool { return true })
	select {
	case <-p.halted:
		placed = false
	default:
	}
	for _, layer := range shape.Layers {
		h.Layers = append(h.Layers, int(layer))
		h.Tokens = append(h.Tokens, m.Tokens(layer))
		h.Counts = append(h.Counts, m.Counts(layer))
		for _, r := range p.ranks {
			if placed && r.has(int(layer)) {
				h.Resident = append(h.Resident, r.residents(int(layer)))
			}
		}
	}
	return h
}
