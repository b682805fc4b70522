package expert

import (
	"cmp"
	"fmt"
	"slices"

	"krater/kernels/device"
)

// Partition assigns each expert to the pool that computes it. So the weights of an
// expert stay in the memory and caches of one pool.
type Partition struct {
	Pools int
	Owner []int32 // [E] pool of each expert, 0..Pools-1
	// Nodes [Pools] are the device's nodes on which the pools run; nil: pool i is on
	// node i. Only the place of memory depends on it.
	Nodes []int
}

// Even is like Spread, for pools of equal weight.
func Even(experts, pools int) Partition {
	weights := make([]int, pools)
	for i := range weights {
		weights[i] = 1
	}
	return Spread(experts, weights)
}

// Spread divides experts among pools in proportion to the weights of the pools (not
// negative, their sum positive), by largest remainders. As far as possible it also
// divides every range of ids in this proportion. Experts that are often chosen
// together have neighbouring ids (DeepSeek's routers first choose groups of
// neighbouring experts, then all of a token's experts from these), and one pool
// must not get all of them.
func Spread(experts int, weights []int) Partition {
	counts := apportion(experts, weights)
	p := Partition{Pools: len(weights), Owner: make([]int32, 0, experts)}
	type seat struct{ pool, nth int }
	var seats []seat
	for pool, n := range counts {
		for i := range n {
			seats = append(seats, seat{pool, i})
		}
	}
	// The i-th of n experts of a pool belongs at (i + 1/2) / n of the way.
	slices.SortStableFunc(seats, func(a, b seat) int {
		return cmp.Compare((2*a.nth+1)*counts[b.pool], (2*b.nth+1)*counts[a.pool])
	})
	for _, s := range seats {
		p.Owner = append(p.Owner, int32(s.pool))
	}
	return p
}

// apportion divides n by weights, the rest going to the largest remainders and
// of equal ones to the first.
func apportion(n int, weights []int) []int {
	total := 0
	for _, w := range weights {
		total += w
	}
	counts, order, left := make([]int, len(weights)), make([]int, len(weights)), n
	for i, w := range weights {
		counts[i], order[i] = n*w/total, i
		left -= counts[i]
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(n*weights[b]%total, n*weights[a]%total)
	})
	for _, i := range order[:left] {
		counts[i]++
	}
	return counts
}

// Counts returns the number of experts of each pool.
func (p Partition) Counts() []int {
	counts := make([]int, p.Pools)
	for _, pool := range p.Owner {
		counts[pool]++
	}
	return counts
}

// Node returns the node of a pool.
func (p Partition) Node(pool int) int {
	if p.Nodes == nil {
		return pool
	}
	return p.Nodes[pool]
}

// Check returns an error unless p covers a bank of experts.
func (p Partition) Check(experts int) error {
	if p.Pools < 1 || len(p.Owner) != experts {
		return fmt.Errorf("expert: %d owners in %d pools for %d experts", len(p.Owner), p.Pools, experts)
	}
	if p.Nodes != nil && len(p.Nodes) != p.Pools {
		return fmt.Errorf("expert: %d nodes of %d pools", len(p.Nodes), p.Pools)
	}
	for e, pool := range p.Owner {
		if pool < 0 || int(pool) >= p.Pools {
			return fmt.Errorf("expert: expert %d belongs to pool %d of %d", e, pool, p.Pools)
		}
	}
	return nil
}

// Divide divides work among the pools and keeps its order: parts[i] (length Pools,
// contents reused) becomes the part of pool i, which may be empty. The parts
// share the assignments of work.
func (p Partition) Divide(parts [][]device.ExpertRows, work []device.ExpertRows) {
	for i := range parts {
		parts[i] = parts[i][:0]
	}
	for _, w := range work {
		pool := p.Owner[w.Expert]
		parts[pool] = append(parts[pool], w)
	}
}
