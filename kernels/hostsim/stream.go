package hostsim

import (
	"fmt"
	"hash/maphash"
	"runtime/debug"
	"sync"
	"time"

	"krater/kernels/device"
)

// stream is the work that was enqueued and is not done, in order.
type stream struct {
	dev *Device

	mu     sync.Mutex
	moved  sync.Cond // done or running changed
	queue  []item
	first  int   // place of the first in queue
	pushed int64 // items ever enqueued
	done   int64 // of them, run or skipped
	// running: a goroutine runs the first item of the queue. Only one does at a time, so the order
	// holds whichever goroutine waits.
	running bool
	awake   bool // a goroutine of Async is at work
	closed  bool
	ends    time.Duration // when all of it ends, in virtual time
	calls   []*call       // free
}

// item is a piece of a stream's work.
type item struct {
	op    string
	call  *call               // nil: only wait
	copy  func(device.Stream) // nil: run the operators of call
	wait  device.Event
	look  *timestamp // a timestamp: nothing else is done
	ends  time.Duration
	fault error // the item fails with it instead of running
	// With Async, a copy takes its time on an engine.
	free *time.Time
	took time.Duration
}

// NewStream makes a stream.
func (d *Device) NewStream() (device.Stream, error) {
	if err := d.Err(); err != nil {
		return nil, err
	}
	s := &stream{dev: d}
	s.moved.L = &s.mu
	d.open.Add(1)
	return s, nil
}

// Device returns the device this stream was made by.
func (s *stream) Device() device.Device { return s.dev }

// call returns a free call of the stream.
func (s *stream) call() *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.calls)
	if n == 0 {
		return &call{dev: s.dev, s: s}
	}
	c := s.calls[n-1]
	s.calls = s.calls[:n-1]
	return c
}

// push enqueues an item.
func (s *stream) push(it item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	it.ends = s.ends
	if s.first > 0 && len(s.queue) == cap(s.queue) { // its beginning is free
		n := copy(s.queue, s.queue[s.first:])
		clear(s.queue[n:])
		s.first, s.queue = 0, s.queue[:n]
	}
	s.queue = append(s.queue, it)
	s.pushed++
	if s.dev.async && !s.awake {
		s.awake = true
		s.dev.tasks.Add(1)
		go s.work()
	}
}

// work runs the queue until it is empty.
func (s *stream) work() {
	debug.SetPanicOnFault(true) // see step
	defer s.dev.tasks.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.done < s.pushed {
		s.step()
	}
	s.awake = false
}

// reach waits until the first n items are done, and runs them unless another goroutine does. Two
// streams cannot wait for each other: an event is recorded before it is waited for.
func (s *stream) reach(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.done < n {
		s.step()
	}
}

// poll runs one item unless the first n are done, and reports whether they are done then. So a host
// that polls makes progress.
func (s *stream) poll(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done < n && !s.running && !s.dev.async {
		ends := s.queue[s.first].ends
		s.step()
		s.dev.clock.reach(ends)
	}
	return s.done >= n
}

// step runs the first item, or waits for the goroutine that does. s.mu is held, but not while the item
// runs.
func (s *stream) step() {
	if s.running {
		s.moved.Wait()
		return
	}
	it := s.queue[s.first]
	s.queue[s.first] = item{}
	if s.first++; s.first == len(s.queue) {
		s.first, s.queue = 0, s.queue[:0]
	}
	s.running = true
	s.mu.Unlock()
	s.dev.execute(&it)
	s.mu.Lock()
	s.running = false
	if it.call != nil {
		it.call.reset()
		s.calls = append(s.calls, it.call)
	}
	s.done++
	s.moved.Broadcast()
}

