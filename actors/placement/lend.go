package placement

import (
	"errors"
	"slices"

	"krater/kernels/device"
	"krater/scheduler/dispatch"
)

// loan is the slots that decode lends to prefill. Between prompts they hold the experts of home.
type loan struct {
	lends bool
	first int32          // the first of the slots
	home  []dispatch.Key // by slot, from first on
	out   bool           // prefill uses them
	// started: prefill has been started anew for what is outside of them, where that changes.
	started bool
	back    device.Event // after the copies of home; nil: they have ended
}

// Lends reports whether prefill uses slots of decode. Then batches of different phases must not be in
// flight at the same time.
func (p *Placement) Lends() bool { return p.loan.lends }

// Enter prepares the slots for a batch with the given number of rows, before any work of the batch is
// enqueued on s. A prompt borrows slots, and the first decode batch after it gets them back. The batch waits for
// these copies on the device. After an error no batch may run.
func (p *Placement) Enter(s device.Stream, rows int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.enterShared(s)
	if !p.loan.lends {
		return nil
	}
	if p.Phase(rows) == dispatch.Prefill {
		return p.lend(s)
	}
	if err := p.takeBack(&p.stats[dispatch.Prefill]); err != nil {
		return err
	}
	// On other devices work waits for the copies of its own experts (line.compute).
	if p.accel && p.loan.back != nil {
		if p.loan.back.Done() {
			p.loan.back = nil
		} else {
			s.Wait(p.loan.back)
		}
	}
	return nil
}

// lend gives the slots to prefill. s is the stream of the batch that borrows them.
func (p *Placement) lend(s device.Stream) (err error) {
	defer recovered(&err)
	if !p.loan.out {
		if p.pool != nil {
			p.settlePool(s)
			for i := range p.loan.home {
				p.loan.home[i], _ = p.residency.At(p.loan.first + int32(i)) // of layer -1 where none is
			}
		}
		p.loan.out, p.loan.started = true, false
		p.vacate()
	}
	if p.pool != nil && !p.loan.started {
		if err := p.borrow(); err != nil {
			return err
		}
		p.loan.started = true
	}
	return nil
}

// borrow starts prefill anew in the lent slots: other experts may be outside of them than before.
func (p *Placement) borrow() error {
	side, own := p.sides[dispatch.Prefill], p.setup
	b, ok := side.settled.Strategy.(dispatch.Borrower)
	if !ok {
		return nil // it has no slots
	}
	own.Budget = int64(len(p.loan.home)) * own.Bytes
	own.Kept = nil
	for slot := range int32(p.residency.Slots()) {
		if k, ok := p.residency.At(slot); ok {
			own.Kept = append(own.Kept, k)
		}
	}
	start, err := b.Borrow(&own)
	if err != nil {
		return err
	}
	side.begin(&p.setup, &start)
	if !p.accel {
		return nil
	}
	p.fixedTables(dispatch.Prefill, p.pool.tables)
	e := p.pool.tables.Record()
	if err := e.Err(); err != nil {
		for _, layer := range p.setup.Layers {
			p.doubt(int(layer), dispatch.Prefill)
		}
		return errors.Join(err, p.pool.tables.Recover())
	}
	return nil
}

// vacate records that the slots are empty.
func (p *Placement) vacate() {
	for i := range p.loan.home {
		p.vacateSlot(p.loan.first + int32(i))
	}
}

// vacateSlot records that a slot is empty.
func (p *Placement) vacateSlot(slot int32) {
	p.residency.Drop(slot)
	p.Leave(int(slot))
}

// takeBack enqueues the copies of the experts whose slots were lent, and counts them.
func (p *Placement) takeBack(stats *Stats) (err error) {
	if !p.loan.out {
		return nil
	}
	defer func() {
		if err != nil { // some of them may be there already, where prefill does not look for them
			p.vacate()
		}
	}()
	defer recovered(&err)
	p.vacate()
	p.loan.back = nil
	var loads []dispatch.Load
	for i, k := range p.loan.home {
		if k.Layer >= 0 {
			loads = append(loads, dispatch.Load{Slot: p.loan.first + int32(i), Key: k})
		}
	}
	slices.SortStableFunc(loads, func(a, b dispatch.Load) int { return int(a.Layer - b.Layer) })
	if err := p.load(loads, stats, nil); err != nil {
		return err
	}
	e := p.line.copies.Record()
	if err := e.Err(); err != nil {
		return err
	}
	p.loan.out, p.loan.back = false, e
	return nil
}
