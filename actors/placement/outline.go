package placement

import (
	"fmt"

	"krater/scheduler/dispatch"
)

// Outline is what New would do for a setup, with nothing loaded and as far as the budget
// alone decides.
type Outline struct {
	Sides  [dispatch.Phases]dispatch.Settled
	Shared bool // both phases have one strategy, and so the same slots
	Slots  int  // of both together
	Falls  []Fall
}

// Sketch makes an outline.
func (o *Options) Sketch(setup dispatch.Setup) (out Outline, err error) {
	left := setup.Budget
	out.Shared = o.shared()
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

// strategy is that of a phase.
func (o *Options) strategy(phase dispatch.Phase) dispatch.Strategy {
	if phase == dispatch.Prefill {
		return o.Prefill
	}
	return o.Decode
}

// shared reports whether both phases have one strategy, and so the same slots.
func (o *Options) shared() bool { return o.Prefill.Name() == o.Decode.Name() }

// share is the setup of a phase: what is left of the budget, and what those before it
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
