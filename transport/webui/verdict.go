package webui

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"krater/actors/engine"
	"krater/actors/trace"
)

const (
	// limits is the share of a step from which on a part of the pipeline limits it.
	limits = 0.6
	// largest is the share from which a part stands out.
	largest = 0.3
	kvFull  = 0.95
)

// title names an actor for people.
func title(n engine.Node) string {
	name := titleHere(n)
	if n.Machine != "" {
		name += " on " + rankTitle(n)
	}
	return name
}

// rankTitle names the rank of a worker, or the leader's.
func rankTitle(n engine.Node) string {
	if n.Machine == "" {
		return fmt.Sprintf("rank %d (leader)", n.Rank)
	}
	return fmt.Sprintf("rank %d (%s)", n.Rank, n.Machine)
}

func titleHere(n engine.Node) string {
	switch n.Kind {
	case engine.NodeGroup:
		return fmt.Sprintf("the group of layers %d–%d", n.First, n.Last-1)
	case engine.NodePool:
		return fmt.Sprintf("expert pool %d", n.Index)
	case engine.NodeLink:
		return fmt.Sprintf("the link to layer group %d", n.Index)
	case engine.NodeHop:
		return "the actor that takes batches in"
	case engine.NodeSplit:
		return fmt.Sprintf("the split of layer group %d", n.Index)
	case engine.NodeMerge:
		return fmt.Sprintf("the merge of layer group %d", n.Index)
	case engine.NodeSchedule:
		return "the scheduler"
	case engine.NodeStream:
		return "the actor that sends text out"
	case engine.NodeEmbed:
		return "the embedding"
	case engine.NodeSample:
		return "the sampler"
	case engine.NodeDevice:
		return "the device " + n.Name
	}
	return "the " + string(n.Kind)
}

// judge says in words where the time goes: in the newest steps, or in the last request while
// nothing runs. The figures come from s.Where.
func judge(top engine.Topology, s *state) *verdict {
	idle := s.Flow.Running == 0 && s.Flow.Waiting == 0
	if s.Where == nil || len(s.Where.Parts) == 0 {
		if idle {
			return &verdict{Text: "Idle: no request is running."}
		}
		return &verdict{Text: "The first step is running." + queued(s.Flow)}
	}
	most := s.Where.Parts[0]
	name, percent := capital(most.title(top)), math.Round(100*most.Share)
	v := &verdict{Node: most.Lane}
	if s.Where.Of == "request" {
		v.Text = fmt.Sprintf("%s took the largest part of the last request, %.0f %%.", name, percent)
		if idle {
			v.Text = "Idle: no request is running. " + v.Text
		}
		v.Text += queued(s.Flow)
		return v
	}
	switch asked := waitsFor(top, most); {
	case most.Share >= limits:
		v.Text = fmt.Sprintf("%s takes %.0f %% of a step%s: it is the bottleneck.", name, percent, asked)
	case most.Share >= largest:
		v.Text = fmt.Sprintf("%s takes the largest part of a step, %.0f %%%s.", name, percent, asked)
	default:
		v.Text = fmt.Sprintf("There is no single bottleneck: %s takes the largest part of a step, only %.0f %%.", most.title(top), percent)
	}
	v.Text += slowest(top, s.Where) + queued(s.Flow)
	return v
}

// slower is how many times as long the layers of one process take as those of another before that is said.
const slower = 1.3

// slowest says which worker's layers take longer than those of others.
func slowest(top engine.Topology, s *shares) string {
	type machine struct {
		node        engine.Node
		first, last int
		each        float64 // ns of a layer
	}
	var list []machine
	for _, n := range top.Nodes {
		process, _ := trace.Process(n.Name)
		if n.Kind != engine.NodeGroup || s.layers[process] == 0 {
			continue
		}
		if i := len(list) - 1; i >= 0 && list[i].node.Machine == n.Machine && (n.Machine == "" || list[i].node.Rank == n.Rank) {
			list[i].last = n.Last
		} else {
			list = append(list, machine{node: n, first: n.First, last: n.Last})
		}
		m := &list[len(list)-1]
		m.each = float64(s.layers[process]) / float64(m.last-m.first)
	}
	if len(list) < 2 {
		return ""
	}
	by := func(a, b machine) int { return cmp.Compare(a.each, b.each) }
	slow, fast := slices.MaxFunc(list, by), slices.MinFunc(list, by)
	if slow.each < slower*fast.each {
		return ""
	}
	return fmt.Sprintf(" %s: layers %d–%d take %.1f times as long as those of %s (%.2f and %.2f ms each).", capital(rankTitle(slow.node)), slow.first, slow.last-1,
		slow.each/fast.each, rankTitle(fast.node), slow.each/1e6, fast.each/1e6)
}

// hopTitle names the hop that ends at a lane.
func hopTitle(top engine.Topology, lane string) string {
	from, to := "", ""
	for _, n := range top.Nodes {
		switch {
		case n.Name == lane:
			to = rankTitle(n)
		case slices.Contains(top.Edges, engine.Edge{From: n.Name, To: lane}):
			from = rankTitle(n)
		}
	}
	return fmt.Sprintf("the hop from %s to %s", from, to)
}

// title names a part for people.
func (p part) title(top engine.Topology) string {
	switch {
	case p.Wait == waitHop:
		return hopTitle(top, p.Lane)
	case p.Wait == waitCopy:
		return "waiting for copies"
	case p.Wait != "":
		return "waiting between actors"
	}
	for _, n := range top.Nodes {
		if n.Name == p.Lane {
			return title(n)
		}
	}
	return p.Lane
}

// waitsFor describes a device that waits for a pool in the middle of a step.
func waitsFor(top engine.Topology, p part) string {
	pool := slices.ContainsFunc(top.Nodes, func(n engine.Node) bool { return n.Kind == engine.NodePool && n.Name == p.Lane })
	for _, n := range top.Nodes {
		if pool && n.Kind == engine.NodeDevice && n.Device != "" {
			return fmt.Sprintf(", and %s waits for it", title(n))
		}
	}
	return ""
}

// queued describes waiting requests.
func queued(f *flow) string {
	if f.Waiting == 0 {
		return ""
	}
	requests := "requests wait"
	if f.Waiting == 1 {
		requests = "request waits"
	}
	why := "for a place among the running ones"
	if f.KV[2] > 0 && float64(f.KV[0]) >= kvFull*float64(f.KV[2]) {
		why = "for blocks of the KV cache"
	}
	return fmt.Sprintf(" %d %s %s.", f.Waiting, requests, why)
}

func capital(s string) string {
	if s == "" {
		return s
	}
	return string(s[0]-'a'+'A') + s[1:]
}
