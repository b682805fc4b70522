package placement

import (
	"krater/kernels/device"
	"krater/scheduler/dispatch"
)

// loan is the slots that decode lends to prefill. Between prompts they hold the experts of home.
type loan struct {
	lends bool
	first int32          // the first of the slots
	home  []dispatch.Key // by slot, from first on
	out   bool           // prefill uses them
	back  device.Event   // after the copies of home; nil: they have ended
}

// Lends reports whether prefill uses slots of decode. Then batches of different phases must not be in
// flight at the same time, and each has to Enter.
func (p *Placement) Lends() bool { return p.loan.lends }

// Enter prepares the slots for a batch with this number of rows, before any of it is enqueued on s: a prompt
// borrows slots, and the first decode batch after it gets them back. The batch waits for these copies
// on the device. On an error nothing may run.
func (p *Placement) Enter(s device.Stream, rows int) error {
	if !p.loan.lends {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Phase(rows) == dispatch.Prefill {
		p.lend()
		return nil
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

// lend gives the slots to prefill.
func (p *Placement) lend() {
	if p.loan.out {
		return
	}
	p.loan.out = true
	p.vacate()
}

// vacate records that the slots are empty.
func (p *Placement) vacate() {
	for i := range p.loan.home {
		slot := p.loan.first + int32(i)
		p.residency.Drop(slot)
		p.Leave(int(slot))
	}
}

// takeBack enqueues the copies of the experts whose slots were lent, and counts them.
func (p *Placement) takeBack(stats *Stats) (err error) {
	if !p.loan.out {
		return nil
	}
	defer recovered(&err)
	p.vacate()
	p.loan.back = nil
	loads := make([]dispatch.Load, len(p.loan.home))
	for i, k := range p.loan.home {
		loads[i] = dispatch.Load{Slot: p.loan.first + int32(i), Key: k}
	}
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
