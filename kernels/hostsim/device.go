package hostsim

import (
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"krater/kernels/cpu"
	"krater/kernels/device"
)

// Options are the parameters of a Device.
type Options struct {
	Name   string      // "hostsim" when empty
	CPU    *cpu.Device // computes, and has the memory; the caller keeps it, and several devices may share it
	Budget int64       // bytes of memory; 0: unlimited
	Rates  Rates
	Clock  *Clock // nil: a new clock
	// Async makes streams run without waiting for the host, and makes copies take the real time of their rates.
	Async bool
}

// Device is a simulated device. All methods except Run are safe for concurrent use; Run belongs to its
// stream.
type Device struct {
	name   string
	cpu    *cpu.Device
	budget int64
	rates  Rates
	clock  *Clock
	async  bool
	seed   maphash.Seed
	tasks  sync.WaitGroup // of Async
	open   atomic.Int64   // streams

	// memory is read-locked while an item runs, and locked by Free.
	memory sync.RWMutex

	mu       sync.Mutex
	used     int64
	counters Counters
	armed    [kinds]int64
	compute  engine
	up, down engine
	// upFree and downFree are when the copies of Async that have begun will end.
	upFree, downFree time.Time
	streams          []device.Stream // of the CPU, not in use now
	fault            error
	closed           bool
}

var _ device.Device = (*Device)(nil)

// New makes a device.
func New(o Options) (*Device, error) {
	if o.Name == "" {
		o.Name = "hostsim"
	}
	switch r := &o.Rates; {
	case o.CPU == nil:
		return nil, fmt.Errorf("%s: no CPU to compute with", o.Name)
	case min(o.Budget, r.Up.BytesPerSecond, r.Down.BytesPerSecond, r.Memory, r.Flops) < 0,
		min(r.Up.Latency, r.Down.Latency, r.Launch) < 0:
		return nil, fmt.Errorf("%s: budget of %d bytes, rates %+v: none may be negative", o.Name, o.Budget, o.Rates)
	}
	if o.Clock == nil {
		o.Clock = new(Clock)
	}
	return &Device{
		name: o.Name, cpu: o.CPU, budget: o.Budget, rates: o.Rates, clock: o.Clock, async: o.Async,
		seed: maphash.MakeSeed(), counters: Counters{Launches: map[string]int64{}},
	}, nil
}

// Name returns "hostsim" or Options.Name.
func (d *Device) Name() string { return d.name }

// Clock returns the virtual time of the device's host.
func (d *Device) Clock() *Clock { return d.clock }

// Accelerator returns nil: operators take the same lists of work and rows of float32 as the CPU's.
func (d *Device) Accelerator() device.Accelerator { return nil }

// Memory returns the allocated memory. The CPU counts it too, because it is host memory.
func (d *Device) Memory() device.Memory {
	d.mu.Lock()
	defer d.mu.Unlock()
	return device.Memory{Total: d.budget, Used: d.used}
}

// Streams returns the number of streams that are not closed. A GPU holds memory for each.
func (d *Device) Streams() int { return int(d.open.Load()) }

// Err returns the fault that broke the device, or nil.
func (d *Device) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fault
}

// fail breaks the device. The first fault is kept.
func (d *Device) fail(op string, cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fault == nil {
		d.fault = fmt.Errorf("%s: %s: %w", d.name, op, cause)
	}
}

// Close waits for streams that run by themselves (Options.Async). No work may be enqueued afterwards. Close
// does not free memory.
func (d *Device) Close() error {
	d.mu.Lock()
	closed := d.closed
	d.closed = true
	d.mu.Unlock()
	if closed {
		return errors.New(d.name + ": device closed twice")
	}
	d.tasks.Wait()
	return nil
}

// borrow returns a stream of the CPU for one operator.
func (d *Device) borrow() (device.Stream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.streams); n > 0 {
		s := d.streams[n-1]
		d.streams = d.streams[:n-1]
		return s, nil
	}
	return d.cpu.NewStream()
}

func (d *Device) giveBack(s device.Stream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.streams = append(d.streams, s)
}
