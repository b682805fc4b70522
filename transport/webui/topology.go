package webui

import "krater/actors/engine"

// topology is the picture of the pipeline on the wire.
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
}

func draw(t engine.Topology) *topology {
	d := &topology{Nodes: []node{}, Edges: [][2]string{}}
	for _, n := range t.Nodes {
		d.Nodes = append(d.Nodes, node{n.Name, n.Kind, n.Index, n.Device, n.First, n.Last, n.Rank, n.MemoryNode})
	}
	for _, e := range t.Edges {
		d.Edges = append(d.Edges, [2]string{e.From, e.To})
	}
	return d
}
