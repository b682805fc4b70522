package hostsim

import (
	"sync"
	"time"

	"krater/kernels/cpu"
	"krater/kernels/device"
)

// Processor is the processor beside a Device: the operators of a CPU, of which the
// experts take time on the device's clock. It is one: threads that use it at the same
// time share it, one after the other.
type Processor struct {
	*cpu.Device
	clock *Clock
	rates Rates // Memory, Flops and Launch

	mu   sync.Mutex
	busy engine
}

// NewProcessor makes one of a CPU, which stays the caller's. Of the rates, copies do
// not count.
func NewProcessor(c *cpu.Device, clock *Clock, rates Rates) *Processor {
	return &Processor{Device: c, clock: clock, rates: rates}
}

// Busy is the virtual time for which experts were computed.
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

// Experts are several networks, each for its rows.
func (p *Processor) Experts(s device.Stream, y, x device.Mat, bank []device.Expert, list []device.ExpertRows, topK int) {
	var w work
	for _, r := range list {
		e := &bank[r.Expert]
		w.bytes += int64(e.Bytes())
		w.flops += products(len(r.Assign), 3*e.Gate.Rows, e.Gate.Cols)
	}
	p.spend(w)
	p.Device.Experts(s, y, x, bank, list, topK)
}

// ExpertsQ is Experts in integers.
func (p *Processor) ExpertsQ(s device.Stream, y device.Mat, x device.QRows, bank []device.QExpert, list []device.ExpertRows, topK int) {
	var w work
	for _, r := range list {
		e := &bank[r.Expert]
		w.bytes += int64(e.Bytes())
		w.flops += products(len(r.Assign), 3*e.W2.Cols, e.W2.Rows)
	}
	p.spend(w)
	p.Device.ExpertsQ(s, y, x, bank, list, topK)
}
