package hostsim

import (
	"sync"
	"time"

	"krater/kernels/cpu"
	"krater/kernels/device"
)

// Processor simulates the host's processor beside a Device: it has the operators of a
// CPU, and its experts take time on the device's clock. Threads that use it at the same
// time get it one after the other.
type Processor struct {
	*cpu.Device
	clock *Clock
	rates Rates // Memory, Flops and Launch

	mu   sync.Mutex
	busy engine
}

// NewProcessor makes a processor from a CPU, which the caller keeps. It ignores the
// rates of copies.
func NewProcessor(c *cpu.Device, clock *Clock, rates Rates) *Processor {
	return &Processor{Device: c, clock: clock, rates: rates}
}

// Busy returns the virtual time for which experts were computed.
func (p *Processor) Busy() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.busy.total
}

// spend has the host wait for some work.
func (p *Processor) spend(w work) {
	now, earliest := p.clock.times()
	p.mu.Lock()
	end := p.busy.take(earliest, now, p.rates.time(w))
	p.mu.Unlock()
	p.clock.reach(end)
}

// Run implements device.Device. Experts take virtual time, other operators take none.
func (p *Processor) Run(s device.Stream, l device.List) {
	for part := range l.Parts(p) {
		if o := &part.Ops[0]; o.Kind == device.OpExperts {
			var w work
			for _, r := range o.Experts.Work {
				bytes, ff, hidden := o.Experts.Sizes(r.Expert)
				w.bytes += int64(bytes)
				w.flops += products(len(r.Assign), 3*ff, hidden)
			}
			p.spend(w)
		}
		p.Device.Run(s, part)
	}
}
