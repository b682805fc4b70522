package main

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
	"krater/actors/placement"
	"krater/cmd/krater/console"
	"krater/kernels/cpu"
	"krater/kernels/hostsim"
	"krater/scheduler"
	"krater/scheduler/heat"
	"krater/scheduler/planner/rates"
	"krater/stages/expert"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/synth"
	"krater/stages/weights"
	"krater/stages/weights/cache"
)

// session is a model loaded on a device.
type session struct {
	src   *source
	cfg   *model.Config
	gen   model.Generation
	dev   *cpu.Device
	set   *weights.Set
	parts *load.Parts
	look  *outlook
	sim   *hostsim.Device      // the rank's, nil: the processor or card
	rates hostsim.Rates        // of it; zero: nothing takes time
	card  card                 // the GPU that the layers are on, if they are
	place *placement.Placement // of its experts

	experts   *cache.Cache   // nil: as the files hold them, or placed
	placed    *expert.Placed // on their nodes
	partition expert.Partition
	matrices  *cache.Matrices // the same of other weights
	made      *synth.Loaded   // a synthetic model: owns parts
	copied    int64           // bytes of weights read into memory of the device

	heatSample int         // as in actors.Options
	lapShare   float64     // likewise
	heat       *heat.Map   // of --heat-file, as it was read; nil: none
	keeper     *heatKeeper // of that file; nil: none

	// wrap, if set, is what stands between the stages and the device.
	wrap    func(*cpu.Device) load.Device
	wrapped load.Device
}

// newSession loads a model for the flags, unless the memory plan does not fit.
func newSession(e *console.Env, dir string, f *engineFlags, l limits) (*session, error) {
	src, err := openSource(dir)
	if err != nil {
		return nil, err
	}
	return newSourceSession(e, src, f, l)
}

// newSourceSession is newSession of a model that was found.
func newSourceSession(e *console.Env, src *source, f *engineFlags, l limits) (*session, error) {
	s, err := prepareSource(e, src, f, l)
	if err != nil {
		return nil, err
	}
	if !s.look.plan.Fits() {
		e.Say("going on with --force:", s.look.plan.Check())
	}
	if s.look.foreseen != nil && s.look.foreseen.line != "" {
		e.Say(s.look.foreseen.line)
	}
	if err := s.load(context.Background(), f, reportOn(e)); err != nil {
		return nil, err
	}
	return s, nil
}

// prepare finds a model and plans its memory. A plan that does not fit is an
// error unless forced.
func prepare(e *console.Env, dir string, f *engineFlags, l limits) (*session, error) {
	src, err := openSource(dir)
	if err != nil {
		return nil, err
	}
	return prepareSource(e, src, f, l)
}

// prepareSource plans the memory of a model that was found.
func prepareSource(e *console.Env, src *source, f *engineFlags, l limits) (*session, error) {
	s := &session{src: src}
	var err error
	if s.cfg, s.gen, err = src.config(); err != nil {
		return nil, err
	}
	if err = src.check(s.cfg, l.served); err != nil {
		return nil, err
	}
	if s.card, err = f.settle(e.Err); err != nil {
		return nil, err
	}
	if s.card != nil {
		l.card, l.cardName, l.cardBytes = s.card.Memory().Total, s.card.Describe(), s.card.Capacity()
		apart := func(work func()) { err = s.lend(e, f, work) }
		l.measure = func(bits int) *rates.File { return f.measureOnce(e, l.cardName, l.cardBytes, bits, apart) }
	}
	look, lookErr := src.look(s.cfg, f, l, e.Here())
	if s.look = look; err == nil {
		err = lookErr
	}
	if err == nil {
		err = s.look.refusal(f.Force)
	}
	if err != nil {
		s.closeRank()
		return nil, fmt.Errorf("model %s: %w", src.name, err)
	}
	return s, nil
}

// lend has work use the card, on which nothing is yet, as if nobody had it open.
func (s *session) lend(e *console.Env, f *engineFlags, work func()) (err error) {
	s.closeRank()
	work()
	if s.card, err = f.settle(e.Err); err == nil && s.card == nil {
		err = fmt.Errorf("--device cuda: %w any more", errNoCard)
	}
	return err
}

// load puts a prepared model on its device. After an error the session is
// closed.
func (s *session) load(ctx context.Context, f *engineFlags, r reporter) error {
	defer r.end()
	var err error
	if err = s.openDevice(f); err != nil {
		return err
	}
	o := s.look.options
	o.Progress = r.progress
	if err := s.openRank(f); err != nil {
		s.Close()
		return err
	}
	if s.src.synth != nil {
		if err := s.make(f, o, r); err != nil {
			return err
		}
		return s.keepBlocks(r)
	}
	if s.set, err = s.src.open(); err == nil {
		err = s.integersOnly(f, r)
	}
	if err == nil {
		err = s.openIntegers(ctx, f, &o, r)
	}
	switch {
	case err != nil:
	case s.card != nil:
		err = s.loadOnCard(f, o, r)
	case s.sim != nil:
		err = s.loadOnRank(f, o, r)
	default:
		s.parts, err = load.Model(s.operators(), s.cfg, s.set, o)
	}
	if err != nil {
		s.Close()
		return fmt.Errorf("model %s: %w", s.src.name, err)
	}
	s.sealIntegers(r)
	return s.keepBlocks(r)
}

