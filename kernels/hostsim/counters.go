package hostsim

import (
	"maps"
	"time"
)

// Counters count the copies, operators and allocations of a device since it was made. Copies and
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

// Operators returns the number of all launches.
func (c *Counters) Operators() int64 {
	var n int64
	for _, v := range c.Launches {
		n += v
	}
	return n
}

// Since returns c less an earlier copy. HighWater is not changed.
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

// Counters returns a copy of the counters.
func (d *Device) Counters() Counters {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.counters
	c.Launches = maps.Clone(c.Launches)
	c.Compute, c.Up, c.Down = d.compute.total, d.up.total, d.down.total
	return c
}

// Kind selects what Fail makes fail.
type Kind uint8

const (
	Operator Kind = iota
	Copy          // in either direction, Wrap included
	Allocation
	Refusal // of an operator or copy, Wrap not included
	kinds
)

// Fail makes the n-th use of a kind fail, counted from now: n = 1 is the next one. 0 cancels
// that. A failed operator or copy breaks the device for good, as a fault does on a GPU: the next
// wait returns the error. A failed allocation returns ErrOutOfMemory and has no lasting effect.
// A refused call panics with ErrRefused when it is enqueued; the device and all other enqueued
// work are not affected.
func (d *Device) Fail(k Kind, n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed[k] = n
}

// hit counts a use of k and reports whether it must fail. d.mu is held.
func (d *Device) hit(k Kind) bool {
	if d.armed[k] == 0 {
		return false
	}
	d.armed[k]--
	return d.armed[k] == 0
}