// execute runs an item, unless the device is broken.
func (d *Device) execute(it *item) {
	if it.look != nil {
		it.look.pass(time.Since(begun))
		return
	}
	if it.wait != nil {
		if err := passed(it.wait); err != nil {
			d.fail(it.op, err)
		}
		return
	}
	if d.Err() != nil {
		return
	}
	if it.free != nil {
		d.pace(it.free, it.took)
	}
	d.memory.RLock()
	defer d.memory.RUnlock()
	defer func() {
		if r := recover(); r != nil {
			err, ok := r.(error)
			if !ok {
				err = fmt.Errorf("%v", r)
			}
			d.fail(it.op, err)
		}
	}()
	for _, b := range it.call.bufs {
		if b.freed {
			d.fail(it.op, ErrFreed)
			return
		}
	}
	if it.fault != nil {
		d.fail(it.op, it.fault)
		return
	}
	inner, err := d.borrow()
	if err != nil {
		d.fail(it.op, err)
		return
	}
	defer d.giveBack(inner)
	if it.copy != nil {
		it.copy(inner)
		return
	}
	d.cpu.Run(inner, it.call.list)
}

// Synchronize runs all enqueued work.
func (s *stream) Synchronize() error {
	s.mu.Lock()
	n, ends := s.pushed, s.ends
	s.mu.Unlock()
	s.reach(n)
	s.dev.clock.reach(ends)
	return s.dev.Err()
}

// Recover runs the remaining work of an abandoned batch. It returns the fault of a broken device.
func (s *stream) Recover() error {
	_ = s.Synchronize()
	return s.dev.Err()
}

// Repeat reports false: nothing is replayed.
func (s *stream) Repeat(uint64) bool { return false }

// Submit does nothing: the device runs the enqueued work when the host waits for it.
func (s *stream) Submit() {}

// Close ends the stream, which Streams then does not count.
func (s *stream) Close() {
	if !s.closed {
		s.closed = true
		s.dev.open.Add(-1)
	}
}

// CopyIn enqueues a copy to the device.
func (s *stream) CopyIn(dst device.Mat, src []byte) {
	c := s.dev.call("CopyIn", s)
	to := c.mat("dst", dst)
	c.copies("dst", dst, len(src))
	sum := maphash.Bytes(s.dev.seed, src)
	d := s.dev
	c.copy(true, len(src), func(in device.Stream) {
		if maphash.Bytes(d.seed, src) != sum {
			panic(ErrChanged)
		}
		in.CopyIn(to, src)
	})
}

// CopyOut enqueues a copy to the host. dst has garbage until then.
func (s *stream) CopyOut(dst []byte, src device.Mat) {
	c := s.dev.call("CopyOut", s)
	from := c.mat("src", src)
	c.copies("src", src, len(dst))
	for i := range dst {
		dst[i] = 0xff // NaN, -1
	}
	c.copy(false, len(dst), func(in device.Stream) { in.CopyOut(dst, from) })
}

// Record returns an event after the enqueued work.
func (s *stream) Record() device.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &event{s: s, n: s.pushed, at: s.ends}
}

// Wait makes later work wait for e, an event of this or another device.
func (s *stream) Wait(e device.Event) {
	if own, ok := e.(*event); ok && own.s.dev.clock == s.dev.clock {
		s.mu.Lock()
		s.ends = max(s.ends, own.at)
		s.mu.Unlock()
	}
	s.push(item{op: "Wait", wait: e})
}

// event is the first n items of a stream.
type event struct {
	s  *stream
	n  int64
	at time.Duration
}

// Done polls the stream. On a deferred stream each call runs one item.
func (e *event) Done() bool {
	if !e.s.poll(e.n) {
		return false
	}
	e.s.dev.clock.reach(e.at)
	return true
}

// Wait waits for the event.
func (e *event) Wait() error {
	e.s.reach(e.n)
	e.s.dev.clock.reach(e.at)
	return e.s.dev.Err()
}

// Err returns nil: a fault breaks the device as a whole, and the host gets it when it waits.
func (e *event) Err() error { return nil }

// passed waits for an event on behalf of a stream: the host's clock does not move.
func passed(e device.Event) error {
	own, ok := e.(*event)
	if !ok {
		return e.Wait()
	}
	own.s.reach(own.n)
	return own.s.dev.Err()
}

// pace sleeps for the time of a copy of Async, which begins when the former one in its direction ends.
func (d *Device) pace(free *time.Time, took time.Duration) {
	if !d.async || took <= 0 {
		return
	}
	d.mu.Lock()
	end := time.Now()
	if free.After(end) {
		end = *free
	}
	end = end.Add(took)
	*free = end
	d.mu.Unlock()
	time.Sleep(time.Until(end))
}
