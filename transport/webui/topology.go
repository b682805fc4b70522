package webui

import "krater/actors/engine"

// topology is the picture of the pipeline on the wire: the way of the data.
type topology struct {
	Nodes []node      `json:"nodes"`
	Edges [][2]string `json:"edges"`
}

type node struct {
	Name   string          `json:"name"`
	Kind   engine.NodeKind `json:"kind"`
	Index  int             `json:"index"`
	Device string          `json:"device,omitempty"`
	First  int             `json:"first"`
	Last   int             `json:"last"`
	Rank   int             `json:"rank"`
	Memory int             `json:"memory"`
	// Machine is the worker that it is on, "" on this process.
	Machine string `json:"machine,omitempty"`
}

func draw(t engine.Topology) *topology {
	d := &topology{Nodes: []node{}, Edges: [][2]string{}}
	for _, n := range t.Nodes {
		d.Nodes = append(d.Nodes, node{n.Name, n.Kind, n.Index, n.Device, n.First, n.Last, n.Rank, n.MemoryNode, n.Machine})
	}
	kinds := map[string]engine.NodeKind{}
	sampler := ""
	for _, n := range t.Nodes {
		kinds[n.Name] = n.Kind
		if n.Kind == engine.NodeSample {
			sampler = n.Name
		}
	}
	for _, e := range t.Edges {
		// The text is made of the sampler's tokens, which the scheduler only passes on.
		if kinds[e.From] == engine.NodeSchedule && kinds[e.To] == engine.NodeStream && sampler != "" {
			e.From = sampler
		}
		d.Edges = append(d.Edges, [2]string{e.From, e.To})
	}
	return d
}
