package cpu

import (
	"fmt"
	"math/bits"
	"runtime"
	"runtime/debug"
	"sync/atomic"
)

// Team is a set of resident workers that share loops with their callers: all workers of a device,
// or those of one node. All methods are safe for concurrent use; several goroutines may call Run at
// once.
type Team struct {
	threads int
	crews   []*crew // whose workers look for loops here
	handOff bool    // a caller leaves its loop to the workers
	slots   [slotCount]slot
	busy    atomic.Uint64 // slots that belong to a Run
	active  atomic.Uint64 // slots that may have parts left
	ahead   ahead
}

const (
	slotCount  = 64   // loops at once; one more runs on its caller alone
	spinRounds = 1000 // looks of an idle worker or a waiting caller before it parks: 20 to 60 us
)

// slot is one running loop. state holds the number of parts in its upper and the next part in its
// lower half, so that taking a part is one addition that cannot mistake a new loop in the same slot
// for an old one.
type slot struct {
	state   atomic.Uint64
	done    atomic.Int64 // parts finished
	waiting atomic.Bool  // the caller is parked, or about to
	wake    chan struct{}
	fn      func(part int) // written before state, read after a part was taken
	failed  atomic.Pointer[failure]
	_       [16]byte
}

// failure is the first panic of a loop's parts.
type failure struct{ value any }

// NewTeam starts threads-1 workers; the caller of Run is the last one.
func NewTeam(threads int) *Team {
	threads = max(1, threads)
	c := newCrew(threads - 1)
	t := newTeam(threads, false, c)
	c.start()
	return t
}

func newTeam(threads int, handOff bool, crews ...*crew) *Team {
	t := &Team{threads: threads, crews: crews, handOff: handOff}
	for i := range t.slots {
		t.slots[i].wake = make(chan struct{}, 1)
	}
	for _, c := range crews {
		c.teams = append(c.teams, t)
	}
	return t
}

// Threads returns the number of threads that compute, the caller included where it does.
func (t *Team) Threads() int { return t.threads }

// Run calls fn(0) .. fn(parts-1), each once, on the caller and on workers that are free, in no
// order, and returns when all have returned. The team of a node runs them on its workers alone, see
// Device.NewNodeStream. It allocates nothing. If parts panic, Run panics with what the first of
// them did, after all have ended.
func (t *Team) Run(parts int, fn func(part int)) {
	i := -1
	if parts > 0 && t.handOff || parts > 1 && t.threads > 1 {
		i = t.acquire()
	}
	if i < 0 {
		for p := range parts {
			fn(p)
		}
		return
	}
	s := &t.slots[i]
	s.fn = fn
	s.done.Store(0)
	s.state.Store(uint64(parts) << 32)
	t.active.Or(1 << i)
	if t.handOff {
		// The caller has no core reserved here, so it parks without spinning.
		t.rouse(parts)
		s.park(int64(parts))
	} else {
		t.rouse(parts - 1)
		t.take(i)
		t.active.And(^(uint64(1) << i))
		s.await(int64(parts))
	}
	s.fn = nil
	failed := s.failed.Swap(nil)
	t.busy.And(^(uint64(1) << i))
	if failed != nil {
		panic(failed.value)
	}
}

// call runs a part. A worker must not end with it, and the caller must not leave before the others,
// so a panic is kept until all parts have ended.
func (s *slot) call(part int) {
	defer func() {
		if r := recover(); r != nil {
			s.failed.CompareAndSwap(nil, &failure{traced(r)})
		}
	}()
	s.fn(part)
}

// traced is a panic with the stack that it came from, which the caller of Run does not see.
func traced(r any) error {
	if err, ok := r.(error); ok {
		return fmt.Errorf("%w\n%s", err, debug.Stack())
	}
	return fmt.Errorf("%v\n%s", r, debug.Stack())
}

// looking reports whether most workers are at work or looking for it.
func (t *Team) looking() bool {
	parked, all := 0, 0
	for _, c := range t.crews {
		parked, all = parked+int(c.idle.Load()), all+c.count
	}
	return 2*parked < all
}

// Close ends the workers and waits for them. No Run may be going on or follow.
func (t *Team) Close() {
	for _, c := range t.crews {
		c.close()
	}
}

// acquire finds a free slot, -1 when there is none.
func (t *Team) acquire() int {
	for {
		busy := t.busy.Load()
		if busy == ^uint64(0) {
			return -1
		}
		i := bits.TrailingZeros64(^busy)
		if t.busy.CompareAndSwap(busy, busy|1<<i) {
			return i
		}
	}
}

// rouse wakes up to n parked workers, those of the first node first.
func (t *Team) rouse(n int) {
	for _, c := range t.crews {
		if n -= c.rouse(n); n <= 0 {
			return
		}
	}
}

// take runs parts of slot i until none is left. ran: there were some; woke: it ended the wait of a
// parked caller.
func (t *Team) take(i int) (ran, woke bool) {
	s := &t.slots[i]
	for {
		if v := s.state.Load(); uint32(v) >= uint32(v>>32) {
			return ran, woke
		}
		v := s.state.Add(1)
		part, parts := int(uint32(v))-1, int(v>>32)
		if part >= parts {
			return ran, woke
		}
		ran = true
		if t.handOff && part == parts-1 {
			// No one else reports that there is no more to take. The slot is this loop's until the
			// part is done.
			t.active.And(^(uint64(1) << i))
		}
		s.call(part)
		if s.done.Add(1) == int64(parts) && s.waiting.CompareAndSwap(true, false) {
			s.wake <- struct{}{}
			woke = true
		}
	}
}

// await returns when parts parts are done.
func (s *slot) await(parts int64) {
	for range spinRounds {
		if s.done.Load() == parts {
			return
		}
		pause()
	}
	s.park(parts)
}

// park is await without spinning. The flag and the channel are a strict pair: the goroutine that
// clears the flag sends, or, here, does not receive.
func (s *slot) park(parts int64) {
	for s.done.Load() != parts {
		s.waiting.Store(true)
		if s.done.Load() == parts && s.waiting.CompareAndSwap(true, false) {
			return
		}
		<-s.wake
	}
}

// help takes part in every active loop and reports whether it did anything.
func (t *Team) help() bool {
	any := false
	for mask := t.active.Load(); mask != 0; mask &= mask - 1 {
		ran, woke := t.take(bits.TrailingZeros64(mask))
		if ran {
			any = true
		}
		if woke && t.handOff {
			// The runtime keeps a woken goroutine for the waker's core, where this worker continues
			// to spin: other cores fetch it after a nap of 60 to 80 us.
			runtime.Gosched()
		}
	}
	return any
}
