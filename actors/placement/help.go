package placement

import (
	"errors"

	"krater/kernels/device"
	"krater/scheduler/dispatch"
	"krater/stages"
	"krater/stages/group"
)

// ErrMoves: a helper cannot be used with a strategy that moves experts, because its own experts would have to change too.
var ErrMoves = errors.New("a helper needs strategies that leave experts where they are: persistent or hot_cached_static")

// Shares reports whether Run may leave work of a batch with the given number of rows to the host.
// Then Mirror.Fetch has to be enqueued before the wait for the router's choice.
func (p *Placement) Shares(rows int) bool {
	phase := p.Phase(rows)
	return p.sides[phase].settled.Start.Host[phase] && !(p.alone && p.helped[phase])
}

// Leaves reports whether other devices compute experts of a phase between two layers, because Run may leave work to the host or
// a helper has a share.
func (p *Placement) Leaves(phase dispatch.Phase) bool {
	return p.helped[phase] || p.sides[phase].settled.Start.Host[phase]
}

// Here returns the experts of a layer that an accelerator holds, nil on other devices.
func (p *Placement) Here(layer int) *device.Bank {
	if !p.accel {
		return nil
	}
	return p.views[dispatch.Decode].Bank(layer)
}

// AsResident reports whether all experts that a batch with the given number of rows uses stay where they are, as if they were
// part of the layers.
func (p *Placement) AsResident(rows int) bool {
	return p.Steady() && !p.sides[p.Phase(rows)].moves && p.Whole(rows, false) && !p.Asks(rows, false)
}

// Helped reports whether a helper computes experts of a batch with the given number of rows.
func (p *Placement) Helped(rows int) bool { return p.helped[p.Phase(rows)] }

// Unasked reports whether the host does not need the router's choice for a batch with the given number of rows that has a helper:
// both devices find their experts by tables, the host computes none, and the helper returns sums. Then Mixes replaces Run.
func (p *Placement) Unasked(rows int, watched bool) bool {
	return p.Helped(rows) && p.accel && p.alone && p.ReturnsSums() && !watched
}

// Mixes enqueues the device's part of a layer of such a batch.
func (p *Placement) Mixes(s device.Stream, g *group.Group, st *stages.State, layer int) {
	here := p.views[p.Phase(st.Total())].Bank(layer)
	g.ExpertsOn(s, st, here)
	st.ExpertSlot = here.Map
}

// Help makes a helper compute the experts that has reports, [E] for each layer. If all experts are on the device, the helper
// computes for batches of at least least rows, else for all batches. The caller does not pass the helper's work to Run. Help must
// be called before the first step.
func (p *Placement) Help(least int, has func(layer int) []bool) (err error) {
	defer recovered(&err)
	for phase := range dispatch.Phases {
		if s := p.sides[phase]; s.moves || !s.settled.Start.Fixed[phase] || p.pool != nil {
			return ErrMoves
		}
	}
	if p.whole() {
		p.threshold, p.helped[dispatch.Prefill] = least, true
	} else {
		p.helped = [dispatch.Phases]bool{true, true}
	}
	p.alone = true
	for _, layer := range p.setup.Layers {
		held := has(int(layer))
		for e := range p.setup.Experts {
			_, here := p.residency.Slot(dispatch.Key{Layer: layer, Expert: int32(e)})
			p.alone = p.alone && (here || held[e])
		}
		for phase := range dispatch.Phases {
			if !p.accel || !p.helped[phase] {
				continue
			}
			p.table = append(p.table[:0], p.views[phase].Slots(int(layer))...)
			for e, helped := range held {
				if helped {
					p.table[e] = -1
				}
			}
			p.views[phase].Set(p.line.copies, int(layer), p.table)
			if err := p.line.copies.Synchronize(); err != nil {
				return err
			}
		}
	}
	return nil
}

// whole reports whether all experts are on the device in both phases.
func (p *Placement) whole() bool {
	for phase := range dispatch.Phases {
		if p.sides[phase].settled.Start.Host[phase] {
			return false
		}
	}
	return true
}
