package placement

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"krater/kernels/device"
	"krater/scheduler/dispatch"
	"krater/scheduler/files"
)

// side is a phase's strategy with its slots.
type side struct {
	settled dispatch.Settled
	first   int32 // its first slot on the device
	parts   []int // layers at which parts of the model begin
	moves   bool  // experts are copied during steps
}

// begin takes a start.
func (s *side) begin(setup *dispatch.Setup, start *dispatch.Start) {
	s.settled.Start, s.parts = *start, nil
	for i, at := range start.Parts {
		if i == 0 {
			s.parts = append(s.parts, 0)
			continue
		}
		s.parts = append(s.parts, int(setup.Layers[at]))
	}
}

// Fall records that a smaller strategy replaced one that does not fit.
type Fall struct {
	Phase dispatch.Phase
	dispatch.Fall
}

func (f Fall) String() string {
	return fmt.Sprintf("%s: from %s to %s: %v", f.Phase, f.From, f.To, f.Why)
}

// Falls returns the replacements that were made, in order.
func (p *Placement) Falls() []Fall { return p.falls }

// Strategy returns the strategy of a phase.
func (p *Placement) Strategy(phase dispatch.Phase) dispatch.Strategy {
	return p.sides[phase].settled.Strategy
}

// begin starts both strategies in one piece of memory; a strategy of both phases has its slots once.
// If the device has less memory than the budget says, smaller strategies replace them.
func (p *Placement) begin(o *Options) error {
	for phase := range dispatch.Phases {
		if o.strategy(phase) == nil {
			return fmt.Errorf("no strategy for %s", phase)
		}
	}
	wanted, setup := *o, p.setup
	out, err := wanted.Sketch(setup)
	if err != nil {
		return err
	}
	p.falls = out.Falls
	for {
		n, err := p.Room(out.Slots)
		if err == nil {
			break
		}
		if !errors.Is(err, device.ErrOutOfMemory) {
			return err
		}
		setup.Budget = int64(n) * setup.Bytes // less than out takes
		wanted.Prefill, wanted.Decode = out.Sides[dispatch.Prefill].Strategy, out.Sides[dispatch.Decode].Strategy
		less, lessErr := wanted.Sketch(setup)
		if lessErr != nil {
			return lessErr
		}
		for phase := range dispatch.Phases {
			if phase > 0 && less.Shared {
				break
			}
			from, to := &out.Sides[phase], &less.Sides[phase]
			if from.Name() != to.Name() || from.Start.Slots != to.Start.Slots {
				p.falls = append(p.falls, Fall{phase, dispatch.Fall{From: from.Name(), To: to.Name(), Why: err}})
			}
		}
		out = less
	}
	return p.start(o, &out)
}

// start makes the sides of an outline whose slots are allocated.
func (p *Placement) start(o *Options, out *Outline) error {
	p.line.slots = make([]mark, out.Slots)
	p.shareSlots(out.Slots, out.Lent)
	copied := p.copied(o, out)
	order := []dispatch.Phase{dispatch.Prefill, dispatch.Decode}
	if out.Lends {
		order = []dispatch.Phase{dispatch.Decode, dispatch.Prefill} // the side that lends comes first
	}
	for i, phase := range order {
		if i > 0 && out.Shared {
			p.sides[phase] = p.sides[order[0]]
			break
		}
		if err := p.fill(phase, out, copied); err != nil {
			return fmt.Errorf("%s: %s: %w", phase, out.Sides[phase].Name(), err)
		}
	}
	if pre, dec := p.sides[dispatch.Prefill], p.sides[dispatch.Decode]; pre != dec && pre.moves && dec.moves {
		// Each finds experts in the slots of the other, where no fixed table of its own has them.
		pre.settled.Start.Fixed[dispatch.Prefill], dec.settled.Start.Fixed[dispatch.Decode] = false, false
	}
	if !p.accel {
		if err := p.takeBack(&Stats{}); err != nil {
			return err
		}
		if err := p.line.copies.Synchronize(); err != nil {
			return err
		}
		return p.learn(o)
	}
	p.callRows = p.mostCallRows()
	if err := p.look(); err != nil {
		return err
	}
	return p.learn(o)
}

// learn makes the pool of a strategy that learns.
func (p *Placement) learn(o *Options) error {
	s := p.sides[dispatch.Decode]
	if !s.settled.Start.Learns {
		if s = p.sides[dispatch.Prefill]; !s.settled.Start.Learns {
			return nil
		}
	}
	now := o.Now
	if now == nil {
		begun := time.Now()
		now = func() time.Duration { return time.Since(begun) }
	}
	return p.newPool(s, now)
}

