// Package placement carries out what scheduler/dispatch decides: it keeps
// account of which expert lies in which slot of a device, enqueues the device's
// part of a layer's routed work with the copies it needs, and tells what is left to
// the host. It has no actor: the pipeline and plain calls (Model) use it alike.
package placement

import (
	"fmt"
	"slices"
	"sync"

	"krater/kernels/device"
	"krater/scheduler/dispatch"
	"krater/stages"
	"krater/stages/group"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/offload"
	"krater/stages/weights"
)

// Options say how experts are placed.
type Options struct {
	Prefill, Decode dispatch.Strategy
	// Threshold is the number of rows from which on a batch is prefill; 0: 300.
	Threshold int
	// Budget is bytes of the device for experts; 0: what it has left but for Reserve.
	Budget  int64
	Reserve int64
	// Resident are the experts of each layer that has some that are to stay on the
	// device; nil: all.
	Resident [][]int32
}

// thresholdDefault is where reading an expert for the rows that chose it begins to
// be worth a device's while.
const thresholdDefault = 300

// Placement is a model with its experts placed. It is safe for concurrent use; a
// stream belongs to one goroutine as ever.
type Placement struct {
	*offload.Experts
	dev       device.Device
	threshold int
	setup     dispatch.Setup

	mu sync.Mutex // of what follows, and of the slots
	// stream has all loads and all work of experts, so that a slot is never
	// overwritten while somebody reads it.
	stream   device.Stream
	sides    [dispatch.Phases]*side
	step     dispatch.Step
	decision dispatch.Decision
	part     []device.ExpertRows
}

// side is a strategy with its slots.
type side struct {
	strategy  dispatch.Strategy
	start     dispatch.Start
	residency *dispatch.Residency
	first     int // of its slots, among the device's
}

// New places the routed experts of parts, which were loaded with them in host
// memory, and waits for the copies. The error names the strategy and the numbers
// where they do not fit. parts stay the caller's; they are whole again after Close.
func New(dev device.Device, host offload.Host, parts *load.Parts, o Options) (*Placement, error) {
	x, err := offload.New(dev, host, parts)
	if err != nil {
		return nil, err
	}
	p := &Placement{Experts: x, dev: dev, threshold: o.Threshold}
	if p.threshold == 0 {
		p.threshold = thresholdDefault
	}
	layers := x.Layers()
	p.setup = dispatch.Setup{Experts: max(1, parts.Config.MoE.Experts), Bytes: int64(max(1, x.SlotBytes())), Budget: o.budget(dev), Resident: o.Resident}
	for _, l := range layers {
		p.setup.Layers = append(p.setup.Layers, int32(l))
	}
	if p.stream, err = dev.NewStream(); err == nil {
		err = p.begin(o)
	}
	if err != nil {
		x.Close()
		return nil, err
	}
	return p, nil
}

// Load puts a model on dev, its routed experts on the host, and places them. The
// caller closes the placement, then the parts.
func Load(dev load.Device, host offload.Host, cfg *model.Config, set *weights.Set, lo load.Options, o Options) (*load.Parts, *Placement, error) {
	lo.Routed = host
	parts, err := load.Model(dev, cfg, set, lo)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", dev.Name(), err)
	}
	p, err := New(dev, host, parts, o)
	if err != nil {
		parts.Close()
		return nil, nil, fmt.Errorf("%s: %w", dev.Name(), err)
	}
	return parts, p, nil
}

// budget is bytes for experts.
func (o *Options) budget(dev device.Device) int64 {
	if o.Budget > 0 {
		return o.Budget
	}
	m := dev.Memory()
	if m.Total == 0 {
		return dispatch.Unlimited
	}
	return max(0, m.Total-m.Used-o.Reserve)
}

