package main

import (
	"errors"
	"fmt"

	"krater/actors/placement"
	"krater/kernels/device"
	"krater/kernels/hostsim"
	"krater/scheduler/dispatch"
	"krater/scheduler/planner"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/offload"
)

// rankFlags are those of a rank with memory of its own.
type rankFlags struct {
	VRAM                size   `name:"vram" help:"Memory of the rank; 0: no bound (hostsim)." default:"0"`
	ExpertVRAM          size   `name:"expert-vram" help:"Part of it for routed experts; 0: what the rest leaves." default:"0"`
	PrefillExpertVRAM   size   `name:"prefill-expert-vram" help:"Part of that for the prefill strategy, where decode has another; 0: what it asks for." default:"0"`
	PrefillStrategy     string `help:"Where a prompt's experts are computed: auto, or a strategy by name or number (1 cpu_only, 2 chunked, 3 active_only, 4 static_pin, 5 weighted_pin, 6 lru, 7 persistent, 8 layer_grouped:GROUPS, 9 hot_cached_static)." default:"auto"`
	DecodeStrategy      string `help:"The same of generated tokens." default:"auto"`
	ExpertDivisor       int    `help:"Another name: 0 is chunked, 1 persistent, N layer_grouped:N, for prompts and, unless another flag says otherwise, generated tokens." default:"-1"`
	CacheStrategy       string `help:"Another name: a strategy for generated tokens and, without --expert-divisor, for prompts." placeholder:"NAME"`
	NoGPUDecode         bool   `name:"no-gpu-decode" help:"Another name: --decode-strategy cpu_only."`
	PrefillPass         int    `help:"Prompt tokens that go through a group of layers before any goes on to the next, for layer_grouped; 0: four prefill chunks." default:"0"`
	GPUPrefillThreshold int    `name:"gpu-prefill-threshold" help:"Rows of a batch from which on it counts as a prompt." default:"300"`
}

// auto is the strategy that is chosen by what fits.
const auto = "auto"

// strategies say where a rank's experts are computed.
type strategies struct {
	prefill, decode dispatch.Strategy // as they were asked for
	outline         placement.Outline // what becomes of them
	budget, slot    int64             // bytes for experts, and of one
}

// The strategies that auto chooses between.
const (
	allThere = "persistent"
	allHere  = "cpu_only"
)

// here reports whether all experts are computed on the host.
func (s *strategies) here() bool { return s.prefill.Name() == allHere && s.decode.Name() == allHere }

// bytes is what the rank is asked for.
func (s *strategies) bytes() int64 { return int64(s.outline.Slots) * s.slot }

// streams reports whether prompts go through the model part by part.
func (s *strategies) streams() bool { return len(s.outline.Sides[dispatch.Prefill].Start.Parts) > 1 }

func (s *strategies) String() string {
	if s.outline.Sides[0].Strategy == nil {
		return fmt.Sprintf("prefill %s, decode %s", s.prefill.Name(), s.decode.Name())
	}
	return fmt.Sprintf("prefill %s, decode %s", s.outline.Sides[dispatch.Prefill].Name(), s.outline.Sides[dispatch.Decode].Name())
}

// onRank reports whether the layers are on a rank with memory of its own.
func (f *engineFlags) onRank() bool { return f.Device == "hostsim" }

// named gives the strategies that flags name; auto stands for the others.
func (f *rankFlags) named(autoPrefill, autoDecode string) (s strategies, err error) {
	prefill, decode, err := f.aliases()
	if err != nil {
		return s, err
	}
	for _, x := range []struct {
		flag, text, alias, instead string
		to                         *dispatch.Strategy
	}{{"prefill-strategy", f.PrefillStrategy, prefill, autoPrefill, &s.prefill}, {"decode-strategy", f.DecodeStrategy, decode, autoDecode, &s.decode}} {
		switch {
		case x.text != auto && x.alias != "" && x.text != x.alias:
			return s, fmt.Errorf("--%s %s: another flag says %s", x.flag, x.text, x.alias)
		case x.alias != "":
			x.text = x.alias
		case x.text == auto:
			x.text = x.instead
		}
		if *x.to, err = dispatch.Parse(x.text); err != nil {
			return s, fmt.Errorf("--%s: %w", x.flag, err)
		}
	}
	return s, nil
}

