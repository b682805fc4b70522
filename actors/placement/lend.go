package placement

import (
	"krater/kernels/device"
	"krater/scheduler/dispatch"
)

// loan is the slots that decode lends to prefill. Between two prompts they hold the experts
// of home, as all other slots of decode always do.
type loan struct {
	lends bool
	first int32          // of the slots
	home  []dispatch.Key // by slot, from first on
	out   bool           // prefill has them
	back  device.Event   // of the copies that bring home back; nil: they are there
}

// Lends reports whether prefill works in slots of decode. Then batches of different phases
// must not be on their way at the same time, and each has to Enter.
func (p *Placement) Lends() bool { return p.loan.lends }

// Enter readies the slots for a batch of so many rows whose stream is s, before anything of it
// is enqueued: a prompt gets what is lent, and for the first batch after it decode gets it
// back. The batch waits for these copies on the device. On an error nothing may run.
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
	// Elsewhere work waits for the copies of its own experts (line.compute).
	if p.card && p.loan.back != nil {
		if p.loan.back.Done() {
			p.loan.back = nil
		} else {
			s.Wait(p.loan.back)
		}
	}
	return nil
}

// lend empties the slots for prefill.
func (p *Placement) lend() {
	if p.loan.out {
		return
	}
	p.loan.out = true
	p.vacate()
}

// vacate notes that nothing lies in the slots.
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
