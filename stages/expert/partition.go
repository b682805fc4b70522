package expert

import (
	"fmt"

	"krater/kernels/device"
)

// Partition says which pool computes which expert. The same experts in the same
// pool keep their weights in that pool's memory and caches.
type Partition struct {
	Pools int
	Owner []int32 // [E] pool of each expert, 0..Pools-1
}

// Even divides experts into pools of neighbouring ids whose sizes differ by one
// at most.
func Even(experts, pools int) Partition {
	p := Partition{Pools: pools, Owner: make([]int32, experts)}
	for e := range p.Owner {
		p.Owner[e] = int32(e * pools / experts)
	}
	return p
}

// Check tells whether p covers a bank of experts.
func (p Partition) Check(experts int) error {
	if p.Pools < 1 || len(p.Owner) != experts {
		return fmt.Errorf("expert: %d owners in %d pools for %d experts", len(p.Owner), p.Pools, experts)
	}
	for e, pool := range p.Owner {
		if pool < 0 || int(pool) >= p.Pools {
			return fmt.Errorf("expert: expert %d belongs to pool %d of %d", e, pool, p.Pools)
		}
	}
	return nil
}

// Divide deals work to the pools, keeping its order: parts[i] (length Pools,
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
