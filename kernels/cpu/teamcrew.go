package cpu

import (
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// crew is the workers of one node. A worker that finds nothing to do looks again for a bounded
// while where that has paid off lately, then parks.
type crew struct {
	teams []*Team // where the workers look for loops: their node's, then all nodes'
	count int     // workers

	cpus []int  // that the workers are bound to; nil: the system moves them
	nap  func() // yields the core briefly

	idle    atomic.Int32  // workers that are parked or about to
	resting atomic.Bool   // see Device.Rest
	called  atomic.Uint32 // calls of Device.Ready
	wake    chan struct{}
	closing atomic.Bool
	workers sync.WaitGroup

	mu      sync.Mutex
	threads []int // the bound workers' thread ids
	failure error // the first worker's that could not be bound
}

const (
	// A worker that has spun in vain twice in a row parks at once from then on, and tries spinning
	// again occasionally. If loops follow each other closely, spinning saves a wake-up. If one
	// comes every half millisecond, spinning only keeps a core from goroutines that the end of a
	// step has woken: 30 to 60 us per decode step of a small model on two cores.
	spinMisses = 2
	spinRetry  = 16
)

// spinTime is how long a worker spins before it parks: longer than the gap between two loops of
// a step. Tests change it.
var spinTime = 100 * time.Microsecond

// newCrew makes a crew without a team; start sets it going.
func newCrew(workers int) *crew {
	return &crew{count: workers, nap: runtime.Gosched, wake: make(chan struct{}, workers+1)}
}

// bind makes the workers separate threads that run on cpus only. A locked goroutine that yields
// costs two thread switches, 15 us. So a bound worker yields its core with the system call, 0.5 us,
// if the runtime has processors for other goroutines; see Processors.
func (c *crew) bind(cpus []int, processorsToSpare bool) {
	c.cpus = cpus
	if processorsToSpare {
		c.nap = yieldThread
	}
}

// start starts the workers and waits until they are bound.
func (c *crew) start() {
	var ready sync.WaitGroup
	for range c.count {
		ready.Add(1)
		c.workers.Go(func() {
			if c.cpus != nil {
				// Never unlocked: the thread ends with the goroutine, so that no other one gets a
				// thread with this mask.
				runtime.LockOSThread()
				c.pin()
			}
			ready.Done()
			c.work()
		})
	}
	ready.Wait()
}

// pin binds the calling thread.
func (c *crew) pin() {
	id, err := pinThread(c.cpus)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.threads = append(c.threads, id)
	if c.failure == nil {
		c.failure = err
	}
}

// Rest says that no loop comes for a while: workers that look for one park. While a loop runs it does nothing, and
// the next loop ends it. It is safe for concurrent use.
func (d *Device) Rest() {
	for _, c := range d.team.crews {
		c.rest()
	}
}

// Ready says that loops come: workers that are parked wake and look for one. It is safe for concurrent use.
func (d *Device) Ready() {
	for _, c := range d.team.crews {
		c.called.Add(1)
		c.rouse(c.count)
	}
}

func (c *crew) rest() {
	for _, t := range c.teams {
		if t.busy.Load() != 0 {
			return
		}
	}
	c.resting.Store(true)
}

func (c *crew) close() {
	c.closing.Store(true)
	close(c.wake)
	c.workers.Wait()
}

// rouse wakes up to n parked workers and returns how many. A superfluous wake-up costs one look.
func (c *crew) rouse(n int) int {
	if c.resting.Load() {
		c.resting.Store(false)
	}
	n = min(n, int(c.idle.Load()))
	for i := range n {
		select {
		case c.wake <- struct{}{}:
		default:
			return i
		}
	}
	return n
}

// work is a worker's life.
func (c *crew) work() {
	debug.SetPanicOnFault(true) // a fault in mapped weights whose file was cut becomes a panic that Run reports
	misses := 0                 // times in a row that looking found nothing
	called := uint32(0)
	for !c.closing.Load() {
		if c.help() {
			continue
		}
		if misses < spinMisses || misses%spinRetry == 0 {
			if c.spin() {
				misses = 0
				continue
			}
		}
		if !c.resting.Load() {
			misses++
		}
		c.idle.Add(1)
		// A loop that was published before idle rose did not see this worker.
		if !c.help() {
			<-c.wake
		}
		c.idle.Add(-1)
		if n := c.called.Load(); n != called {
			called, misses = n, 0
		}
	}
}

// help takes part in every active loop and reports whether it did anything.
func (c *crew) help() bool {
	any := false
	for _, t := range c.teams {
		if t.help() {
			any = true
		}
	}
	return any
}

// active reports whether there may be something to do.
func (c *crew) active() bool {
	for _, t := range c.teams {
		if t.active.Load() != 0 {
			return true
		}
	}
	return false
}

// spin looks for work for a bounded time. It yields its core occasionally: a spinning worker must
// not keep a core that an actor could use. All workers together yield as often as one alone would,
// because yielding costs them 10 us and more if there are many.
//
// A loop without parts left is no reason to stop: its last parts still run elsewhere, and the next
// loop follows directly.
func (c *crew) spin() bool {
	const rounds = 64
	start := time.Now()
	for i := 1; ; i++ {
		if c.active() && c.help() {
			return true
		}
		if i%rounds == 0 {
			if c.resting.Load() || time.Since(start) > spinTime {
				return false
			}
			if i/rounds%c.count == 0 {
				c.nap()
			}
		}
		if !c.fetch() {
			pause()
		}
	}
}

// fetch asks for memory that is read next.
func (c *crew) fetch() bool {
	for _, t := range c.teams {
		if t.ahead.fetch() {
			return true
		}
	}
	return false
}
