package webui

import (
	"fmt"
	"math"
	"slices"

	"krater/actors/engine"
)

const (
	// busyLimits is the share of the time from which on an actor limits the pipeline.
	busyLimits = 0.6
	// busyMost is the share from which on an actor has the largest part of a step.
	busyMost = 0.3
	// busySome is the share from which on there is something to say about it.
	busySome = 0.05
	kvFull   = 0.95
)

// title names an actor for people.
func title(n engine.Node) string {
	switch n.Kind {
	case engine.NodeGroup:
		return fmt.Sprintf("the group of layers %d–%d", n.First, n.Last-1)
	case engine.NodePool:
		return fmt.Sprintf("expert pool %d", n.Index)
	case engine.NodeLink:
		return fmt.Sprintf("the link to layer group %d", n.Index)
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

// judge says in words which actor limits the pipeline.
func judge(top engine.Topology, s *state) *verdict {
	var most engine.Node
	busy := -1.0
	// Beside a device that takes the time of whole steps the sampler does little but wait for it.
	waits := slices.ContainsFunc(top.Nodes, func(n engine.Node) bool { return n.Kind == engine.NodeDevice && n.Device != "" })
	for _, n := range top.Nodes {
		if n.Kind == engine.NodeGateway || n.Kind == engine.NodeCopies || n.Kind == engine.NodeSample && waits {
			continue
		}
		if b := s.Nodes[n.Name][loadBusy]; b > busy {
			most, busy = n, b
		}
	}
	asked := ""
	if most.Kind == engine.NodeDevice {
		if pool, b, ok := busiestPool(top, s); ok && b > busy/2 {
			asked = fmt.Sprintf(", and %s waits for it", title(most))
			most, busy = pool, b
		}
	}
	name, percent := capital(title(most)), math.Round(100*busy)
	v := &verdict{Node: most.Name}
	switch {
	case s.Flow.Running == 0 && s.Flow.Waiting == 0 && busy < busySome:
		return &verdict{Text: "Idle: no request is running."}
	case busy >= busyLimits:
		v.Text = fmt.Sprintf("%s is busy %.0f %% of the time%s: it limits.", name, percent, asked)
	case busy >= busyMost:
		v.Text = fmt.Sprintf("%s takes the largest part of a step: it is busy %.0f %% of the time%s.", name, percent, asked)
	case busy >= busySome:
		v.Text = fmt.Sprintf("There is little to do. %s is the busiest, %.0f %% of the time.", name, percent)
	default:
		v = &verdict{Text: "There is next to nothing to do."}
	}
	if n := s.Flow.Waiting; n > 0 {
		requests := "requests wait"
		if n == 1 {
			requests = "request waits"
		}
		why := "for a place among the running ones"
		if s.Flow.KV[2] > 0 && float64(s.Flow.KV[0]) >= kvFull*float64(s.Flow.KV[2]) {
			why = "for blocks of the KV cache"
		}
		v.Text += fmt.Sprintf(" %d %s %s.", n, requests, why)
	}
	return v
}

// busiestPool is the pool that a device waits for which has asked it in the middle of a step: the
// device's own work is no more than what is left of its time.
func busiestPool(top engine.Topology, s *state) (pool engine.Node, busy float64, ok bool) {
	for _, n := range top.Nodes {
		if b := s.Nodes[n.Name][loadBusy]; n.Kind == engine.NodePool && b > busy {
			pool, busy, ok = n, b, true
		}
	}
	return pool, busy, ok
}

func capital(s string) string {
	if s == "" {
		return s
	}
	return string(s[0]-'a'+'A') + s[1:]
}
