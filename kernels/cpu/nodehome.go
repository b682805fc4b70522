package cpu

import (
	"fmt"
	"runtime"
	"slices"

	"krater/kernels/device"
)

// home is one of a device's nodes with its threads. A device without nodes has one made-up home.
type home struct {
	Node
	crew *crew
	team *Team
}

// settle starts the threads of nodes. The callers of operators are the last thread of the first
// node, so a loop over all nodes uses its caller and all workers. A loop on one of several nodes
// uses only that node's workers, and its caller waits: there are never more computing threads than
// cores in the nodes. Only if the first node has no other thread, its loops run on the callers.
func settle(nodes []Node) (*Team, []home) {
	homes := make([]home, len(nodes))
	crews := make([]*crew, len(nodes))
	spare := runtime.GOMAXPROCS(0) > threadsOf(nodes)
	for i, n := range nodes {
		workers := n.threads()
		if i == 0 {
			workers--
		}
		c := newCrew(workers)
		if !n.Fake {
			c.bind(n.CPUs, spare)
		}
		crews[i], homes[i] = c, home{Node: n, crew: c}
		if len(nodes) > 1 {
			homes[i].team = newTeam(max(1, workers), workers > 0, c)
		}
	}
	all := newTeam(threadsOf(nodes), false, crews...)
	for i := range homes {
		if len(nodes) == 1 {
			homes[i].team = all
		}
		crews[i].start()
	}
	return all, homes
}

// Nodes returns the number of nodes, at least 1.
func (d *Device) Nodes() int { return len(d.homes) }

// NodeThreads returns the number of threads of each node.
func (d *Device) NodeThreads() []int {
	n := make([]int, len(d.homes))
	for i := range d.homes {
		n[i] = d.homes[i].threads()
	}
	return n
}

// NewNodeStream returns a stream whose loops run on the workers of one node, with scratch in that
// node's memory. The callers of its operators only wait, so it suits work that runs next to other
// streams. With one node it is like NewStream.
func (d *Device) NewNodeStream(node int) (device.Stream, error) {
	if err := d.checkNode(node); err != nil {
		return nil, err
	}
	if len(d.homes) == 1 {
		return d.NewStream()
	}
	h := &d.homes[node]
	return d.newStream(h.team, func(old []byte, n int) []byte { return d.scratchOn(h, old, n) }), nil
}

func (d *Device) checkNode(node int) error {
	if node < 0 || node >= len(d.homes) {
		return fmt.Errorf("%s: node %d of %d", d.name, node, len(d.homes))
	}
	return nil
}

// notice keeps a line for people, without repetitions.
func (d *Device) notice(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Contains(d.notices, line) {
		d.notices = append(d.notices, line)
	}
}

// Notices returns what the system refused and what is done instead, one line each.
func (d *Device) Notices() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.notices)
}