// copied returns a function that reports further experts which were laid out on the host or copied.
func (p *Placement) copied(o *Options, out *Outline) func(experts int) {
	if o.Progress == nil {
		return func(int) {}
	}
	all, done := -out.Lent, 0 // these come last and are not reported
	for phase := range dispatch.Phases {
		if phase > 0 && out.Shared {
			break
		}
		start := &out.Sides[phase].Start
		all += len(start.Loads)
		if start.Learns {
			all += len(p.setup.Layers) * p.setup.Experts
		}
		for _, place := range start.Places {
			if place.Slots > 0 {
				all += p.setup.Experts
			}
		}
	}
	return func(experts int) {
		done += experts
		o.Progress(int64(done)*p.setup.Bytes, int64(all)*p.setup.Bytes)
	}
}

// fill makes a side of a strategy and loads the experts that stay, except those in slots that are lent,
// which prefill has first. A copy that the device refuses is an error here.
func (p *Placement) fill(phase dispatch.Phase, out *Outline, copied func(experts int)) (err error) {
	defer recovered(&err)
	x := &out.Sides[phase]
	s := &side{settled: *x}
	s.begin(&p.setup, &x.Start)
	if x.Start.Learns {
		for _, layer := range p.setup.Layers {
			if err := p.Keep(int(layer)); err != nil {
				return err
			}
			copied(p.setup.Experts)
		}
	}
	loads := slices.Clone(x.Start.Loads)
	if out.Lends && phase == dispatch.Decode {
		own := len(loads) - out.Lent
		p.loan = loan{lends: out.Lent > 0, first: int32(own), out: true}
		for _, l := range loads[own:] {
			p.loan.home = append(p.loan.home, l.Key)
			if err := p.Keep(int(l.Layer)); err != nil {
				return err
			}
		}
		loads = loads[:own]
	}
	bare := x.Start
	bare.Loads = nil // they are recorded when they are enqueued
	if out.Lends && phase == dispatch.Prefill {
		s.first = p.loan.first
		p.residency.Share(&bare, s.first)
	} else {
		s.first = p.residency.Add(&bare)
	}
	p.sides[phase] = s
	for i, place := range x.Start.Places {
		if place.Slots > 0 {
			s.moves = true
			if err := p.Keep(int(p.setup.Layers[i])); err != nil {
				return err
			}
			copied(p.setup.Experts)
		}
	}
	for i := range loads {
		loads[i].Slot += s.first
	}
	const most = 64 // bounds what is enqueued
	for len(loads) > 0 {
		n := 1
		for n < min(len(loads), most) && loads[n].Layer == loads[0].Layer {
			n++
		}
		if _, err := p.line.load(p.residency, loads[:n], nil); err != nil {
			return err
		}
		if err := p.line.copies.Synchronize(); err != nil {
			return err
		}
		copied(n)
		loads = loads[n:]
	}
	return nil
}

// look makes the accelerator's tables of slots, and fills them for phases whose strategy does not
// depend on the router's choice.
func (p *Placement) look() (err error) {
	defer recovered(&err)
	for phase := range dispatch.Phases {
		if phase == dispatch.Decode {
			if err := p.takeBack(&Stats{}); err != nil {
				return err
			}
		}
		if p.views[phase], err = p.NewView(p.line.copies); err != nil {
			return err
		}
		p.fixedTables(phase, p.line.copies)
		if err := p.line.copies.Synchronize(); err != nil {
			return err
		}
	}
	return nil
}

// fixedTables enqueues the tables of a phase whose strategy does not depend on the router's choice.
func (p *Placement) fixedTables(phase dispatch.Phase, on device.Stream) {
	s := p.sides[phase]
	if !s.settled.Start.Fixed[phase] {
		return
	}
	in := &p.step
	for i, layer := range p.setup.Layers {
		*in = dispatch.Step{Setup: &p.setup, Start: &s.settled.Start, First: s.first, Index: i, Phase: phase, Work: in.Work[:0], Residency: p.residency}
		for e := range p.everyone {
			in.Work = append(in.Work, dispatch.Rows{Expert: int32(e), Rows: 1})
		}
		s.settled.Decide(&p.decision, in)
		p.nowhere()
		for _, w := range p.decision.Waves {
			p.places(in, &w)
		}
		p.views[phase].Set(on, int(layer), p.table)
	}
}

// places sets in p.table the slots of a wave's work, including those that are still to be loaded.
func (p *Placement) places(in *dispatch.Step, w *dispatch.Wave) {
	for _, i := range w.Work {
		e := in.Work[i].Expert
		if slot, ok := p.residency.Slot(dispatch.Key{Layer: in.Layer(), Expert: e}); ok {
			p.table[e] = slot
		}
	}
	for _, l := range w.Loads {
		if l.Layer == in.Layer() {
			p.table[l.Expert] = l.Slot
		}
	}
}

// recovered turns a device's panic into an error.
func recovered(err *error) {
	r := recover()
	if r == nil {
		return
	}
	if _, ok := r.(error); !ok {
		panic(r)
	}
	*err = files.Caught(r)
}
