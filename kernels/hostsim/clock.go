package hostsim

import (
	"math/bits"
	"slices"
	"sync"
	"time"
)

// Clock is the virtual time of a host. It advances when the host waits for a device
// and when the host reports work of its own. Devices may share a clock. It is safe for
// concurrent use.
//
// Threads of a host that work at the same time each have their own time. They take
// turns: the caller begins each turn with Enter, always for the thread that is
// furthest behind. Then work that they enqueue finds the devices as it would if they
// ran at the same time, except for work that overlaps within turns: the work of the
// earlier turn goes first, and later work fills the gaps.
type Clock struct {
	mu    sync.Mutex
	now   time.Duration // of the thread whose turn it is
	turns bool          // there are threads
	turn  time.Duration // when this turn began: no thread is further behind
}

// Now returns the virtual time since the clock was made.
func (c *Clock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Enter begins the turn of a thread whose time is t. No turn may begin earlier than the
// one before.
func (c *Clock) Enter(t time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turns = true
	c.now, c.turn = t, t
}

// times are now, and the earliest time that any thread may have.
func (c *Clock) times() (now, earliest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turns {
		return c.now, c.turn
	}
	return c.now, c.now
}

// reach moves the time on to t, unless it is later already.
func (c *Clock) reach(t time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = max(c.now, t)
}

// Link is one direction of copying.
type Link struct {
	BytesPerSecond int64         // 0: no time for bytes
	Latency        time.Duration // of each copy
}

func (l Link) time(bytes int64) time.Duration { return l.Latency + at(bytes, l.BytesPerSecond) }

// Rates are the speeds of a simulated device. With a rate of 0 the work takes no time.
type Rates struct {
	Up, Down Link          // to the device, to the host
	Memory   int64         // bytes a second that operators read and write
	Flops    int64         // floating point operations a second; a multiply-add is two
	Launch   time.Duration // of each operator
}

// work is the work of one operator: bytes read and written, and floating point operations.
type work struct{ bytes, flops int64 }

// time returns the roofline: the slower of memory and arithmetic.
func (r *Rates) time(w work) time.Duration {
	return r.Launch + max(at(w.bytes, r.Memory), at(w.flops, r.Flops))
}

// at returns the time of n units at a rate of units a second, rounded down to
// nanoseconds.
func at(n, rate int64) time.Duration {
	if rate <= 0 || n <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(n), uint64(time.Second))
	if hi >= uint64(rate) {
		return 1<<63 - 1
	}
	q, _ := bits.Div64(hi, lo, uint64(rate))
	return time.Duration(min(q, 1<<63-1))
}

// engine is one part of a device that does one thing at a time: computing, or
// copying in one direction.
type engine struct {
	busy  []span // rising, none touches the next
	total time.Duration
}

type span struct{ from, to time.Duration }

// take finds the first free stretch of d from ready on and gives its end. Work
// enqueued later may go before work that still waits for another stream. What
// ended before earliest is forgotten: nothing can be ready before that.
func (e *engine) take(earliest, ready, d time.Duration) time.Duration {
	if d == 0 {
		return ready
	}
	e.total += d
	past := 0
	for past < len(e.busy) && e.busy[past].to <= earliest {
		past++
	}
	e.busy = slices.Delete(e.busy, 0, past)
	i, from := 0, ready
	for ; i < len(e.busy) && e.busy[i].from < from+d; i++ {
		from = max(from, e.busy[i].to)
	}
	to := from + d
	before, after := i > 0 && e.busy[i-1].to == from, i < len(e.busy) && e.busy[i].from == to
	switch {
	case before && after:
		e.busy[i-1].to = e.busy[i].to
		e.busy = slices.Delete(e.busy, i, i+1)
	case before:
		e.busy[i-1].to = to
	case after:
		e.busy[i].from = from
	default:
		e.busy = slices.Insert(e.busy, i, span{from, to})
	}
	return to
}
