package actors

import (
	"errors"
	"fmt"
	"strings"

	"krater/stages/load"
)

// Blueprint is the pipeline's topology as plain data: which layer groups there
// are, how they are linked, how many expert pools serve them and into how many
// micro-batches what is served is divided. It holds no device, goroutine or process id;
// Start makes it live.
type Blueprint struct {
	Groups []GroupSpec
	Pools  int // expert pools; every group's split addresses all of them
	// MicroBatches is the number of parts that running sequences are divided into, each
	// with a batch of its own in flight: while experts of one are computed elsewhere, a
	// group works on another.
	MicroBatches int
}

// poolsMax bounds the expert pools: more than any machine has memory nodes and
// cards.
const poolsMax = 64

// GroupSpec is one layer group: layers [First, Last) on one rank.
type GroupSpec struct {
	First, Last int
	Rank        int // groups of one rank share a device
}

// LinkKind says how hidden states get from one group to the next.
type LinkKind uint8

const (
	// LinkDirect: both groups compute on the same memory; the batch moves, its bytes stay.
	LinkDirect LinkKind = iota
)

func (k LinkKind) String() string {
	if k == LinkDirect {
		return "direct"
	}
	return fmt.Sprintf("LinkKind(%d)", uint8(k))
}

// Cut divides layers into n groups as load.Even does, all on one rank.
func Cut(layers, n int) ([]GroupSpec, error) {
	if n < 1 || n > layers {
		return nil, fmt.Errorf("layer groups: %d groups of %d layers: want 1 to %d", n, layers, layers)
	}
	groups := make([]GroupSpec, 0, n)
	at := 0
	for _, size := range load.Even(layers, n) {
		groups = append(groups, GroupSpec{First: at, Last: at + size})
		at += size
	}
	return groups, nil
}

// Check reports the first fault of a blueprint for a model of so many layers.
func (b *Blueprint) Check(layers int) error {
	switch {
	case len(b.Groups) == 0:
		return errors.New("blueprint: no layer group")
	case b.Pools < 1 || b.Pools > poolsMax:
		return fmt.Errorf("blueprint: %d expert pools, want 1 to %d", b.Pools, poolsMax)
	case b.MicroBatches < 1:
		return fmt.Errorf("blueprint: %d micro-batches, want at least 1", b.MicroBatches)
	}
	at := 0
	for i, g := range b.Groups {
		if g.First != at || g.Last <= g.First {
			return fmt.Errorf("blueprint: group %d has layers [%d, %d), want it to start at %d", i, g.First, g.Last, at)
		}
		at = g.Last
	}
	if at != layers {
		return fmt.Errorf("blueprint: groups end at layer %d of %d", at, layers)
	}
	return nil
}

// String draws the route of a batch, one line.
func (b *Blueprint) String() string {
	var s strings.Builder
	s.WriteString("schedule > embed")
	for i, g := range b.Groups {
		if i > 0 {
			fmt.Fprintf(&s, " > link[%s]", LinkDirect)
		}
		fmt.Fprintf(&s, " > group%d[%d..%d on rank %d, %d pools]", i, g.First, g.Last-1, g.Rank, b.Pools)
	}
	fmt.Fprintf(&s, " > head > sample > stream; micro-batches: %d", b.MicroBatches)
	return s.String()
}
