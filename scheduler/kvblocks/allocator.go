// Package kvblocks hands out the blocks of a paged KV cache (PagedAttention,
// arXiv 2309.06180 section 4.3). It knows block ids, integers from 0 on; the
// bytes behind them belong to the layer groups, which all use one numbering.
//
// The free list is a stack: the block freed last is handed out first, since its
// memory is the most likely to be warm. A new allocator hands out 0, 1, 2, ...
// The same calls always give the same ids.
package kvblocks

import "fmt"

// Allocator is a pool of blocks. One goroutine uses it at a time.
type Allocator struct {
	free []int32 // stack of free ids, the next one to hand out last
	held []bool  // by id: handed out and not yet freed
}

// New returns an allocator of the blocks 0 to total-1, all free. It keeps 5
// bytes a block; total must lie in 0 to 2^31-1.
func New(total int) *Allocator {
	a := &Allocator{free: make([]int32, total), held: make([]bool, total)}
	for i := range a.free {
		a.free[i] = int32(total - 1 - i)
	}
	return a
}

// Alloc appends n block ids to dst and returns the longer slice. When fewer
// than n are free it takes none and returns dst and false. The contents of the
// blocks are whatever their last holder left there.
func (a *Allocator) Alloc(dst []int32, n int) ([]int32, bool) {
	if n < 0 || n > len(a.free) {
		return dst, false
	}
	for range n {
		top := len(a.free) - 1
		id := a.free[top]
		a.free = a.free[:top]
		a.held[id] = true
		dst = append(dst, id)
	}
	return dst, true
}

// Free gives blocks back; ids stays the caller's. The next Alloc of as many
// blocks returns them in the same order.
//
// A block that is not held, or no block at all, panics: the caller's books are
// wrong, and going on would let two sequences write over each other.
func (a *Allocator) Free(ids []int32) {
	for i := len(ids) - 1; i >= 0; i-- {
		id := ids[i]
		if id < 0 || int(id) >= len(a.held) {
			panic(fmt.Sprintf("kvblocks: free of block %d, there are %d", id, len(a.held)))
		}
		if !a.held[id] {
			panic(fmt.Sprintf("kvblocks: free of block %d, which is not held", id))
		}
		a.held[id] = false
		a.free = append(a.free, id)
	}
}

// Total is the number of blocks, free or held.
func (a *Allocator) Total() int { return len(a.held) }

// Used is the number of blocks handed out and not yet freed.
func (a *Allocator) Used() int { return len(a.held) - len(a.free) }

// Check verifies that every block is either held or on the free list, once. It
// costs time in the number of blocks and is meant for tests and idle moments.
func (a *Allocator) Check() error {
	seen := make([]bool, len(a.held))
	for _, id := range a.free {
		switch {
		case id < 0 || int(id) >= len(a.held):
			return fmt.Errorf("kvblocks: free list holds block %d of %d", id, len(a.held))
		case seen[id]:
			return fmt.Errorf("kvblocks: block %d is twice on the free list", id)
		case a.held[id]:
			return fmt.Errorf("kvblocks: block %d is held and free", id)
		}
		seen[id] = true
	}
	for id, held := range a.held {
		if !held && !seen[id] {
			return fmt.Errorf("kvblocks: block %d is neither held nor free", id)
		}
	}
	return nil
}
