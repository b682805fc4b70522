package hostsim

import (
	"maps"
	"time"
)

// Counters are what a device has been asked for since it was made; copies and
// operators count when they are enqueued.
type Counters struct {
	BytesUp, BytesDown   int64            // copied to the device (Wrap included) and to the host
	CopiesUp, CopiesDown int64            //
	BytesOnDevice        int64            // read and written by operators, by their arguments
	Flops                int64            //
	Launches             map[string]int64 // by operator
	Allocations          int64            //
	HighWater            int64            // most bytes in use at any time

	// Virtual time each engine was busy.
	Compute, Up, Down time.Duration
}

// Operators is the number of all launches.
func (c *Counters) Operators() int64 {
	var n int64
	for _, v := range c.Launches {
		n += v
	}
	return n
}

// Since is what was counted after before; HighWater stays.
func (c Counters) Since(before Counters) Counters {
	c.BytesUp -= before.BytesUp
	c.BytesDown -= before.BytesDown
	c.CopiesUp -= before.CopiesUp
	c.CopiesDown -= before.CopiesDown
	c.BytesOnDevice -= before.BytesOnDevice
	c.Flops -= before.Flops
	c.Allocations -= before.Allocations
	c.Compute -= before.Compute
	c.Up -= before.Up
	c.Down -= before.Down
	c.Launches = maps.Clone(c.Launches)
	for op, n := range before.Launches {
		if c.Launches[op] -= n; c.Launches[op] == 0 {
			delete(c.Launches, op)
		}
	}
	return c
}

// Counters is a copy of the counters.
func (d *Device) Counters() Counters {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.counters
	c.Launches = maps.Clone(c.Launches)
	c.Compute, c.Up, c.Down = d.compute.total, d.up.total, d.down.total
	return c
}

// Kind of what Fail makes fail.
type Kind uint8

const (
	Operator Kind = iota
	Copy          // in either direction, Wrap included
	Allocation
	Refusal // of an operator or copy, Wrap not included
	kinds
)

// Fail makes the n-th use of a kind from now on fail, the next one with n = 1; 0
// takes that back. A failed operator or copy breaks the device for good, as a
// fault does on a GPU: it shows when somebody waits. A failed
// allocation is ErrOutOfMemory and does not stay. What is refused panics with
// ErrRefused when it is to be enqueued; the device and what else is enqueued stay whole.
func (d *Device) Fail(k Kind, n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed[k] = n
}

// hit counts a use of k and tells whether it is the one to fail. d.mu is held.
func (d *Device) hit(k Kind) bool {
	if d.armed[k] == 0 {
		return false
	}
	d.armed[k]--
	return d.armed[k] == 0
}
