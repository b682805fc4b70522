package actors

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"krater/stages/load"
)

// Blueprint is the pipeline's topology as plain data: the layer groups, their links, the number of expert
// pools, and the number of micro-batches. It holds no device, goroutine or process id. Start makes a
// pipeline from it.
type Blueprint struct {
	Groups []GroupSpec
	Pools  int // expert pools; every group's split addresses all of them
	// MicroBatches is the number of parts into which running sequences are divided, each with a batch
	// of its own in flight. While other actors compute the experts of one batch, a group works on another.
	MicroBatches int
}

// poolsMax bounds the expert pools: more than any machine has NUMA nodes and GPUs.
const poolsMax = 64

// GroupSpec is one layer group: layers [First, Last) on one rank.
type GroupSpec struct {
	First, Last int
	Rank        int // groups of one rank share a device
	// Link names the kind of link over which hidden states come from the group before; Start sets it.
	// Within a rank it is "direct": the batch moves, and its bytes stay where they are.
	Link string
}

// sameMemory is the link of groups that share memory.
const sameMemory = "direct"

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

// Groups returns the layer groups of a model's ranks.
func Groups(ranks []load.Rank) []GroupSpec {
	var groups []GroupSpec
	for i, r := range ranks {
		for _, g := range r.Groups {
			groups = append(groups, GroupSpec{First: g.First, Last: g.Last, Rank: i})
		}
	}
	return groups
}

// over checks the blueprint against the ranks that were loaded, which have the model's layers from
// first to before last; without groups it has theirs.
func (b *Blueprint) over(ranks []load.Rank, first, last int) error {
	loaded := Groups(ranks)
	if b.Groups == nil {
		b.Groups = loaded
	}
	if err := b.check(first, last); err != nil {
		return err
	}
	if len(b.Groups) != len(loaded) {
		return fmt.Errorf("blueprint: %d groups, the model is loaded in %d", len(b.Groups), len(loaded))
	}
	b.Groups = slices.Clone(b.Groups) // Start notes the links
	for i, g := range loaded {
		if b.Groups[i].Link = ""; b.Groups[i] != g {
			return fmt.Errorf("blueprint: group %d has layers [%d, %d) on rank %d, loaded are [%d, %d) on rank %d", i,
				b.Groups[i].First, b.Groups[i].Last, b.Groups[i].Rank, g.First, g.Last, g.Rank)
		}
	}
	return nil
}

// Check returns the first fault of a blueprint for a model with the given number of layers.
func (b *Blueprint) Check(layers int) error { return b.check(0, layers) }

func (b *Blueprint) check(first, last int) error {
	switch {
	case len(b.Groups) == 0:
		return errors.New("blueprint: no layer group")
	case b.Pools < 1 || b.Pools > poolsMax:
		return fmt.Errorf("blueprint: %d expert pools, want 1 to %d", b.Pools, poolsMax)
	case b.MicroBatches < 1:
		return fmt.Errorf("blueprint: %d micro-batches, want at least 1", b.MicroBatches)
	}
	at, rank := first, 0
	for i, g := range b.Groups {
		if g.Rank < rank || g.Rank > rank+1 || i == 0 && g.Rank != 0 {
			return fmt.Errorf("blueprint: group %d is on rank %d, the one before on rank %d", i, g.Rank, rank)
		}
		rank = g.Rank
		if g.First != at || g.Last <= g.First {
			return fmt.Errorf("blueprint: group %d has layers [%d, %d), want it to start at %d", i, g.First, g.Last, at)
		}
		at = g.Last
	}
	if at != last {
		return fmt.Errorf("blueprint: groups end at layer %d of %d", at, last)
	}
	return nil
}

// String describes the route of a batch in one line.
func (b *Blueprint) String() string { return b.route("schedule > embed", "head > sample > stream") }

// route is String with other actors before and after the groups.
func (b *Blueprint) route(before, after string) string {
	var s strings.Builder
	s.WriteString(before)
	for i, g := range b.Groups {
		if i > 0 {
			fmt.Fprintf(&s, " > link[%s]", cmp.Or(g.Link, sameMemory))
		}
		fmt.Fprintf(&s, " > group%d[%d..%d on rank %d, %d pools]", i, g.First, g.Last-1, g.Rank, b.Pools)
	}
	fmt.Fprintf(&s, " > %s; micro-batches: %d", after, b.MicroBatches)
	return s.String()
}
