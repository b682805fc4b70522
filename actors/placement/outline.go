package placement

import (
	"errors"
	"fmt"

	"krater/scheduler/dispatch"
)

// Outline describes the slots and strategies that New would choose for a setup. It is computed from the
// budget alone; nothing is loaded.
type Outline struct {
	Sides  [dispatch.Phases]dispatch.Settled
	Shared bool // both phases have one strategy, and so the same slots
	Slots  int  // of both together
	// Lends: decode's experts stay in their slots, and prefill has no slots of its own. It
	// borrows the last Lent ones of decode, which are copied back before decode goes on.
	Lends bool
	Lent  int
	Falls []Fall
}

// Sketch returns the outline of o for a setup.
func (o *Options) Sketch(setup dispatch.Setup) (out Outline, err error) {
	left := setup.Budget
	if out.Shared = o.shared(); !out.Shared {
		if ok, err := out.lend(o, setup); ok || err != nil {
			return out, err
		}
	}
	for phase := range dispatch.Phases {
		if phase > 0 && out.Shared {
			out.Sides[phase] = out.Sides[0]
			break
		}
		own := o.share(setup, phase, left, out.Sides[:phase])
		x, err := dispatch.Settle(o.strategy(phase), &own)
		if err != nil {
			return out, fmt.Errorf("%s: %w", phase, err)
		}
		left -= int64(x.Start.Slots) * setup.Bytes
		out.Sides[phase] = x
		out.Slots += x.Start.Slots
		for _, f := range x.Falls {
			out.Falls = append(out.Falls, Fall{phase, f})
		}
	}
	return out, nil
}

// lend makes out an outline in which decode lends slots to prefill; false where the strategies
// are not of that kind, and out is as it was.
func (out *Outline) lend(o *Options, setup dispatch.Setup) (bool, error) {
	decode, err := dispatch.Settle(o.Decode, &setup)
	if err != nil || !decode.Start.Lends() {
		return false, nil // an error is told by who gives each phase slots of its own
	}
	x, lent := dispatch.Settled{Strategy: o.Prefill}, 0
	most := decode.Start.Slots
	if o.PrefillBudget > 0 {
		most = int(min(int64(most), o.PrefillBudget/setup.Bytes))
	}
	for {
		b, borrows := x.Strategy.(dispatch.Borrower)
		if borrows {
			x.Start, lent, err = dispatch.Lend(&setup, &decode.Start, b, most)
		} else if x.Start, err = x.Strategy.Start(&setup); err == nil && x.Start.Slots > 0 {
			return false, nil // it keeps experts of its own
		}
		if err == nil {
			break
		}
		less := x.Smaller(&setup)
		if !errors.Is(err, dispatch.ErrNoRoom) || less == nil {
			return true, fmt.Errorf("%s: %w", dispatch.Prefill, err)
		}
		x.Falls = append(x.Falls, dispatch.Fall{From: x.Name(), To: less.Name(), Why: err})
		x.Strategy = less
	}
	out.Lends, out.Lent, out.Slots = true, lent, decode.Start.Slots
	out.Sides = [dispatch.Phases]dispatch.Settled{dispatch.Prefill: x, dispatch.Decode: decode}
	for phase := range dispatch.Phases {
		for _, f := range out.Sides[phase].Falls {
			out.Falls = append(out.Falls, Fall{phase, f})
		}
	}
	return true, nil
}

// strategy is that of a phase.
func (o *Options) strategy(phase dispatch.Phase) dispatch.Strategy {
	if phase == dispatch.Prefill {
		return o.Prefill
	}
	return o.Decode
}

// shared reports whether both phases have one strategy, and so the same slots.
func (o *Options) shared() bool { return o.Prefill.Name() == o.Decode.Name() }

// share returns the setup of a phase: what is left of the budget, and what those before it
// keep on the device.
func (o *Options) share(setup dispatch.Setup, phase dispatch.Phase, left int64, before []dispatch.Settled) dispatch.Setup {
	setup.Budget = left
	if phase == dispatch.Prefill && o.PrefillBudget > 0 && !o.shared() {
		setup.Budget = min(left, o.PrefillBudget)
	}
	for _, x := range before {
		for _, l := range x.Start.Loads {
			setup.Kept = append(setup.Kept, l.Key)
		}
	}
	return setup
}
