package cpu

import "sync"

// Matrices of some megabytes, each mapped for itself, would lie on small pages where their ends do
// not fill a huge one, which costs a product that streams them a third of its speed. So they are
// cut from slabs, side by side.
const (
	slabSize = 64 << 20 // bytes of a slab
	slabMost = 16 << 20 // size of the largest piece in bytes; larger ones have their own mappings
	slabUnit = 4096     // bytes; pieces start at a multiple
)

// slabs hands out zeroed memory in pieces. A slab is unmapped with its last piece. Freed memory is
// not reused, so that it need not be cleared.
type slabs struct {
	mu   sync.Mutex
	open *slab // the one being cut
}

type slab struct {
	memory []byte
	used   int // bytes cut off
	live   int // pieces not freed
}

// take cuts n bytes, n <= slabMost. free releases them.
func (s *slabs) take(n int) (b []byte, free func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := (n + slabUnit - 1) &^ (slabUnit - 1)
	if s.open == nil || size > len(s.open.memory)-s.open.used {
		memory, err := mapMemory(slabSize)
		if err != nil {
			return nil, nil, err
		}
		s.open = &slab{memory: memory}
	}
	x := s.open
	b = x.memory[x.used : x.used+n : x.used+n]
	x.used += size
	x.live++
	return b, func() { s.give(x) }, nil
}

// give counts a piece of x as freed.
func (s *slabs) give(x *slab) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.live--; x.live > 0 {
		return
	}
	if s.open == x {
		s.open = nil
	}
	unmapMemory(x.memory)
}