// begin starts both strategies; one that serves both phases has its slots once.
func (p *Placement) begin(o Options) error {
	left, slots := p.setup.Budget, 0
	for phase, s := range [dispatch.Phases]dispatch.Strategy{o.Prefill, o.Decode} {
		if s == nil {
			return fmt.Errorf("no strategy for %s", dispatch.Phase(phase))
		}
		if phase > 0 && s.Name() == p.sides[0].strategy.Name() {
			p.sides[phase] = p.sides[0]
			continue
		}
		setup := p.setup
		setup.Budget = left
		start, err := s.Start(&setup)
		if err != nil {
			return fmt.Errorf("%s: %w", dispatch.Phase(phase), err)
		}
		if left != dispatch.Unlimited {
			left -= int64(start.Slots) * p.setup.Bytes
		}
		p.sides[phase] = &side{strategy: s, start: start, residency: dispatch.NewResidency(&start), first: slots}
		slots += start.Slots
		if err := p.load(p.sides[phase]); err != nil {
			return err
		}
	}
	return nil
}

// load makes the slots of a side and fills them.
func (p *Placement) load(s *side) error {
	if err := p.Room(s.start.Slots); err != nil {
		return err
	}
	const piece = 64 // what is enqueued stays bounded
	for loads := range slices.Chunk(s.start.Loads, piece) {
		if err := p.enqueue(s, loads); err != nil {
			return err
		}
		if err := p.stream.Synchronize(); err != nil {
			return err
		}
	}
	return nil
}

// Phase is that of a batch of so many rows.
func (p *Placement) Phase(rows int) dispatch.Phase {
	if rows >= p.threshold {
		return dispatch.Prefill
	}
	return dispatch.Decode
}

// Shares tells whether Run may leave work of a batch of so many rows to the host, so
// that Mirror.Fetch has to be enqueued before the router's choice is waited for.
func (p *Placement) Shares(rows int) bool { return p.sides[p.Phase(rows)].start.Host[p.Phase(rows)] }

// Run decides where the routed work of a layer is done, enqueues the device's part
// with the copies it needs, and appends what is left to the host to list, in the
// work's order. s is the stream of g, synchronised since Attend; what is enqueued
// on it afterwards comes after the device's part.
func (p *Placement) Run(s device.Stream, g *group.Group, st *stages.State, layer int, work, list []device.ExpertRows) ([]device.ExpertRows, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	side := p.decide(layer, st.T, work)
	if len(p.decision.Waves) > 0 {
		for _, w := range p.decision.Waves {
			side.residency.Load(w.Loads)
			if err := p.enqueue(side, w.Loads); err != nil {
				return list, err
			}
			p.part = pick(p.part[:0], work, w.Work)
			g.Experts(p.stream, st, layer, p.part)
		}
		s.Wait(p.stream.Record())
	}
	return pick(list, work, p.decision.Host), nil
}

// decide fills p.decision for the routed work of a layer, of a batch of so many rows.
func (p *Placement) decide(layer, rows int, work []device.ExpertRows) *side {
	phase := p.Phase(rows)
	s := p.sides[phase]
	in := &p.step
	*in = dispatch.Step{Setup: &p.setup, Layer: int32(layer), Phase: phase, Work: in.Work[:0], Residency: s.residency}
	for _, w := range work {
		in.Work = append(in.Work, dispatch.Rows{Expert: w.Expert, Rows: int32(len(w.Assign))})
	}
	s.strategy.Decide(&p.decision, in)
	return s
}

// enqueue enqueues copies to slots of a side.
func (p *Placement) enqueue(s *side, loads []dispatch.Load) error {
	for _, l := range loads {
		if err := p.Load(p.stream, s.first+int(l.Slot), int(l.Layer), int(l.Expert)); err != nil {
			return err
		}
	}
	return nil
}

// pick appends the items of work that index names.
func pick(list, work []device.ExpertRows, index []int32) []device.ExpertRows {
	for _, i := range index {
		list = append(list, work[i])
	}
	return list
}
