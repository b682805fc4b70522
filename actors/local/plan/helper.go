package plan

import (
	"errors"
	"fmt"

	"krater/actors/local/config"
	"krater/scheduler/dispatch"
	"krater/scheduler/planner"
	"krater/stages/helper"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/offload"
)

// Helper is the device that computes a share of the experts for the only rank.
type Helper struct {
	Place  config.Place
	Memory int64 // that Krater may use; 0: no limit
	// Part is the part of each layer's experts that it holds; 0: all those that the rank does not hold.
	Part  float64
	Slots int   // experts that it has room for, no more than it holds
	Bytes int64 // of its memory
}

// helperPart is the most that a helper holds of experts that the rank holds, too, unless an option says more.
const helperPart = 0.5

// helperError is why a helper gets no experts although an option asks for it.
type helperError string

func (e helperError) Error() string { return string(e) }

// newHelper reads the options; nil: there is no helper.
func newHelper(f *config.Options, rank config.Place, cfg *model.Config, l *config.Case) (*Helper, error) {
	p, ok, err := f.Helper(rank)
	switch {
	case err != nil || !ok:
		return nil, err
	case cfg.MoE.Experts == 0:
		return nil, fmt.Errorf("--expert-device %s: the model has no routed experts", f.ExpertDevice)
	case l.Part != nil:
		return nil, errors.New("--expert-device goes with a model in one process")
	}
	prefill, decode, err := f.Wanted()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{prefill, decode} {
		if rank.Kind != config.CPU && name != "" && name != config.Persistent && name != hotCached {
			return nil, fmt.Errorf("--expert-device %s: it needs the strategies %s or %s, which leave experts where they are, and not %s", f.ExpertDevice, config.Persistent, hotCached, name)
		}
	}
	h := &Helper{Place: p, Memory: l.Helper.Memory}
	if p.Kind == config.HostSim && f.VRAM.Count() > 1 {
		h.Memory = int64(f.VRAM.Of(1))
	}
	return h, nil
}

// hotCached is the strategy of a rank that lacks experts which its helper has.
const hotCached = "hot_cached_static"

func (h *Helper) name() string { return "helper: " + h.Place.String() }

// without is the strategy where not all experts fit on the rank: name, or with a helper that which leaves the others to it.
func (o *Plan) without(name string) string {
	if o.Helper != nil {
		return hotCached
	}
	return name
}

// addHelper adds the helper's memory, and what the rank has for it.
func (o *Plan) addHelper() error {
	h := o.Helper
	if h == nil {
		return nil
	}
	slot, err := offload.SlotBytes(o.cfg, o.Load.Precision, o.Load.Layout)
	if err != nil {
		return err
	}
	rows, rank, err := o.helperRows()
	if err != nil {
		return err
	}
	layers := len(o.setup(1, 0).Layers)
	all, here := layers*o.cfg.MoE.Experts, layers*o.cfg.MoE.Experts
	if o.place.Kind.Own() && o.Experts.outline.Sides[dispatch.Decode].Strategy != nil {
		here = o.Experts.outline.Sides[dispatch.Decode].Start.Slots
	}
	room := all
	if h.Memory > 0 {
		room = int(max(0, min(int64(all), (int64(planner.RefuseShare*float64(h.Memory))-rows)/slot)))
	}
	if here < all {
		if h.Slots = all - here; h.Slots > room {
			return helperError(fmt.Sprintf("%s has room for %d of the %d experts that the rank has none for", h.Place, room, h.Slots))
		}
	} else {
		h.Part = min(max(helperPart, float64(o.Options.ExpertShare)/100), float64(room)/float64(all))
		if h.Slots = min(room, int(h.Part*float64(all)+0.5)+layers); h.Part < 1./16 {
			return helperError(fmt.Sprintf("%s has room for %d experts", h.Place, room))
		}
	}
	h.Bytes = rows + int64(h.Slots)*slot
	o.ledger.list = append(o.ledger.list,
		planner.Component{Device: h.name(), Name: "experts on it", Detail: planner.Count(h.Slots, "expert"), Bytes: int64(h.Slots) * slot},
		planner.Component{Device: h.name(), Name: "rows", Detail: planner.Count(o.states(), "batch"), Bytes: rows})
	if h.Place.Kind == config.HostSim {
		o.ledger.host("simulated helper", "the memory of "+h.name(), h.Bytes)
	}
	o.ledger.promise("rows from the helper", "", rank)
	o.Promised = o.ledger.promised
	return nil
}

// helperRows returns the memory for rows and operators on the helper, and for rows on the rank.
func (o *Plan) helperRows() (there, here int64, err error) {
	lim, err := o.Load.LimitsFor(o.cfg)
	if err != nil {
		return 0, 0, err
	}
	l := o.Load.Layout
	if there, here = helper.Bytes(o.cfg, lim, lim.QuantGroup, l); l != nil {
		there += int64(l.ScratchBytes(load.StepSizes(o.cfg, lim)))
	}
	n := int64(o.states())
	return n*there + ViewBytes(o.cfg), n * here, nil
}

// String says what the helper does, for people.
func (h *Helper) String() string {
	if h.Part == 0 {
		return fmt.Sprintf("the other experts of each layer (%d) for all tokens", h.Slots)
	}
	return fmt.Sprintf("up to %.0f %% of the experts of each layer for prompts, as measured at the start", 100*h.Part)
}
