package machine

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Node is a NUMA node: processors and the memory that is near to them. Either may be missing: a
// node of CXL or accelerator memory has no processors, one with empty memory slots no memory.
type Node struct {
	ID    int   `json:"id"`
	CPUs  []int `json:"cpus"` // that are on
	Total int64 `json:"total"`
	Free  int64 `json:"free"`
}

// NodesPerSocket counts the nodes with processors of a socket, 0 if unknown.
func (m *Machine) NodesPerSocket() int {
	n := 0
	for i := range m.Nodes {
		if len(m.Nodes[i].CPUs) > 0 {
			n++
		}
	}
	return n / max(1, m.CPU.Sockets)
}

// NodeRoom returns the memory of a node that is available now, 0 if unknown: free memory, and pages
// of files that can be dropped. For a machine with one node it is unknown, see nodes.
func NodeRoom(id int) int64 { return tree{os.DirFS("/")}.nodeRoom(id) }

func (t tree) nodeRoom(id int) int64 {
	if len(t.list(nodeFolder+"/online")) < 2 {
		return 0
	}
	info := t.text(fmt.Sprintf("%s/node%d/meminfo", nodeFolder, id))
	return parseKB(info, "MemFree") + parseKB(info, "Active(file)") + parseKB(info, "Inactive(file)")
}

const nodeFolder = "sys/devices/system/node"

// nodes lists the nodes that are on; a system without NUMA is one node.
func (t tree) nodes(online []int, mem Memory) []Node {
	ids := t.list(nodeFolder + "/online")
	if ids == nil {
		for _, name := range t.names(nodeFolder) {
			if number, ok := strings.CutPrefix(name, "node"); ok {
				if id, err := parseID(number); err == nil {
					ids = append(ids, id)
				}
			}
		}
		slices.Sort(ids)
	}
	var nodes []Node
	for _, id := range ids {
		folder := fmt.Sprintf("%s/node%d", nodeFolder, id)
		info := t.text(folder + "/meminfo")
		n := Node{
			ID: id, CPUs: intersect(t.list(folder+"/cpulist"), online),
			Total: parseKB(info, "MemTotal"), Free: parseKB(info, "MemFree"),
		}
		if len(n.CPUs) > 0 || n.Total > 0 {
			nodes = append(nodes, n)
		}
	}
	switch {
	case len(nodes) == 1 && mem.Total > 0:
		// A lone node has it all: its own count may leave out memory that a virtual machine was
		// given later.
		nodes[0].Total, nodes[0].Free = mem.Total, mem.Free
	case nodes == nil && len(online) > 0:
		nodes = []Node{{CPUs: online, Total: mem.Total, Free: mem.Free}}
	}
	return nodes
}
