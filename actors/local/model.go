package local

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/engine"
	"krater/actors/local/config"
	"krater/actors/local/plan"
	"krater/actors/placement"
	"krater/kernels/cpu"
	"krater/kernels/hostsim"
	"krater/scheduler/heat"
	"krater/scheduler/routing"
	"krater/stages/expert"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/source"
	"krater/stages/synth"
	"krater/stages/weights"
	"krater/stages/weights/cache"
)

// Model is a model on its devices. Prepare plans it, Load loads it.
type Model struct {
	Source *source.Source
	Config *model.Config
	Gen    model.Generation
	Plan   *plan.Plan
	Host   *cpu.Device   // the processor
	Rates  hostsim.Rates // rates of simulated devices; zero: nothing takes time
	// HelperRates are the rates of a simulated helper; nil: Rates.
	HelperRates *hostsim.Rates
	Ranks       []*Part // in the order of their layers
	Helper      *Helper // device that computes experts for the only rank; nil: there is none
	report      config.Reporter
	config      Config // as Prepare took it

	Weights   *weights.Set
	Parts     *load.Parts       // of the first rank
	experts   *cache.Cache      // nil: experts are as the files hold them, or placed
	expertsID cache.Fingerprint // of experts; zero: they are from no cache
	placed    *expert.Placed    // experts on their NUMA nodes
	partition expert.Partition
	Matrices  *cache.Matrices   // weights other than experts as integers, of the device that was loaded last; nil: as the files hold them
	native    *cache.Matrices   // experts with a format of each tensor; nil: none
	stores    []*cache.Matrices // all that are open
	copied    int64             // bytes of weights copied into memory of the CPU

	HeatSample  int                  // as in actors.Options
	Record      func(*routing.Batch) // likewise
	TimingShare float64              // likewise
	Heat        *heat.Map            // counts by which experts are placed; nil: none

	// Wrap, if set, wraps the CPU device for the stages. A benchmark uses it to time operators.
	Wrap func(*cpu.Device) load.Device
}

// Rank returns the device of the first rank.
func (s *Model) Rank() Rank { return s.Ranks[0].Rank }

// Made returns what was made of a model with random weights on the first rank; nil for other models.
func (s *Model) Made() *synth.Loaded { return s.Ranks[0].made }

// Placement returns where the experts of the first rank are that has some outside its device; nil: there is none.
func (s *Model) Placement() *placement.Placement {
	for _, p := range s.Ranks {
		if p.Placement != nil {
			return p.Placement
		}
	}
	return nil
}

// OnGPU reports whether a rank is on a GPU.
func (s *Model) OnGPU() bool { return slices.ContainsFunc(s.Ranks, (*Part).onGPU) }

// lend closes the GPUs, which are still empty, calls work and opens them again.
func (s *Model) lend(f *config.Options, work func()) error {
	for _, p := range s.Ranks {
		p.closeDevice()
	}
	work()
	for i, p := range s.Ranks {
		if !p.onGPU() {
			continue
		}
		var err error
		if p.Rank, err = openRank(f, i, p.place); err != nil {
			return err
		}
	}
	return nil
}

// Load puts a prepared model on its devices. After an error, the model is closed.
func (s *Model) Load(ctx context.Context) (err error) {
	defer s.report.End()
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err := s.openDevices(); err != nil {
		return err
	}
	if s.Source.Synth == nil {
		if err := s.open(ctx); err != nil {
			return fmt.Errorf("model %s: %w", s.Source.Name, err)
		}
	}
	if err := s.fill(ctx); err != nil {
		return err
	}
	s.seal(s.native)
	s.Parts = s.Ranks[0].Parts
	if s.experts != nil && !slices.ContainsFunc(s.Ranks, func(p *Part) bool { return !p.onGPU() || p.Plan.Beside() }) {
		err := s.experts.Close() // all experts are on GPUs now
		s.experts = nil
		return err
	}
	return nil
}

// open opens the weights of the files, and the caches of converted experts.
func (s *Model) open(ctx context.Context) (err error) {
	if s.Weights, err = s.Source.Open(); err == nil {
		err = s.integersOnly()
	}
	if err != nil {
		return err
	}
	told := map[string]bool{}
	for _, p := range s.Ranks {
		for _, line := range load.Converted(s.Config, s.Weights, p.Plan.Load.Precision) {
			if !told[line] {
				s.report.Notice("not multiplied as the files have it: " + line)
			}
			told[line] = true
		}
	}
	return s.openExperts(ctx)
}

// fill puts the layers of every rank on its device. Ranks of one device follow each other, because two devices cannot convert
// matrices into one file at the same time.
func (s *Model) fill(ctx context.Context) error {
	done := make([]bool, len(s.Ranks))
	for i, p := range s.Ranks {
		if done[i] {
			continue
		}
		var store load.Store
		if s.Source.Synth == nil {
			var err error
			if store, err = s.openStore(ctx, p); err != nil {
				return fmt.Errorf("model %s: %w", s.Source.Name, err)
			}
		}
		for j := i; j < len(s.Ranks); j++ {
			if q := s.Ranks[j]; q.Device == p.Device {
				done[j] = true
				if err := s.load(q, store); err != nil {
					return err
				}
			}
		}
		if store != nil {
			s.seal(s.Matrices)
		}
	}
	return nil
}

