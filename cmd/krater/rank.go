package main

import (
	"errors"
	"fmt"

	"krater/actors/placement"
	"krater/kernels/device"
	"krater/kernels/hostsim"
	"krater/scheduler/dispatch"
	"krater/stages"
	"krater/stages/load"
	"krater/stages/weights/quant"
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

// strategies parses both.
func (f *rankFlags) strategies() (prefill, decode dispatch.Strategy, err error) {
	parse := func(flag, text string) dispatch.Strategy {
		if text == auto {
			text = "persistent"
		}
		s, e := dispatch.Parse(text)
		if e != nil && err == nil {
			err = fmt.Errorf("--%s: %w", flag, e)
		}
		return s
	}
	prefill, decode = parse("prefill-strategy", f.PrefillStrategy), parse("decode-strategy", f.DecodeStrategy)
	return prefill, decode, err
}

// check refuses flags of a rank that is not there.
func (f *rankFlags) check(device string) error {
	if f.GPUPrefillThreshold < 1 {
		return fmt.Errorf("--gpu-prefill-threshold %d: want 1 or more", f.GPUPrefillThreshold)
	}
	if _, _, err := f.strategies(); err != nil {
		return err
	}
	if device != "cpu" {
		return nil
	}
	if f.VRAM != 0 || f.ExpertVRAM != 0 {
		return errors.New("--vram and --expert-vram: --device cpu has no memory of its own")
	}
	for flag, text := range map[string]string{"prefill-strategy": f.PrefillStrategy, "decode-strategy": f.DecodeStrategy} {
		if s, _ := dispatch.Parse(text); text != auto && s.Name() != "cpu_only" {
			return fmt.Errorf("--%s %s: --device cpu has only cpu_only", flag, text)
		}
	}
	return nil
}

// loadOnRank puts the model on a simulated device beside the processor, its routed
// experts where the strategies want them.
func (s *session) loadOnRank(f *engineFlags, o load.Options) error {
	a, b, err := f.strategies()
	if err != nil {
		return err
	}
	lim, err := o.Limits.For(s.cfg)
	if err != nil {
		return err
	}
	if o.Precision.Integer() {
		format, err := quant.Spec{Bits: 8, Group: o.Precision.Group}.Format(1, s.cfg.Hidden)
		if err != nil {
			return err
		}
		lim.QuantGroup = format.Group
	}
	p := placement.Options{
		Prefill: a, Decode: b, Threshold: f.GPUPrefillThreshold, Budget: int64(f.ExpertVRAM),
		Reserve: int64(f.depth()) * stages.StateBytes(s.cfg, lim),
	}
	s.parts, s.place, err = placement.Load(s.sim, s.dev, s.cfg, s.set, o, p)
	if !errors.Is(err, dispatch.ErrNoRoom) || f.PrefillStrategy != auto && f.DecodeStrategy != auto {
		return err
	}
	// What does not fit is computed where it lies.
	beside, err := dispatch.Parse("cpu_only")
	if err != nil {
		return err
	}
	if f.PrefillStrategy == auto {
		p.Prefill = beside
	}
	if f.DecodeStrategy == auto {
		p.Decode = beside
	}
	s.parts, s.place, err = placement.Load(s.sim, s.dev, s.cfg, s.set, o, p)
	return err
}

// openRank makes the rank's device, if there is one.
func (s *session) openRank(f *engineFlags) error {
	if f.Device != "hostsim" {
		return nil
	}
	if s.wrap != nil || s.src.synth != nil {
		return errors.New("--device hostsim: this command measures the processor")
	}
	var err error
	s.sim, err = hostsim.New(hostsim.Options{CPU: s.dev, Budget: int64(f.VRAM)})
	return err
}

// rank is the device that layers run on.
func (s *session) rank() device.Device {
	if s.sim != nil {
		return s.sim
	}
	return s.dev
}

func (s *session) closeRank() {
	if s.sim != nil {
		s.sim.Close()
	}
	s.sim, s.place = nil, nil
}
