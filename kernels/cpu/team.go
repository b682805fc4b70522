package cpu

import (
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
)

// Team is a set of resident workers that share loops with their callers. A
// worker that finds nothing to do looks again for a bounded while where that has
// paid off lately, then parks.
// All methods are safe for concurrent use; several goroutines may Run at once.
type Team struct {
	threads int
	slots   [slotCount]slot
	busy    atomic.Uint64 // slots that belong to a Run
	active  atomic.Uint64 // slots that may have parts left
	idle    atomic.Int32  // workers that are parked or about to
	wake    chan struct{}
	closing atomic.Bool
	workers sync.WaitGroup
}

const (
	slotCount  = 64   // loops at once; one more runs on its caller alone
	spinRounds = 1000 // looks of an idle worker or a waiting caller before it parks: 20 to 60 us

	// A worker whose looking was in vain twice in a row parks at once from then on,
	// and tries looking again now and then. Where loops follow one another closely
	// looking saves a wake-up; where one comes every half millisecond it only keeps a
	// core from the goroutines that the end of a step has woken: 30 to 60 us a decode
	// step of a small model on two cores.
	spinMisses = 2
	spinRetry  = 16
)

// slot is one running loop. state holds the number of parts in its upper and
// the next part in its lower half, so that taking a part is one addition that
// cannot mistake a new loop in the same slot for an old one.
type slot struct {
	state   atomic.Uint64
	done    atomic.Int64 // parts finished
	waiting atomic.Bool  // the caller is parked, or about to
	wake    chan struct{}
	fn      func(part int) // written before state, read after a part was taken
	_       [24]byte
}

// NewTeam starts threads-1 workers; the caller of Run is the last one.
func NewTeam(threads int) *Team {
	t := &Team{threads: max(1, threads)}
	t.wake = make(chan struct{}, t.threads)
	for i := range t.slots {
		t.slots[i].wake = make(chan struct{}, 1)
	}
	for range t.threads - 1 {
		t.workers.Add(1)
		go t.work()
	}
	return t
}

// Threads is the number of workers, the caller included.
func (t *Team) Threads() int { return t.threads }

// Run calls fn(0) .. fn(parts-1), each once, on the caller and on workers that
// are free, in no order, and returns when all have returned. It allocates
// nothing. fn must not panic on a worker: that ends the process.
func (t *Team) Run(parts int, fn func(part int)) {
	i := -1
	if parts > 1 && t.threads > 1 {
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
	t.rouse(parts - 1)
	s.take()
	t.active.And(^(uint64(1) << i))
	s.await(int64(parts))
	s.fn = nil
	t.busy.And(^(uint64(1) << i))
}

// Close ends the workers and waits for them. No Run may be going on or follow.
func (t *Team) Close() {
	t.closing.Store(true)
	close(t.wake)
	t.workers.Wait()
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

// rouse wakes up to n parked workers. A token too many costs one look.
func (t *Team) rouse(n int) {
	for range min(n, int(t.idle.Load())) {
		select {
		case t.wake <- struct{}{}:
		default:
			return
		}
	}
}

// take runs parts of the slot until none is left.
func (s *slot) take() bool {
	any := false
	for {
		if v := s.state.Load(); uint32(v) >= uint32(v>>32) {
			return any
		}
		v := s.state.Add(1)
		part, parts := int(uint32(v))-1, int(v>>32)
		if part >= parts {
			return any
		}
		any = true
		s.fn(part)
		if s.done.Add(1) == int64(parts) && s.waiting.CompareAndSwap(true, false) {
			s.wake <- struct{}{}
		}
	}
}

// await returns when parts parts are done. The flag and the channel are a
// strict pair: whoever takes the flag down sends, or (here) does not receive.
func (s *slot) await(parts int64) {
	for range spinRounds {
		if s.done.Load() == parts {
			return
		}
		pause()
	}
	for s.done.Load() != parts {
		s.waiting.Store(true)
		if s.done.Load() == parts && s.waiting.CompareAndSwap(true, false) {
			return
		}
		<-s.wake
	}
}

// work is a worker's life.
func (t *Team) work() {
	defer t.workers.Done()
	misses := 0 // times in a row that looking found nothing
	for !t.closing.Load() {
		if t.help() {
			continue
		}
		if misses < spinMisses || misses%spinRetry == 0 {
			if t.spin() {
				misses = 0
				continue
			}
		}
		misses++
		t.idle.Add(1)
		// A loop that was published before idle rose did not see this worker.
		if !t.help() {
			<-t.wake
		}
		t.idle.Add(-1)
	}
}

// help takes part in every active loop and reports whether it did anything.
func (t *Team) help() bool {
	any := false
	for mask := t.active.Load(); mask != 0; mask &= mask - 1 {
		if t.slots[bits.TrailingZeros64(mask)].take() {
			any = true
		}
	}
	return any
}

// spin looks for work for a bounded while. It yields to other goroutines: a
// spinning worker must not hold a core that an actor could use.
func (t *Team) spin() bool {
	for i := range spinRounds {
		if t.active.Load() != 0 {
			return t.help()
		}
		if i%64 == 63 {
			runtime.Gosched()
		}
		pause()
	}
	return false
}
