package placement

import (
	"errors"
	"fmt"
	"slices"

	"krater/kernels/device"
	"krater/scheduler/dispatch"
)

// side is a strategy with its slots.
type side struct {
	settled dispatch.Settled
	first   int32 // of its slots, among the device's
	parts   []int // layers of the model
}

// Fall is a step from a strategy that has no room to a smaller one.
type Fall struct {
	Phase dispatch.Phase
	dispatch.Fall
}

func (f Fall) String() string {
	return fmt.Sprintf("%s: from %s to %s: %v", f.Phase, f.From, f.To, f.Why)
}

// Falls are the steps down that were taken, in order.
func (p *Placement) Falls() []Fall { return p.falls }

// Strategy is what a phase runs by.
func (p *Placement) Strategy(phase dispatch.Phase) dispatch.Strategy {
	return p.sides[phase].settled.Strategy
}

// begin starts both strategies; one that serves both phases has its slots once.
func (p *Placement) begin(o *Options) error {
	var done []dispatch.Settled
	left := p.setup.Budget
	for phase := range dispatch.Phases {
		if o.strategy(phase) == nil {
			return fmt.Errorf("no strategy for %s", phase)
		}
	}
	for phase := range dispatch.Phases {
		if phase > 0 && o.shared() {
			p.sides[phase] = p.sides[0]
			break
		}
		setup := o.share(p.setup, phase, left, done)
		x, err := p.settle(phase, o.strategy(phase), &setup)
		if err != nil {
			return fmt.Errorf("%s: %w", phase, err)
		}
		left -= int64(x.Start.Slots) * p.setup.Bytes
		if err := p.fill(phase, x); err != nil {
			return fmt.Errorf("%s: %s: %w", phase, x.Name(), err)
		}
		done = append(done, *x)
	}
	return nil
}

// settle finds a strategy that fits the budget and that the device has memory for: it may
// have less than the budget says.
func (p *Placement) settle(phase dispatch.Phase, s dispatch.Strategy, setup *dispatch.Setup) (*dispatch.Settled, error) {
	for {
		x, err := dispatch.Settle(s, setup)
		if err != nil {
			return nil, err
		}
		for _, f := range x.Falls {
			p.falls = append(p.falls, Fall{phase, f})
		}
		n, err := p.Room(x.Start.Slots)
		if err == nil {
			return &x, nil
		}
		if !errors.Is(err, device.ErrOutOfMemory) {
			return nil, err
		}
		setup.Budget = int64(n) * setup.Bytes // less than x takes
		s = x.Strategy
		if _, less := s.Start(setup); less != nil {
			s = s.Smaller(setup) // not nil: what nothing is smaller than takes no memory
		}
		p.falls = append(p.falls, Fall{phase, dispatch.Fall{From: x.Name(), To: s.Name(), Why: err}})
	}
}

// fill makes a side of a strategy whose slots are there, and loads what is to stay. A
// copy that the device refuses is an error here.
func (p *Placement) fill(phase dispatch.Phase, x *dispatch.Settled) (err error) {
	defer func() {
		if r := recover(); r != nil {
			var ok bool
			if err, ok = r.(error); !ok {
				panic(r)
			}
		}
	}()
	s := &side{settled: *x}
	for i, at := range x.Start.Parts {
		if i == 0 {
			s.parts = append(s.parts, 0)
			continue
		}
		s.parts = append(s.parts, int(p.setup.Layers[at]))
	}
	bare := x.Start
	bare.Loads = nil // they are noted as they are enqueued
	s.first = p.residency.Add(&bare)
	p.line.slots = append(p.line.slots, make([]mark, x.Start.Slots)...)
	const piece = 64 // what is enqueued stays bounded
	for loads := range slices.Chunk(x.Start.Loads, piece) {
		loads = slices.Clone(loads)
		for i := range loads {
			loads[i].Slot += s.first
		}
		if _, err := p.line.load(p.residency, loads); err != nil {
			return err
		}
		if err := p.line.copies.Synchronize(); err != nil {
			return err
		}
	}
	p.sides[phase] = s
	return nil
}
