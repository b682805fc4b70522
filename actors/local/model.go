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
	Source  *source.Source
	Config  *model.Config
	Gen     model.Generation
	Plan    *plan.Plan
	Host    *cpu.Device   // the processor
	Rates   hostsim.Rates // rates of a simulated device; zero: nothing takes time
	devices []Rank        // devices of the layers: one
	report  config.Reporter

	Weights    *weights.Set
	Parts      *load.Parts
	Placement  *placement.Placement   // experts outside the device of the layers, for the first rank that has some
	Placements []*placement.Placement // the same for each rank
	experts    *cache.Cache           // nil: experts are as the files hold them, or placed
	placed     *expert.Placed         // experts on their NUMA nodes
	partition  expert.Partition
	Matrices   *cache.Matrices // weights other than experts as integers; nil: as the files hold them
	native     *cache.Matrices // experts with a format of each tensor; nil: none
	Made       *synth.Loaded   // set for a model with random weights; owns parts
	copied     int64           // bytes of weights copied into memory of the device

	HeatSample  int                  // as in actors.Options
	Record      func(*routing.Batch) // likewise
	TimingShare float64              // likewise
	Heat        *heat.Map            // counts by which experts are placed; nil: none

	// Wrap, if set, wraps the CPU device for the stages. A benchmark uses it to time operators.
	Wrap func(*cpu.Device) load.Device
}

// Rank is a device that computes layers.
type Rank struct {
	load.Device
	GPU  GPU // set if the device is a GPU
	kind config.Kind
}

// Describe names the device.
func (r Rank) Describe() string {
	if r.GPU != nil {
		return r.GPU.Describe()
	}
	return r.Name()
}

// Rank returns the device that computes the layers.
func (s *Model) Rank() Rank { return s.devices[0] }

// OnGPU reports whether that device is a GPU, which takes experts in tiles.
func (s *Model) OnGPU() bool { return s.Plan.Options.Device == config.CUDA }

// lend closes the GPU, which is still empty, calls work and opens it again.
func (s *Model) lend(f config.Options, work func()) error {
	s.closeRanks()
	work()
	gpu, err := openGPU(&f)
	if err != nil {
		return err
	}
	s.devices = []Rank{{gpu, gpu, config.CUDA}}
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
	o := s.Plan.Load
	o.Progress = s.report.Progress
	if s.Source.Synth != nil {
		if err := s.make(o); err != nil {
			return err
		}
		return s.keepBlocks()
	}
	if s.Weights, err = s.Source.Open(); err == nil {
		err = s.integersOnly()
	}
	if err == nil {
		for _, line := range load.Converted(s.Config, s.Weights, o.Precision) {
			s.report.Notice("not multiplied as the files have it: " + line)
		}
		err = s.openIntegers(ctx, &o)
	}
	if err == nil {
		err = s.bind(o)
	}
	if err != nil {
		return fmt.Errorf("model %s: %w", s.Source.Name, err)
	}
	s.sealIntegers()
	return s.keepBlocks()
}

// operators returns the device as the stages see it.
func (s *Model) operators() load.Device {
	if s.Wrap != nil {
		return s.Wrap(s.Host)
	}
	return s.Rank().Device
}

// bind puts the weights of the files on the device. Routed experts that do not all fit go where the
// strategies say.
func (s *Model) bind(o load.Options) (err error) {
	if s.OnGPU() && s.experts != nil {
		o.Packed = s.packedExpert
	}
	if s.Plan.Beside() {
		o.Routed = s.Host
	}
	if s.Parts, err = load.Model(s.operators(), s.Config, s.Weights, o); err == nil {
		switch {
		case s.Plan.Beside():
			err = s.placeExpertsBeside()
		case s.OnGPU() && s.experts != nil:
			err = s.experts.Close() // all experts are on the GPU now
			s.experts = nil
		}
	}
	if err != nil && s.Plan.Beside() {
		return fmt.Errorf("%s: %w", s.Rank().Name(), err)
	}
	return err
}

