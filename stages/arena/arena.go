// Package arena is a piece of a device's memory that KV blocks and slots of experts share: one grows where the other
// shrinks. Nothing is allocated while a model serves.
//
// The memory is steps of the size of a slot. First come slots that nothing else uses. Then comes each cache of a layer,
// from a step on, with room for the most blocks. Its first steps belong to blocks. Each of the others is a slot too, a shared one,
// and has either an expert or rows of blocks. A cache's kernels see one matrix, and slots lie at multiples of their size, as they would
// without an arena.
package arena

import (
	"cmp"
	"fmt"
	"slices"

	"krater/kernels/device"
)

// Layout says what lies in an arena.
type Layout struct {
	Step   int   // bytes of a slot
	Plain  int   // slots that are not shared
	Blocks int   // the most KV blocks
	Least  int   // of them, those that no slot may take
	Caches []int // bytes of a block in each cache, in the order of Cache
}

// Shared is a slot that lies in a cache.
type Shared struct {
	At    int // its place in the arena, in steps
	Block int // the first block with rows in it
}

// check reports the first fault.
func (l *Layout) check() error {
	if l.Step < 1 || l.Plain < 0 || l.Least < 1 || l.Blocks < l.Least || len(l.Caches) == 0 || slices.Min(l.Caches) < 1 {
		return fmt.Errorf("arena: %+v", *l)
	}
	return nil
}

// steps returns the size of a cache.
func (l *Layout) steps(cache int) int { return (l.Blocks*l.Caches[cache] + l.Step - 1) / l.Step }

// Steps returns the size of the arena.
func (l *Layout) Steps() int {
	n := l.Plain
	for i := range l.Caches {
		n += l.steps(i)
	}
	return n
}

// Bytes returns the size of the arena.
func (l *Layout) Bytes() int64 { return int64(l.Steps()) * int64(l.Step) }

// Own returns the bytes of the arena that are in no slot.
func (l *Layout) Own() int64 {
	return int64(l.Steps()-l.Plain-len(l.Shared())) * int64(l.Step)
}

// Shared lists the shared slots, those that blocks take first before the others.
func (l *Layout) Shared() (list []Shared) {
	at := l.Plain
	for i, bytes := range l.Caches {
		for j := range l.steps(i) {
			if block := j * l.Step / bytes; block >= l.Least {
				list = append(list, Shared{at + j, block})
			}
		}
		at += l.steps(i)
	}
	slices.SortStableFunc(list, func(a, b Shared) int { return cmp.Compare(a.Block, b.Block) })
	return list
}

// Arena is such a piece of memory.
type Arena struct {
	Layout
	Slots  []Shared // as Layout.Shared lists them
	Buf    device.Buffer
	caches int // given out
	at     int // the next one, in steps
}

// New allocates an arena. Its memory is zeros.
func New(dev device.Device, l Layout) (*Arena, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	b, err := dev.Alloc(int(l.Bytes()))
	if err != nil {
		return nil, fmt.Errorf("arena of %d KV blocks and slots for experts: %w", l.Blocks, err)
	}
	return &Arena{Layout: l, Slots: l.Shared(), Buf: b, at: l.Plain}, nil
}

// Cache gives the next cache its place, in bytes from the start of Buf. bytes is the size of a block, as the layout has it.
func (a *Arena) Cache(bytes int) (at int, err error) {
	if a.caches == len(a.Caches) || a.Caches[a.caches] != bytes {
		return 0, fmt.Errorf("arena: cache %d has blocks of %d bytes, the layout %v", a.caches, bytes, a.Caches)
	}
	at = a.at * a.Step
	a.at += a.steps(a.caches)
	a.caches++
	return at, nil
}

// Open returns the number of blocks that can be used if the first n shared slots hold no experts.
func (a *Arena) Open(n int) int {
	if n >= len(a.Slots) {
		return a.Blocks
	}
	return a.Slots[n].Block
}

// For returns the number of shared slots that must be empty so that the given number of blocks can be used.
func (a *Arena) For(blocks int) int {
	n, _ := slices.BinarySearchFunc(a.Slots, blocks, func(s Shared, blocks int) int { return cmp.Compare(s.Block, blocks) })
	return n
}

// Close frees the memory.
func (a *Arena) Close() {
	if a != nil && a.Buf != nil {
		a.Buf.Free()
		a.Buf = nil
	}
}
