// Package kvblocks keeps the books of a paged KV cache (PagedAttention, arXiv 2309.06180 section
// 4.3) whose blocks are shared by sequences with equal prefixes. It knows ids, integers from 0 on;
// the bytes belong to the layer groups, which all use one numbering.
//
// A block is free (it holds nothing of use), held (by one or more sequences) or idle (held by none,
// but its contents are known and of use to the next sequence with the same tokens). Contents are
// known by an identity: the tokens of the block and the identity of the block before it, back to a
// root, which stands for everything that must be equal beside the tokens. Identities are compared,
// never only their hashes. A token's complement (^id) names the same token of the other numerics
// class: FindAlike takes either.
//
// Only blocks below a bound are handed out, and the bound moves (Resize).
//
// Free blocks are handed out first, the most recently freed before the others, because its memory
// is most likely in a cache: a new pool hands out 0, 1, 2, ... Then idle blocks are evicted, least
// recently used first. An evicted block loses its identity or, with places in host memory, passes
// it on to one of those. The same calls always give the same ids.
package kvblocks

import (
	"fmt"
	"hash/maphash"
	"slices"
)

// Config holds the sizes of a Pool.
type Config struct {
	Blocks      int // in the pool
	BlockTokens int // tokens of a block
	RAM         int // places for blocks in host memory
	Snapshots   int // places for states at borders of blocks
	Windows     int // window blocks, see TakeWindow
}

// Pool is the blocks, places and snapshots of a cache. One goroutine uses it at a time.
// Blocks are pages 0 to Blocks-1; after them come the places in host memory.
type Pool struct {
	cfg   Config
	pages []page
	open  int     // blocks from here on are not handed out
	shut  int     // of those, the ones that no sequence holds
	free  []int32 // stack of free blocks, the next one to hand out last
	idle  order   // blocks that are not held and have an identity
	table table
	roots roots
	parts map[uint64]int // by parent: how many pages that are not full come after it

	named map[uint64]int32 // by serial, the page that has it

	places      []int32 // stack of free places
	resting     order   // places with an identity that no move works on
	snapshot    []snapshot
	vacant      []int32 // stack of free snapshots
	kept        order   // snapshots that belong to a page and that no move works on
	windows     []windowBlock
	freeWindows []int32 // stack
	idleWindows order   // of window blocks that belong to a page and are not pinned
}

// page is a block or a place in host memory.
type page struct {
	serial uint64  // its identity; 0: none
	parent uint64  // that of the block before it, or of a root
	hash   uint64  // of parent and tokens
	prefix prefix  // of all tokens up to its end
	tokens []int32 // BlockTokens of them, or fewer: see Put
	next   int32   // in its bucket of the table
	listed bool    // in the table
	holds  int32   // of a block: by sequences and moves; of a place: by moves
	snap   int32   // its snapshot; -1: none
	window int32   // its window block; -1: none
	gen    uint32  // rises whenever it is handed out
}

// New returns a pool with everything free.
func New(cfg Config) *Pool {
	n := cfg.Blocks + cfg.RAM
	p := &Pool{
		cfg: cfg, open: cfg.Blocks, pages: make([]page, n), free: make([]int32, cfg.Blocks), idle: newOrder(cfg.Blocks),
		places: make([]int32, cfg.RAM), resting: newOrder(n),
		snapshot: make([]snapshot, cfg.Snapshots), vacant: make([]int32, cfg.Snapshots), kept: newOrder(cfg.Snapshots),
		windows: make([]windowBlock, cfg.Windows), freeWindows: make([]int32, cfg.Windows), idleWindows: newOrder(cfg.Windows),
	}
	p.parts, p.named = map[uint64]int{}, map[uint64]int32{}
	p.table.init(n)
	p.roots.init()
	p.table.seed = maphash.MakeSeed()
	for i := range p.pages {
		p.pages[i].snap, p.pages[i].window = -1, -1
	}
	for i := range p.free {
		p.free[i] = int32(cfg.Blocks - 1 - i)
	}
	for i := range p.places {
		p.places[i] = int32(n - 1 - i)
	}
	for i := range p.snapshot {
		p.snapshot[i].page = -1
		p.vacant[i] = int32(cfg.Snapshots - 1 - i)
	}
	for i := range p.windows {
		p.windows[i].page = -1
		p.freeWindows[i] = int32(cfg.Windows - 1 - i)
	}
	return p
}

// Total returns the number of blocks.
func (p *Pool) Total() int { return p.cfg.Blocks }

// Available returns the number of blocks that Alloc can hand out: free or idle.
func (p *Pool) Available() int { return len(p.free) + p.idle.n }

// Idle returns the number of blocks that no sequence holds and whose contents are of use.
func (p *Pool) Idle() int { return p.idle.n }

// Used returns the number of blocks that are held.
func (p *Pool) Used() int { return p.cfg.Blocks - p.shut - p.Available() }

