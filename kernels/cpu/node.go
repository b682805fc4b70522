package cpu

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"krater/kernels/machine"
)

// Node is a set of processors with local memory.
type Node struct {
	ID      int   // NUMA node as the system numbers it; several Nodes may share one
	CPUs    []int // processors of the node's workers, one per core
	Threads int   // at most len(CPUs); 0: one per processor
	Fake    bool  // made up: no thread is bound, and memory comes from anywhere
}

const (
	nodeLimit   = 64      // nodes of a device
	nodeIDLimit = 1 << 10 // NUMA nodes and
	cpuLimit    = 1 << 13 // processors: the kernel's own limits

	// spareProcessors are for goroutines other than the computing threads.
	spareProcessors = 2
)

// NodesOf returns the nodes of a device for the machine's NUMA nodes, or for made-up ones of
// machine.ParseTopology. A node's processors are one of each core that this process may use.
// threads is the number to use in all; 0 means all cores, or on a real machine as many as the
// container's CPU limit grants. They are divided in proportion to the nodes' cores, and a node that
// gets none is left out. A real machine with one node returns nil, since its threads need no
// binding.
func NodesOf(m *machine.Machine, fake []machine.Node, threads int) ([]Node, error) {
	var nodes []Node
	if len(fake) > 0 {
		for _, n := range fake {
			nodes = append(nodes, Node{ID: n.ID, CPUs: n.CPUs, Fake: true})
		}
	} else {
		for _, n := range m.Nodes {
			if cpus := coresOf(&m.CPU, n.CPUs); len(cpus) > 0 {
				nodes = append(nodes, Node{ID: n.ID, CPUs: cpus})
			}
		}
	}
	cores := 0
	for _, n := range nodes {
		cores += len(n.CPUs)
	}
	switch {
	case len(nodes) == 0:
		return nil, nil
	case threads < 0 || threads > cores && len(fake) > 0:
		return nil, fmt.Errorf("cpu: %d threads for nodes of %d cores", threads, cores)
	case threads == 0 && len(fake) == 0 && m.Limits.CPUs > 0:
		threads = max(1, min(cores, int(m.Limits.CPUs)))
	case threads == 0 || threads > cores:
		threads = cores
	}
	nodes = deal(nodes, threads, cores)
	if len(nodes) == 1 && len(fake) == 0 {
		return nil, nil
	}
	return nodes, nil
}

// coresOf picks a processor of each core: the first that may be used.
func coresOf(c *machine.CPU, ids []int) []int {
	var cpus []int
	for _, core := range c.Siblings {
		for _, id := range core {
			if slices.Contains(ids, id) && slices.Contains(c.Allowed, id) {
				cpus = append(cpus, id)
				break
			}
		}
	}
	slices.Sort(cpus)
	return cpus
}

// deal divides threads among nodes with the given numbers of cores, by largest remainders, and
// leaves out nodes without threads.
func deal(nodes []Node, threads, cores int) []Node {
	left := threads
	for i := range nodes {
		nodes[i].Threads = threads * len(nodes[i].CPUs) / cores
		left -= nodes[i].Threads
	}
	order := make([]int, len(nodes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return threads*len(nodes[b].CPUs)%cores - threads*len(nodes[a].CPUs)%cores
	})
	for _, i := range order[:left] {
		nodes[i].Threads++
	}
	return slices.DeleteFunc(nodes, func(n Node) bool { return n.Threads == 0 })
}

// Processors returns the value of GOMAXPROCS for a device of these nodes. A bound worker keeps its
// P while it spins, so other goroutines need additional ones. It must be set before New, which
// otherwise uses a slower way of spinning.
func Processors(nodes []Node) int {
	n := runtime.GOMAXPROCS(0)
	if bound(nodes) {
		n = max(n, threadsOf(nodes)+max(spareProcessors, len(nodes)))
	}
	return n
}

func bound(nodes []Node) bool { return len(nodes) > 0 && !nodes[0].Fake }

func threadsOf(nodes []Node) int {
	n := 0
	for i := range nodes {
		n += nodes[i].threads()
	}
	return n
}

func (n *Node) threads() int {
	if n.Threads == 0 {
		return len(n.CPUs)
	}
	return n.Threads
}

// checkNodes refuses nodes that would put two threads on one core.
func checkNodes(nodes []Node) error {
	if len(nodes) > nodeLimit {
		return fmt.Errorf("cpu: %d nodes, want at most %d", len(nodes), nodeLimit)
	}
	seen := map[int]bool{}
	for i := range nodes {
		n := &nodes[i]
		if n.Fake != nodes[0].Fake {
			return errors.New("cpu: real and made-up nodes together")
		}
		if n.ID < 0 || n.ID >= nodeIDLimit {
			return fmt.Errorf("cpu: NUMA node %d, want 0 to %d", n.ID, nodeIDLimit-1)
		}
		if t := n.threads(); t < 1 || t > len(n.CPUs) {
			return fmt.Errorf("cpu: %d threads on %d cores of node %d", t, len(n.CPUs), n.ID)
		}
		for _, id := range n.CPUs {
			if id < 0 || id >= cpuLimit || seen[id] {
				return fmt.Errorf("cpu: processor %d of node %d is out of range or another node's too", id, n.ID)
			}
			seen[id] = true
		}
	}
	if len(nodes) == 0 || nodes[0].Fake {
		return nil
	}
	allowed, err := threadCPUs(0)
	if err != nil {
		return nil // binding will fail too, and be reported
	}
	for id := range seen {
		if !slices.Contains(allowed, id) {
			return fmt.Errorf("cpu: this process may not run on processor %d", id)
		}
	}
	return nil
}