// wanted are the strategies that flags name, by name; "" for auto.
func (f *rankFlags) wanted() (prefill, decode string, err error) {
	prefill, decode, err = f.aliases()
	if err != nil {
		return "", "", err
	}
	for _, x := range []struct {
		flag, text string
		to         *string
	}{{"prefill-strategy", f.PrefillStrategy, &prefill}, {"decode-strategy", f.DecodeStrategy, &decode}} {
		if x.text != auto && x.text != "" {
			*x.to = x.text
		}
		if *x.to == "" {
			continue
		}
		s, err := dispatch.Parse(*x.to)
		if err != nil {
			return "", "", fmt.Errorf("--%s: %w", x.flag, err)
		}
		*x.to = s.Name()
	}
	return prefill, decode, nil
}

// aliases are the strategies that other flags stand for, "" where none does.
func (f *rankFlags) aliases() (prefill, decode string, err error) {
	if f.ExpertDivisor != -1 {
		s, err := dispatch.Divisor(f.ExpertDivisor)
		if err != nil {
			return "", "", fmt.Errorf("--expert-divisor %d: %w", f.ExpertDivisor, err)
		}
		prefill, decode = s.Name(), s.Name()
	}
	if f.CacheStrategy != "" {
		if _, err := dispatch.Parse(f.CacheStrategy); err != nil {
			return "", "", fmt.Errorf("--cache-strategy: %w", err)
		}
		decode = f.CacheStrategy
		if prefill == "" {
			prefill = decode
		}
	}
	if f.NoGPUDecode {
		decode = allHere
	}
	// What is said outright goes before a default of an alias's other half.
	if f.DecodeStrategy != auto && !f.NoGPUDecode && f.CacheStrategy == "" {
		decode = ""
	}
	if f.PrefillStrategy != auto && f.ExpertDivisor == -1 {
		prefill = ""
	}
	return prefill, decode, nil
}

// setupOf is a model's experts as strategies see them; slot is the size of one.
func setupOf(cfg *model.Config, slot, budget int64) dispatch.Setup {
	setup := dispatch.Setup{Experts: max(1, cfg.MoE.Experts), Bytes: max(1, slot), Budget: budget}
	for layer := range cfg.Layers {
		if cfg.MoELayer(layer) {
			setup.Layers = append(setup.Layers, int32(layer))
		}
	}
	return setup
}

// choose settles the strategies for a simulated rank whose other parts take so many bytes: auto
// keeps all experts there if they fit.
func (f *rankFlags) choose(cfg *model.Config, p load.Precision, rest int64) (s strategies, err error) {
	slot, err := offload.SlotBytes(cfg, p, nil)
	if err != nil {
		return s, err
	}
	setup := setupOf(cfg, slot, f.budget(rest))
	instead := allThere
	if int64(len(setup.Layers)*setup.Experts) > setup.Budget/setup.Bytes {
		instead = allHere
	}
	if s, err = f.named(instead, instead); err != nil {
		return s, err
	}
	return s, s.sketch(f, setup)
}

// sketch finds out what becomes of the strategies.
func (s *strategies) sketch(f *rankFlags, setup dispatch.Setup) (err error) {
	s.budget, s.slot = setup.Budget, setup.Bytes
	o := placement.Options{Prefill: s.prefill, Decode: s.decode, PrefillBudget: int64(f.PrefillExpertVRAM)}
	s.outline, err = o.Sketch(setup)
	return err
}

// passChunks is how many prefill chunks go through a group of layers together, where
// nobody says otherwise.
const passChunks = 4

// pass is the prompt tokens of a pass, 0: those of a chunk.
func (f *rankFlags) pass(l limits) int {
	if l.whole {
		return 0 // operators are looked at one by one
	}
	return f.PrefillPass
}

