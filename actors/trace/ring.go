package trace

import "sync/atomic"

const (
	blockEvents = 256
	blocksMin   = 4
)

// Ring holds the newest events of one actor.
//
// It is a circle of blocks. The writer fills the current block with plain
// stores and publishes each event by one atomic store of the block's length.
// When the block is full it empties the oldest block that no reader has pinned.
// A reader pins a block while it copies, and touches only published events; so
// both sides are free of data races, the writer never waits, and a reader costs
// it at most an early overwrite. Only when readers hold every block at once are
// events dropped; they still count in the totals.
type Ring struct {
	name   string
	blocks []block

	// The writer's own.
	current *block
	fill    int    // events in current
	turned  int    // index of the block to empty next
	number  uint64 // of the next event, counting from 0
	sum     Totals
}

// block is a run of events with consecutive numbers.
type block struct {
	first  atomic.Uint64 // number of events[0]
	length atomic.Int64  // published events
	pins   atomic.Int64  // readers inside; -1 while the writer empties it
	base   Totals        // of all events before first; changed only while pins is -1
	events [blockEvents]Event
}

// newRing makes a ring for at least the given number of events.
func newRing(name string, events int) *Ring {
	r := &Ring{name: name, blocks: make([]block, max(blocksMin, 1+(events+blockEvents-1)/blockEvents))}
	r.current, r.turned = &r.blocks[0], 1
	return r
}

// Name returns the name of the actor.
func (r *Ring) Name() string { return r.name }

// Record adds a copy of e. Only the actor that owns the ring calls it, one call
// at a time. A nil ring records nothing.
func (r *Ring) Record(e *Event) {
	if r == nil {
		return
	}
	if r.fill < blockEvents || r.turn() {
		r.current.events[r.fill] = *e
		r.fill++
		r.current.length.Store(int64(r.fill))
	}
	r.number++
	r.sum.add(e)
}

// turn makes the oldest block that no reader holds the current one, and reports
// whether there is one.
func (r *Ring) turn() bool {
	for i := range r.blocks {
		index := (r.turned + i) % len(r.blocks)
		b := &r.blocks[index]
		if b == r.current || !b.pins.CompareAndSwap(0, -1) {
			continue
		}
		// Length before first: a reader that sees the new first sees no old length.
		b.length.Store(0)
		b.first.Store(r.number)
		b.base = r.sum
		b.pins.Store(0)
		r.current, r.fill, r.turned = b, 0, index+1
		return true
	}
	return false
}

// pin keeps the writer from emptying b, provided that its first event still has
// this number.
func (b *block) pin(first uint64) bool {
	for {
		p := b.pins.Load()
		if p < 0 {
			return false
		}
		if b.pins.CompareAndSwap(p, p+1) {
			break
		}
	}
	if b.first.Load() != first {
		b.unpin()
		return false
	}
	return true
}

func (b *block) unpin() { b.pins.Add(-1) }

// extent returns the range of numbers in b, as a hint until b is pinned.
func (b *block) extent() (first, end uint64) {
	first = b.first.Load()
	return first, first + uint64(b.length.Load())
}

// Read appends the events numbered from "from" on, oldest first, and returns
// the number to go on from next time. next - from - len(events) of them were
// lost: overwritten or dropped. Any number of readers may call it at any time;
// each event is whole, and events that come while it runs may be left out.
func (r *Ring) Read(events []Event, from uint64) (_ []Event, next uint64) {
	limit := from
	for i := range r.blocks {
		_, end := r.blocks[i].extent()
		limit = max(limit, end)
	}
	next = from
	for next < limit {
		var oldest *block
		var first uint64
		for i := range r.blocks {
			b := &r.blocks[i]
			f, end := b.extent()
			if end > next && b.pins.Load() >= 0 && (oldest == nil || f < first) {
				oldest, first = b, f
			}
		}
		if oldest == nil {
			break
		}
		if !oldest.pin(first) {
			continue
		}
		end := first + uint64(oldest.length.Load())
		if start := max(next, first); start < end {
			events = append(events, oldest.events[start-first:end-first]...)
			next = end
		}
		oldest.unpin()
	}
	return events, next
}

// Kept is when the oldest event that the ring still has ended; 0 while it has all of them.
func (r *Ring) Kept() int64 {
	for {
		var oldest *block
		var first uint64
		for i := range r.blocks {
			b := &r.blocks[i]
			if f, end := b.extent(); end > f && b.pins.Load() >= 0 && (oldest == nil || f < first) {
				oldest, first = b, f
			}
		}
		if oldest == nil || first == 0 {
			return 0
		}
		if !oldest.pin(first) {
			continue
		}
		var ended int64
		if oldest.length.Load() > 0 {
			ended = oldest.events[0].Ended
		}
		oldest.unpin()
		if ended != 0 {
			return ended
		}
	}
}

// Totals sums up everything recorded so far, at one instant.
func (r *Ring) Totals() Totals {
	for {
		newest := &r.blocks[0]
		first := newest.first.Load()
		for i := range r.blocks {
			if f := r.blocks[i].first.Load(); f > first {
				newest, first = &r.blocks[i], f
			}
		}
		if !newest.pin(first) {
			continue
		}
		sum := newest.base
		for i := range newest.length.Load() {
			sum.add(&newest.events[i])
		}
		newest.unpin()
		return sum
	}
}