// keepBlocks makes room for KV blocks in host memory. After an error the session is closed.
func (s *session) keepBlocks(r reporter) error {
	if s.parts.Limits.HostBlocks == 0 {
		return nil
	}
	r.progress("make room for KV blocks in host memory", 0, 0)
	for _, g := range s.parts.Groups {
		refused, err := g.KeepBlocks(s.rank(), s.dev)
		if err != nil {
			s.Close()
			return fmt.Errorf("--kv-ram: %w", err)
		}
		if refused != nil {
			r.notice(fmt.Sprintf("--kv-ram: host memory is not pinned, copies of KV blocks are slower: %v", refused))
		}
	}
	return nil
}

// make puts a synthetic model on the device. After an error the session is closed.
func (s *session) make(f *engineFlags, o load.Options, r reporter) error {
	var err error
	switch {
	case s.card != nil:
		if !s.look.resident {
			o.Routed = s.dev
		}
		s.made, err = s.src.synth.LoadCard(s.card, s.dev, o, s.hostSpec(), f.threads())
	case s.sim != nil:
		s.made, err = s.src.synth.LoadBeside(s.sim, s.dev, o, f.threads())
	default:
		s.made, err = s.src.synth.Load(s.operators(), o, f.threads())
	}
	if err != nil {
		s.Close()
		return err
	}
	s.parts = s.made.Parts
	s.copied = s.parts.WeightBytes
	if s.sim != nil || s.card != nil && !s.look.resident {
		if err = s.placeOnRank(f, r); err != nil {
			s.Close()
		}
	}
	return err
}

// operators is the device as the stages see it.
func (s *session) operators() load.Device {
	if s.wrapped == nil {
		s.wrapped = s.dev
		if s.wrap != nil {
			s.wrapped = s.wrap(s.dev)
		}
	}
	return s.wrapped
}

// Close frees the model. It may be called again.
func (s *session) Close() {
	if s.place != nil {
		s.place.Close()
	}
	switch {
	case s.made != nil:
		s.made.Close()
	case s.parts != nil:
		s.parts.Close()
	}
	if s.experts != nil {
		s.experts.Close()
	}
	if s.placed != nil {
		s.placed.Close()
	}
	if s.matrices != nil {
		s.matrices.Close()
	}
	if s.set != nil {
		s.set.Close()
	}
	s.closeRank()
	if s.dev != nil {
		s.dev.Close()
	}
	s.placed = nil
	s.made, s.parts, s.experts, s.matrices, s.set, s.dev = nil, nil, nil, nil, nil, nil
}

// pipeline starts the actors over a loaded model.
func (s *session) pipeline(f *engineFlags, log zerolog.Logger) (*actors.Pipeline, error) {
	groups, err := actors.Cut(len(s.cfg.Layers), f.LayerGroups)
	if err != nil {
		return nil, err
	}
	chunk, share := f.PrefillChunk, f.PrefillShare
	if lim := s.parts.Limits; lim.Window < lim.Tokens {
		// What a pass copies is paid by all its prompts, so as many as there are go along.
		chunk, share = lim.Tokens-f.MaxSeqs, lim.Tokens-f.MaxSeqs
	}
	return actors.Start(s.rank(), s.parts, actors.Options{
		Blueprint: actors.Blueprint{Groups: groups, Pools: s.look.pools, MicroBatches: f.microBatches()},
		Scheduler: scheduler.Config{
			PrefillChunk: chunk, PrefillShare: share, MaxQueue: f.MaxQueue, NoReuse: !f.PrefixCache, Aging: f.Aging,
		},
		Log: log, InlineBelow: f.InlineBelow, Partition: s.partition, Placement: s.place, HeatSample: s.heatSample, LapShare: s.lapShare,
		ReuseAnswers: f.ReuseAnswers, Invariant: f.BatchInvariant,
	})
}

// gateway opens a pipeline to requests.
func (s *session) gateway(f *engineFlags, p *actors.Pipeline, id string) (*actors.Gateway, error) {
	tok, config, err := s.src.tokenizer()
	if err != nil {
		return nil, err
	}
	template, err := s.src.template(tok, config)
	if err != nil {
		return nil, err
	}
	if id == "" {
		id = s.src.name
	}
	return actors.NewGateway(p, actors.GatewayOptions{
		ID: id, Created: time.Now(), Tokenizer: tok, Template: template, EOS: s.src.stopIDs(s.cfg, s.gen, tok), Vocab: s.cfg.Vocab,
		Identity: s.identity(), ShareKV: f.SharePrefixes,
		Defaults: engine.Sampling{
			Temperature: s.gen.Temperature, TopP: s.gen.TopP, TopK: s.gen.TopK, MinP: s.gen.MinP, RepetitionPenalty: s.gen.RepetitionPenalty,
		},
	}), nil
}

// identity is the hash of what decides, beside its tokens, what a prompt leaves in the KV
// cache: the model and how its parts are kept, tokenizer and template, as far as they were read.
func (s *session) identity() [sha256.Size]byte {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00%+v\x00%s", s.src.name, s.src.dir, s.look.options.Precision, s.look.options.KVType)
	for _, name := range slices.Sorted(maps.Keys(s.src.seen)) {
		fmt.Fprintf(h, "\x00%s\x00%x", name, s.src.seen[name])
	}
	return [sha256.Size]byte(h.Sum(nil))
}
