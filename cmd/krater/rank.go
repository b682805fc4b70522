package main

import (
	"errors"
	"fmt"

	"krater/actors/placement"
	"krater/kernels/device"
	"krater/kernels/hostsim"
	"krater/scheduler/dispatch"
	"krater/scheduler/planner"
	"krater/stages"
	"krater/stages/load"
)

// rankFlags are those of a rank with memory of its own.
type rankFlags struct {
	VRAM                size   `name:"vram" help:"Memory of the rank; 0: no bound (hostsim)." default:"0"`
	ExpertVRAM          size   `name:"expert-vram" help:"Part of it for routed experts; 0: what the rest leaves." default:"0"`
	PrefillStrategy     string `help:"Where a prompt's experts are computed: auto, or a strategy by name or number (1 cpu_only, 7 persistent)." default:"auto"`
	DecodeStrategy      string `help:"The same of generated tokens." default:"auto"`
	GPUPrefillThreshold int    `name:"gpu-prefill-threshold" help:"Rows of a batch from which on it counts as a prompt." default:"300"`
}

// auto is the strategy that is chosen by what fits.
const auto = "auto"

// strategies say where a rank's experts are computed.
type strategies struct{ prefill, decode dispatch.Strategy }

// The strategies that auto chooses between.
const (
	allThere = "persistent"
	allHere  = "cpu_only"
)

// resident reports whether experts are kept on the rank.
func (s strategies) resident() bool { return s.prefill.Name() != allHere || s.decode.Name() != allHere }

func (s strategies) String() string {
	return fmt.Sprintf("prefill %s, decode %s", s.prefill.Name(), s.decode.Name())
}

// onRank reports whether the layers are on a rank with memory of its own.
func (f *engineFlags) onRank() bool { return f.Device == "hostsim" }

// named gives the strategies that flags name; auto stands for instead.
func (f *rankFlags) named(instead string) (s strategies, err error) {
	for _, x := range []struct {
		flag, text string
		to         *dispatch.Strategy
	}{{"prefill-strategy", f.PrefillStrategy, &s.prefill}, {"decode-strategy", f.DecodeStrategy, &s.decode}} {
		if x.text == auto {
			x.text = instead
		}
		if *x.to, err = dispatch.Parse(x.text); err != nil {
			return s, fmt.Errorf("--%s: %w", x.flag, err)
		}
	}
	return s, nil
}

// choose resolves auto for experts of so many bytes beside the rest of what is on the
// rank: they stay there if they fit.
func (f *rankFlags) choose(experts, rest int64) (strategies, error) {
	room := int64(planner.RefuseShare*float64(f.VRAM)) - rest
	if f.VRAM == 0 {
		room = experts
	}
	if f.ExpertVRAM > 0 {
		room = min(room, int64(f.ExpertVRAM))
	}
	if experts > room {
		return f.named(allHere)
	}
	return f.named(allThere)
}

// check refuses flags of a rank that is not there.
func (f *rankFlags) check(onRank, onCard bool) error {
	if f.GPUPrefillThreshold < 1 {
		return fmt.Errorf("--gpu-prefill-threshold %d: want 1 or more", f.GPUPrefillThreshold)
	}
	s, err := f.named(allHere)
	switch {
	case err != nil || onRank:
		return err
	case onCard:
		return f.checkCard()
	case f.VRAM != 0 || f.ExpertVRAM != 0:
		return errors.New("--vram and --expert-vram: --device cpu has no memory of its own")
	case s.resident():
		return fmt.Errorf("%s: --device cpu has only %s", s, allHere)
	}
	return nil
}

// checkCard refuses what a GPU does not do.
func (f *rankFlags) checkCard() error {
	s, err := f.named(allThere)
	if err == nil && (s.prefill.Name() != allThere || s.decode.Name() != allThere) {
		err = fmt.Errorf("%s: --device cuda has only %s", s, allThere)
	}
	if err == nil && f.ExpertVRAM != 0 {
		err = errors.New("--expert-vram: --device cuda keeps all experts on the GPU")
	}
	return err
}

// loadOnRank puts the model on the rank, its routed experts where the strategies
// want them.
func (s *session) loadOnRank(f *engineFlags, o load.Options) error {
	lim, err := o.LimitsFor(s.cfg)
	if err != nil {
		return err
	}
	s.parts, s.place, err = placement.Load(s.sim, s.dev, s.cfg, s.set, o, placement.Options{
		Prefill: s.look.rank.prefill, Decode: s.look.rank.decode, Threshold: f.GPUPrefillThreshold, Budget: int64(f.ExpertVRAM),
		Reserve: int64(f.depth()) * stages.StateBytes(s.cfg, lim, nil),
	})
	return err
}

// openRank makes the rank's device, if there is one.
func (s *session) openRank(f *engineFlags) error {
	if !f.onRank() && !f.onCard() {
		return nil
	}
	if s.wrap != nil || s.src.synth != nil && !f.onCard() {
		return fmt.Errorf("--device %s: this command measures the processor", f.Device)
	}
	if f.onCard() {
		return nil // prepareSource did
	}
	var err error
	s.sim, err = hostsim.New(hostsim.Options{CPU: s.dev, Budget: int64(f.VRAM)})
	return err
}

// rank is the device that layers run on.
func (s *session) rank() device.Device {
	if s.card != nil {
		return s.card
	}
	if s.sim != nil {
		return s.sim
	}
	return s.dev
}

func (s *session) closeRank() {
	if s.sim != nil {
		s.sim.Close()
	}
	if s.card != nil {
		s.card.Close()
	}
	s.sim, s.place, s.card = nil, nil, nil
}
