package plan

import (
	"fmt"

	"krater/actors/local/config"
	"krater/actors/placement"
	"krater/scheduler/dispatch"
	"krater/scheduler/planner"
	"krater/stages/model"
	"krater/stages/offload"
)

// strategies say where a rank's experts are computed.
type strategies struct {
	Prefill, Decode dispatch.Strategy // as the options name them
	outline         placement.Outline // what they amount to for this model
	Budget, Slot    int64             // bytes for all experts and for one
}

// Here reports whether all experts are computed on the host.
func (s *strategies) Here() bool {
	return s.Prefill.Name() == config.CPUOnly && s.Decode.Name() == config.CPUOnly
}

// bytes returns the memory that the rank is asked for.
func (s *strategies) bytes() int64 { return int64(s.outline.Slots) * s.Slot }

// streams reports whether prompts go through the model in groups of layers.
func (s *strategies) streams() bool { return len(s.outline.Sides[dispatch.Prefill].Start.Parts) > 1 }

func (s *strategies) String() string {
	if s.outline.Sides[0].Strategy == nil {
		return fmt.Sprintf("prefill %s, decode %s", s.Prefill.Name(), s.Decode.Name())
	}
	return fmt.Sprintf("prefill %s, decode %s", s.outline.Sides[dispatch.Prefill].Name(), s.outline.Sides[dispatch.Decode].Name())
}

// chooseBeside chooses the strategies for a simulated rank whose other parts take the given bytes.
// auto keeps all experts there if they fit.
func (o *Plan) chooseBeside(rest int64) (s strategies, err error) {
	f := &o.Options.RankOptions
	slot, err := offload.SlotBytes(o.cfg, o.Load.Precision, nil)
	if err != nil {
		return s, err
	}
	setup := o.setup(slot, budget(f, rest))
	instead := config.Persistent
	if int64(len(setup.Layers)*setup.Experts) > setup.Budget/setup.Bytes {
		instead = o.without(config.CPUOnly)
	}
	if s.Prefill, s.Decode, err = f.Named(instead, instead); err != nil {
		return s, err
	}
	return s, s.sketch(int64(f.PrefillExpertVRAM), setup)
}

// sketch computes the outline of the strategies. prefill limits the bytes for the prefill strategy;
// 0: no limit.
func (s *strategies) sketch(prefill int64, setup dispatch.Setup) (err error) {
	s.Budget, s.Slot = setup.Budget, setup.Bytes
	o := placement.Options{Prefill: s.Prefill, Decode: s.Decode, PrefillBudget: prefill}
	s.outline, err = o.Sketch(setup)
	return err
}

// budget returns the bytes for experts when the other parts of the rank take the given bytes.
func budget(f *config.RankOptions, rest int64) int64 {
	room := int64(dispatch.Unlimited)
	if vram := f.VRAM.One(); vram > 0 {
		room = max(0, int64(planner.RefuseShare*float64(vram))-rest)
	}
	if f.ExpertVRAM > 0 {
		room = min(room, int64(f.ExpertVRAM))
	}
	return room
}

// setup describes the experts of the rank's layers to the strategies.
func (o *Plan) setup(slot, budget int64) dispatch.Setup {
	s := setupOf(o.Load.Own(o.cfg), slot, budget)
	for i := range s.Layers {
		s.Layers[i] += int32(o.Load.First)
	}
	return s
}

// setupOf describes a model's experts to the strategies. slot is the size of one expert.
func setupOf(cfg *model.Config, slot, budget int64) dispatch.Setup {
	setup := dispatch.Setup{Experts: max(1, cfg.MoE.Experts), Bytes: max(1, slot), Budget: budget}
	for layer := range cfg.Layers {
		if cfg.MoELayer(layer) {
			setup.Layers = append(setup.Layers, int32(layer))
		}
	}
	return setup
}

// Host reports whether either phase computes experts on the host.
func (s *strategies) Host() bool {
	for phase := range dispatch.Phases {
		if s.outline.Sides[phase].Start.Host[phase] {
			return true
		}
	}
	return false
}

// movedLayers returns the number of layers with experts, of which there are all, whose experts are copied
// repeatedly.
func (s *strategies) movedLayers(all int) int {
	moved := map[int]bool{}
	for phase := range dispatch.Phases {
		start := &s.outline.Sides[phase].Start
		if start.Learns {
			return all
		}
		for i, place := range start.Places {
			if place.Slots > 0 {
				moved[i] = true
			}
		}
	}
	return len(moved)
}