// Resize sets the number of blocks that may be handed out to n: the blocks below n. Other blocks are dropped when no sequence holds them.
// Resize returns the number of blocks up to the last one that is held or may be handed out. The memory of the others belongs to the
// caller.
func (p *Pool) Resize(n int) int {
	n = max(0, min(n, p.cfg.Blocks))
	if p.shut > 0 && n > p.open {
		var more []int32 // below those that are free, so that the last blocks are taken last
		for id := n - 1; id >= p.open; id-- {
			if p.pages[id].holds == 0 {
				more = append(more, int32(id))
			}
		}
		p.shut -= len(more)
		p.free = append(more, p.free...)
	}
	if n < p.open {
		p.free = slices.DeleteFunc(p.free, func(id int32) bool { return int(id) >= n })
		for id := n; id < p.open; id++ {
			if g := &p.pages[id]; g.holds == 0 {
				if g.serial != 0 {
					p.idle.remove(int32(id))
					p.forget(int32(id))
				}
				p.shut++
			}
		}
	}
	p.open = n
	for last := p.cfg.Blocks; last > n; last-- {
		if p.pages[last-1].holds > 0 {
			return last
		}
	}
	return n
}

// Usable returns the number of blocks that may be handed out. Blocks beyond it that are still held do not count.
func (p *Pool) Usable() int { return p.open }

// Places returns the number of places in host memory that are not free.
func (p *Pool) Places() int { return p.cfg.RAM - len(p.places) }

// Snapshots returns the number of snapshots that are not free.
func (p *Pool) Snapshots() int { return p.cfg.Snapshots - len(p.vacant) }

// Alloc hands out a block, held once. If place is not -1, an idle block was evicted and still has
// its contents, which that place of host memory (from 0 on) takes over: the caller copies them
// there before anything is written, and calls Saved. There must be one Available.
func (p *Pool) Alloc() (block, place int32) {
	place = -1
	if n := len(p.free); n > 0 {
		block = p.free[n-1]
		p.free = p.free[:n-1]
	} else {
		block = p.idle.front()
		if block < 0 {
			panic("kvblocks: no block is available")
		}
		p.idle.remove(block)
		place = p.retire(block)
	}
	g := &p.pages[block]
	g.holds = 1
	g.gen++
	return block, place
}

// Hold holds a block once more, or again, whose contents are of use.
func (p *Pool) Hold(block int32) {
	g := p.block(block)
	if g.holds == 0 {
		p.idle.remove(block)
	}
	g.holds++
}

// Free gives up holds of blocks; ids stays the caller's. Blocks without holds become idle or free,
// the last one first, so that the end of a prefix is reused before its beginning.
//
// A block that is not held, or no block at all, panics: the caller's books are wrong, and going on
// would let two sequences write over each other.
func (p *Pool) Free(ids []int32) {
	for i := len(ids) - 1; i >= 0; i-- {
		g := p.block(ids[i])
		if g.holds == 0 {
			panic(fmt.Sprintf("kvblocks: free of block %d, which is not held", ids[i]))
		}
		if g.holds--; g.holds > 0 {
			continue
		}
		if int(ids[i]) >= p.open {
			if g.serial != 0 {
				p.forget(ids[i])
			} else {
				p.dropWindow(ids[i])
			}
			p.shut++
			continue
		}
		if g.serial != 0 {
			p.idle.push(ids[i])
		} else {
			p.dropWindow(ids[i])
			p.free = append(p.free, ids[i])
		}
	}
}

func (p *Pool) block(id int32) *page {
	if id < 0 || int(id) >= p.cfg.Blocks {
		panic(fmt.Sprintf("kvblocks: block %d, there are %d", id, p.cfg.Blocks))
	}
	return &p.pages[id]
}

// Held reports whether a block is held.
func (p *Pool) Held(block int32) bool { return p.block(block).holds > 0 }

// Holds returns the number of holds of a block.
func (p *Pool) Holds(block int32) int { return int(p.block(block).holds) }

// Generation tells contents without an identity apart: while it is the same and the block Useful,
// what was written to the block is still there.
func (p *Pool) Generation(block int32) uint32 { return p.block(block).gen }

// Useful reports whether a block is held or idle.
func (p *Pool) Useful(block int32) bool {
	g := p.block(block)
	return g.holds > 0 || g.serial != 0
}

// Clear forgets all contents. Blocks that are held stay so, without an identity. No move may be
// under way.
func (p *Pool) Clear() {
	for i := range p.pages {
		id, g := int32(i), &p.pages[i]
		g.gen++
		if g.serial == 0 {
			continue
		}
		p.forget(id)
		switch {
		case i >= p.cfg.Blocks:
			p.resting.remove(id)
			p.places = append(p.places, id)
		case g.holds == 0: // idle, so below open
			p.idle.remove(id)
			p.free = append(p.free, id)
		}
	}
}