// make puts a model with random weights on the device.
func (s *Model) make(o load.Options) (err error) {
	threads := s.Plan.Options.ThreadCount()
	switch dev := s.operators(); s.Plan.Options.Device {
	case config.CUDA:
		if s.Plan.Beside() {
			o.Routed = s.Host
		}
		s.Made, err = s.Source.Synth.LoadCard(dev, s.Host, o, s.hostFormat(), threads)
	case config.HostSim:
		s.Made, err = s.Source.Synth.LoadBeside(dev, s.Host, o, threads)
	default:
		s.Made, err = s.Source.Synth.Load(dev, o, threads)
	}
	if err != nil {
		return err
	}
	s.Parts = s.Made.Parts
	s.copied = s.Parts.WeightBytes
	if s.Plan.Beside() {
		return s.placeExpertsBeside()
	}
	return nil
}

// keepBlocks allocates room for KV blocks in host memory.
func (s *Model) keepBlocks() error {
	if s.Parts.Limits.HostBlocks == 0 {
		return nil
	}
	s.report.Progress("make room for KV blocks in host memory", 0, 0)
	for _, g := range s.Parts.Groups {
		refused, err := g.KeepBlocks(s.Host)
		if err != nil {
			return fmt.Errorf("--kv-ram: %w", err)
		}
		if refused != nil {
			s.report.Notice(fmt.Sprintf("--kv-ram: host memory is not pinned, copies of KV blocks are slower: %v", refused))
		}
	}
	return nil
}

// Close frees the model. It may be called again.
func (s *Model) Close() {
	s.keepServed()
	s.ClosePlacement()
	switch {
	case s.Made != nil:
		s.Made.Close()
	case s.Parts != nil:
		s.Parts.Close()
	}
	if s.experts != nil {
		s.experts.Close()
	}
	if s.placed != nil {
		s.placed.Close()
	}
	if s.native != nil {
		s.native.Close()
	}
	if s.Matrices != nil {
		s.Matrices.Close()
	}
	if s.Weights != nil {
		s.Weights.Close()
	}
	s.closeRanks()
	if s.Host != nil {
		s.Host.Close()
	}
	s.placed = nil
	s.Made, s.Parts, s.experts, s.Matrices, s.native, s.Weights, s.Host = nil, nil, nil, nil, nil, nil, nil
}

// closeRanks closes the devices that have their own memory.
func (s *Model) closeRanks() {
	for _, r := range s.devices {
		if r.kind.Own() {
			r.Close()
		}
	}
	s.devices = nil
}

// ranks returns the loaded model cut as the options say.
func (s *Model) ranks() ([]load.Rank, error) {
	cuts, err := s.Plan.Options.Cuts(s.Config)
	if err != nil {
		return nil, err
	}
	return s.Parts.Ranks(s.Rank().Device, cuts), nil
}

// Pipeline starts the actors over a loaded model.
func (s *Model) Pipeline(log zerolog.Logger) (*actors.Pipeline, error) {
	f := &s.Plan.Options
	ranks, err := s.ranks()
	if err != nil {
		return nil, err
	}
	chunk, share, pass := s.Plan.Steps.Chunk, f.PrefillShare, 0
	if lim := s.Parts.Limits; lim.Window < lim.Tokens {
		// All prompts share the cost of a pass's copies, so as many as there are take part. While answers are generated, a chunk bounds the time
		// of a pass.
		chunk = lim.Tokens - f.MaxSeqs
		share, pass = min(chunk, max(share, s.Plan.Steps.Chunk)), f.GPUPrefillThreshold
	}
	return actors.Start(ranks, actors.Options{
		Blueprint: actors.Blueprint{Pools: s.Plan.Pools, MicroBatches: f.MicroBatchCount()},
		Policy: actors.Policy{
			PrefillChunk: chunk, PrefillShare: share, PassRows: pass, PassShare: f.PassShare, MaxQueue: f.MaxQueue, NoReuse: !f.PrefixCache, Aging: f.Aging,
			ReuseAnswers: f.ReuseAnswers, Invariant: f.Invariant(),
		},
		Log: log, InlineBelow: f.InlineBelow, Partition: s.partition, Placements: s.Placements, HeatSample: s.HeatSample, Record: s.Record, TimingShare: s.TimingShare,
	})
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
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%s", s.Source.Name, s.Source.Dir, s.Plan.Load.Precision.Key(), s.Plan.Load.KVType)
	for _, name := range slices.Sorted(maps.Keys(s.Source.Seen)) {
		fmt.Fprintf(h, "\x00%s\x00%x", name, s.Source.Seen[name])
	}
	return [sha256.Size]byte(h.Sum(nil))
}
