package actors

import (
	"runtime"
	"sync"
)

// Which goroutine runs an actor. The library's own dispatcher starts a goroutine
// whenever an idle actor gets a message, and two thirds of the time of a message then go into
// growing its stack: 2 us against 0.3 us with goroutines that stay. But waking a
// goroutine costs more than that where a core sleeps because it has no work: 5 to 25 us per
// message, measured in decode, and by the end of the step the threads of the kernels sleep
// as well. So
//
//   - the actors that a batch passes one after another (embed, groups,
//     links, head, sample) run on workers, one for each batch in flight. An actor
//     that a worker's actor wakes is run by that worker next, as if it were called:
//     a batch stays on its goroutine and wakes no other. What the waking actor still
//     has in its mailbox, another batch, is taken by a free worker, so two batches
//     are worked on at the same time in different groups.
//   - the schedule actor has a goroutine of its own, since clients must not wait
//     for a step, but the worker that brings a batch back runs it too.
//   - all others have a goroutine of their own.

// workerSet is the goroutines that run the actors of a step.
type workerSet struct {
	work chan *mailbox
	n    int
}

// worker is one goroutine of a workerSet.
type worker struct {
	next *mailbox // to be run after the current message; only the worker uses it
}

// follow makes a worker without a next mailbox run m next.
func (w *worker) follow(m *mailbox) bool {
	if w == nil || w.next != nil {
		return false
	}
	w.next = m
	return true
}

// yield gives the core to the goroutine that w has just woken. The runtime keeps that goroutine for
// the waker's core, and others take it only after a sleep of 3 us, which with the kernel's timer
// slack lasts 60 to 80 us. Text and experts would wait that long while the worker computes, and a
// second core would do nothing.
func (w *worker) yield() {
	if w != nil {
		runtime.Gosched()
	}
}

// newWorkers starts workers that serve at most that many mailboxes.
func newWorkers(workers, mailboxes int, wg *sync.WaitGroup) *workerSet {
	// A mailbox is in work once at most, so run never waits; close adds a nil for each
	// worker.
	c := &workerSet{work: make(chan *mailbox, mailboxes+workers), n: workers}
	for range workers {
		wg.Go(c.live)
	}
	return c
}

// live is the loop of a worker.
func (c *workerSet) live() {
	w := &worker{}
	for {
		m := w.next
		if w.next = nil; m == nil {
			if m = <-c.work; m == nil {
				return
			}
		}
		m.worker = w
		m.process()
	}
}

// run implements place.
func (c *workerSet) run(m *mailbox, from *worker) {
	if !from.follow(m) {
		c.work <- m
		from.yield()
	}
}

// close ends the workers after what is in work.
func (c *workerSet) close() {
	for range c.n {
		c.work <- nil
	}
}

// ownThread is one goroutine for one actor.
type ownThread struct {
	work   chan *mailbox
	shared bool // a worker may run the actor too
}

func newOwnThread(shared bool, wg *sync.WaitGroup) *ownThread {
	// The mailbox is in work once at most, also when its actor has stopped: a late
	// message does not block its sender.
	r := &ownThread{work: make(chan *mailbox, 2), shared: shared}
	wg.Go(func() {
		for m := range r.work {
			if m == nil {
				return
			}
			m.worker = nil
			m.process()
		}
	})
	return r
}

// run implements place.
func (r *ownThread) run(m *mailbox, from *worker) {
	if !r.shared || !from.follow(m) {
		r.work <- m
		from.yield()
	}
}

// close ends the goroutine after what is in work. The channel itself stays open
// for a late message.
func (r *ownThread) close() { r.work <- nil }
