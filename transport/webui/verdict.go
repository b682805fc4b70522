package webui

import (
	"fmt"
	"math"
	"slices"

	"krater/actors/engine"
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
	v.Text += queued(s.Flow)
	return v
}

// title names a part for people.
func (p part) title(top engine.Topology) string {
	switch {
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
