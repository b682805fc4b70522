package placement

import (
	"errors"
	"slices"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/arena"
)

// exchange is the slots that share memory with KV blocks (package arena). The first ones are the blocks' while a server needs them,
// the others are the pool's.
type exchange struct {
	arena  *arena.Arena // nil: there are none
	first  int32        // slot
	most   int          // slots that the blocks may have: prompts borrow none of these
	taken  int          // slots that are the blocks'
	zeros  []byte       // of one slot: blocks begin with zeros
	unpin  func() error
	zeroed device.Event // after the zeros of the slots taken last; nil: they are there
}

// shareSlots chooses the slots that share memory with KV blocks: the last ones before those that are lent.
func (p *Placement) shareSlots(slots, lent int) {
	a := p.Arena()
	if a == nil || slots == 0 {
		return
	}
	first := max(0, slots-lent-len(a.Slots))
	p.exchange.arena, p.exchange.first, p.exchange.most = a, int32(first), min(len(a.Slots), slots-lent-first)
	p.Experts.Share(first)
}

// Exchanges reports whether experts and KV blocks exchange memory. They do only if experts move between steps.
func (p *Placement) Exchanges() bool { return p.exchange.arena != nil && p.pool != nil }

// Blocks returns the number of KV blocks that may be used, 0 if they share no memory with experts.
func (p *Placement) Blocks() int {
	if p.exchange.arena == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exchange.arena.Open(p.exchange.taken)
}

// BlocksFor returns the number of blocks after Exchange(blocks), unless the device refuses a call.
func (p *Placement) BlocksFor(blocks int) int {
	return p.exchange.arena.Open(p.exchange.slotsFor(blocks))
}

// slotsFor returns the number of shared slots that blocks take if there are to be that many.
func (x *exchange) slotsFor(blocks int) int { return min(x.arena.For(blocks), x.most) }

// Exchange divides the shared memory anew: the given number of KV blocks get the memory that they need, and experts get the rest. The caller
// calls it between two batches, when every batch in flight was sent to its devices completely and no prompt borrows slots. Blocks returns the
// new number. If the device refuses a call, the number of blocks does not change, and the experts that had to leave are copied back. The
// caller must call Enter before the next batch.
func (p *Placement) Exchange(blocks int) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer recovered(&err)
	x := &p.exchange
	n := x.slotsFor(blocks)
	if n > x.taken {
		err = p.takeShared(n)
	} else {
		x.taken = n // the pool finds the slots vacant
	}
	p.pool.learner.Resize(p.pool.slots() - x.taken)
	return err
}

// takeShared has experts leave the first n shared slots, and makes these zeros: kernels may read rows that nothing has written yet.
func (p *Placement) takeShared(n int) error {
	x, q, copies := &p.exchange, p.pool, p.line.copies
	p.settlePool(copies)
	if p.loan.out { // the next prompt plans anew
		p.vacate()
		p.loan.started = false
	}
	spare := len(q.link.spare)
	q.link.spare = slices.DeleteFunc(q.link.spare, func(s int32) bool { return s >= x.first+int32(x.taken) && s < x.first+int32(n) })
	q.link.sent = q.link.sent && spare == len(q.link.spare)
	for slot := x.first + int32(x.taken); slot < x.first+int32(n); slot++ {
		if k, ok := p.residency.At(slot); ok {
			i := p.index[int(k.Layer)]
			q.there[i][k.Expert] = -1
			q.changed[i] = true
			p.vacateSlot(slot)
		}
		if m := &p.line.slots[slot]; m.freed != nil && m.freed.Err() == nil {
			copies.Wait(m.freed)
		}
	}
	leaving, err := p.publish()
	if err != nil {
		return err
	}
	if leaving != nil {
		copies.Wait(leaving)
	}
	if x.zeros == nil {
		x.zeros = make([]byte, x.arena.Step)
		if a := p.dev.Accelerator(); a != nil {
			x.unpin, _ = a.Pin(x.zeros) // else they are copied in pieces
		}
	}
	for _, s := range x.arena.Slots[x.taken:n] {
		row := device.NewMat(x.arena.Buf, tensor.U8, 1, x.arena.Step)
		row.Off = s.At * x.arena.Step
		copies.CopyIn(row, x.zeros)
	}
	e := copies.Record()
	if err := e.Err(); err != nil {
		return errors.Join(err, copies.Recover())
	}
	x.taken = n
	if !p.accel { // batches have several streams
		return e.Wait()
	}
	x.zeroed = e
	return nil
}

// enterShared has a batch's stream wait until the KV blocks that have come are zeros.
func (p *Placement) enterShared(s device.Stream) {
	if x := &p.exchange; x.zeroed != nil && x.zeroed.Done() {
		x.zeroed = nil
	} else if x.zeroed != nil {
		s.Wait(x.zeroed)
	}
}

// has reports whether a slot is KV blocks'.
func (x *exchange) has(slot int32) bool { return slot >= x.first && slot < x.first+int32(x.taken) }

// close unpins memory.
func (x *exchange) close() {
	if x.unpin != nil {
		_ = x.unpin() // a lost device has let go
	}
	x.unpin, x.zeros = nil, nil
}
