package machine

import (
	"fmt"
	"strconv"
	"strings"
)

// Bounds of a made-up topology.
const (
	fakeNodesMax = 64
	fakeCoresMax = 1024 // of a node
)

// ParseTopology reads a made-up topology: groups of equal nodes as nodes x cores, such as "2x8,1x4"
// for two nodes of 8 cores and one of 4. Processors are numbered through, a core has one; memory is
// not divided (0).
func ParseTopology(text string) ([]Node, error) {
	var nodes []Node
	next := 0
	for part := range strings.SplitSeq(text, ",") {
		count, cores, ok := strings.Cut(strings.TrimSpace(part), "x")
		n, err := strconv.ParseUint(count, 10, 16)
		c, err2 := strconv.ParseUint(cores, 10, 16)
		if !ok || err != nil || err2 != nil || n < 1 || c < 1 || c > fakeCoresMax {
			return nil, fmt.Errorf("%.40q is no topology: write nodes x cores, such as 2x8,1x4, with 1 to %d cores", part, fakeCoresMax)
		}
		if len(nodes)+int(n) > fakeNodesMax {
			return nil, fmt.Errorf("a topology of over %d nodes", fakeNodesMax)
		}
		for range n {
			node := Node{ID: len(nodes), CPUs: make([]int, c)}
			for i := range node.CPUs {
				node.CPUs[i] = next + i
			}
			next += int(c)
			nodes = append(nodes, node)
		}
	}
	return nodes, nil
}