// load puts the layers of a rank on its device.
func (s *Model) load(p *Part, store load.Store) (err error) {
	o := p.Plan.Load
	o.Progress, o.Store = s.report.Progress, store
	dev := p.Device
	if s.Wrap != nil {
		dev = s.Wrap(s.Host)
	}
	if s.Source.Synth != nil {
		err = s.make(p, dev, o)
	} else if err = s.bind(p, dev, o); err != nil {
		err = fmt.Errorf("model %s: %w", s.Source.Name, err)
	}
	if err != nil {
		return err
	}
	return s.keepBlocks(p)
}

// Close frees the model. It may be called again.
func (s *Model) Close() {
	s.keepServed()
	s.Helper.unload()
	for _, p := range s.Ranks {
		p.unload()
	}
	if s.experts != nil {
		s.experts.Close()
	}
	if s.placed != nil {
		s.placed.Close()
	}
	for _, m := range s.stores {
		m.Close()
	}
	if s.Weights != nil {
		s.Weights.Close()
	}
	for _, p := range s.Ranks {
		p.closeDevice()
	}
	s.Helper.closeDevice()
	if s.Host != nil {
		s.Host.Close()
	}
	s.Ranks, s.Helper, s.placed, s.stores = nil, nil, nil, nil
	s.Parts, s.experts, s.Matrices, s.native, s.Weights, s.Host = nil, nil, nil, nil, nil, nil
}

// ranks returns the loaded parts as a pipeline takes them.
func (s *Model) ranks() (list []load.Rank, placed []*placement.Placement) {
	for _, p := range s.Ranks {
		list = append(list, load.Rank{Device: p.Device, Parts: p.Parts})
		placed = append(placed, p.Placement)
	}
	return list, placed
}

// Pipeline starts the actors over a loaded model.
func (s *Model) Pipeline(log zerolog.Logger) (*actors.Pipeline, error) {
	ranks, o := s.pipeline(log)
	return actors.Start(ranks, o)
}

// pipeline returns the loaded parts and the options of a pipeline over them.
func (s *Model) pipeline(log zerolog.Logger) ([]load.Rank, actors.Options) {
	f := &s.Plan.Options
	ranks, placements := s.ranks()
	help := s.Helper.help(s)
	chunk, share, pass := s.Plan.Steps.Chunk, f.PrefillShare, 0
	if lim := s.Parts.Limits; lim.Window < lim.Tokens {
		// All prompts share the cost of a pass's copies, so as many as there are take part. While answers are generated, a chunk bounds the time
		// of a pass.
		chunk = lim.Tokens - f.MaxSeqs
		share, pass = min(chunk, max(share, s.Plan.Steps.Chunk)), f.GPUPrefillThreshold
	}
	return ranks, actors.Options{
		Blueprint: actors.Blueprint{Pools: s.Plan.Pools, MicroBatches: f.MicroBatchCount()},
		Policy: actors.Policy{
			PrefillChunk: chunk, PrefillShare: share, PassRows: pass, PassShare: f.PassShare, MaxQueue: f.MaxQueue, NoReuse: !f.PrefixCache, Aging: f.Aging,
			ReuseAnswers: f.ReuseAnswers, Invariant: f.Invariant(),
		},
		Log: log, Turn: s.turn, InlineBelow: f.InlineBelow, Partition: s.partition, Placements: placements, Help: help, HeatSample: s.HeatSample, Record: s.Record, TimingShare: s.TimingShare,
	}
}

// turn implements actors.Options.Turn.
func (s *Model) turn(here bool) {
	if here {
		s.Host.Ready()
	} else {
		s.Host.Rest()
	}
}

// Gateway opens a pipeline to requests.
func (s *Model) Gateway(p *actors.Pipeline, id string) (*actors.Gateway, error) {
	tok, config, err := s.Source.Tokenizer()
	if err != nil {
		return nil, err
	}
	template, err := s.Source.Template(tok, config)
	if err != nil {
		return nil, err
	}
	if id == "" {
		id = s.Source.Name
	}
	return actors.NewGateway(p, actors.GatewayOptions{
		ID: id, Created: time.Now(), Tokenizer: tok, Template: template, EOS: s.Source.StopIDs(s.Config, s.Gen, tok), Vocab: s.Config.Vocab,
		Identity: s.Identity(), ShareKV: s.Plan.Options.SharePrefixes,
		Defaults: engine.Sampling{
			Temperature: s.Gen.Temperature, TopP: s.Gen.TopP, TopK: s.Gen.TopK, MinP: s.Gen.MinP, RepetitionPenalty: s.Gen.RepetitionPenalty,
		},
	}), nil
}

// Identity returns the hash of everything except tokens that determines a prompt's KV cache: the
// model, the precision of its parts, and the tokenizer and template if they were read.
func (s *Model) Identity() [sha256.Size]byte {
	h := sha256.New()
	ranks := s.Plan.Each()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%s", s.Source.Name, s.Source.Dir, ranks[0].Load.Precision.Key(), s.Plan.Load.KVType)
	for _, p := range ranks[1:] { // the cache of some of the layers is another one on another device
		fmt.Fprintf(h, "\x00%d\x00%s", p.Load.First, p.Load.Precision.Key())
	}
	for _, name := range slices.Sorted(maps.Keys(s.Source.Seen)) {
		fmt.Fprintf(h, "\x00%s\x00%x", name, s.Source.Seen[name])
	}
	return [sha256.Size]byte(h.Sum(nil))
}