// budget is bytes for experts where the rest of what is on the rank takes so many.
func (f *rankFlags) budget(rest int64) int64 {
	room := int64(dispatch.Unlimited)
	if f.VRAM > 0 {
		room = max(0, int64(planner.RefuseShare*float64(f.VRAM))-rest)
	}
	if f.ExpertVRAM > 0 {
		room = min(room, int64(f.ExpertVRAM))
	}
	return room
}

// check refuses flags of a rank that is not there.
func (f *rankFlags) check(onRank, onCard bool) error {
	if f.GPUPrefillThreshold < 1 {
		return fmt.Errorf("--gpu-prefill-threshold %d: want 1 or more", f.GPUPrefillThreshold)
	}
	if f.PrefillPass < 0 || f.PrefillPass > 1<<24 {
		return fmt.Errorf("--prefill-pass %d: want 0 to %d", f.PrefillPass, 1<<24)
	}
	s, err := f.named(allHere, allHere)
	switch {
	case err != nil || onRank || onCard:
		return err
	case f.PrefillPass != 0:
		return errors.New("--prefill-pass: --device cpu has no groups of layers to take prompts through")
	case f.VRAM != 0 || f.ExpertVRAM != 0 || f.PrefillExpertVRAM != 0:
		return errors.New("--vram and --expert-vram: --device cpu has no memory of its own")
	case !s.here():
		return fmt.Errorf("%s: --device cpu has only %s", &s, allHere)
	}
	return nil
}

// loadOnRank puts the model on the rank, its routed experts where the strategies
// want them.
func (s *session) loadOnRank(f *engineFlags, o load.Options, r reporter) error {
	o.Routed = s.dev
	var err error
	if s.parts, err = load.Model(s.rankDevice(), s.cfg, s.set, o); err == nil {
		err = s.placeOnRank(f, r)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.rank().Name(), err)
	}
	return nil
}

// placeOnRank places the routed experts of loaded parts.
func (s *session) placeOnRank(f *engineFlags, r reporter) error {
	rank := &s.look.rank
	var err error
	s.place, err = placement.New(s.rank(), s.dev, s.parts, placement.Options{
		Prefill: rank.prefill, Decode: rank.decode, Threshold: f.GPUPrefillThreshold,
		Budget: max(1, rank.budget), PrefillBudget: int64(f.PrefillExpertVRAM), Heat: placedHeat(s.heat),
		Progress: func(done, all int64) { r.progress("place experts", done, all) },
	})
	if err != nil {
		return err
	}
	for _, line := range placement.TellFalls(s.place.Falls()) {
		r.notice(line)
	}
	return nil
}

// whereExperts tells where a rank's experts are computed.
func (s *session) whereExperts() string {
	n, bytes := s.place.Slots()
	return fmt.Sprintf("prefill %s, decode %s, %d experts of %d bytes on %s",
		s.place.Strategy(dispatch.Prefill).Name(), s.place.Strategy(dispatch.Decode).Name(), n, bytes/max(1, int64(n)), s.rank().Name())
}

// openRank makes the rank's device, if there is one.
func (s *session) openRank(f *engineFlags) error {
	if !f.onRank() && !f.onCard() {
		return nil
	}
	if s.wrap != nil {
		return fmt.Errorf("--device %s: this command measures the processor", f.Device)
	}
	if f.onCard() {
		return nil // prepareSource did
	}
	var err error
	s.sim, err = hostsim.New(hostsim.Options{CPU: s.dev, Budget: int64(f.VRAM), Rates: s.rates})
	return err
}

// rank is the device that layers run on.
func (s *session) rank() device.Device {
	if d := s.rankDevice(); d != nil {
		return d
	}
	return s.dev
}

// rankDevice is the rank's device, nil where layers run on the processor.
func (s *session) rankDevice() load.Device {
	switch {
	case s.card != nil:
		return s.card
	case s.sim != nil:
		return s.sim
	}
	return nil
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
