package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/rs/zerolog"

	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/stages/load"
	"krater/stages/weights/cache"
	"krater/stages/weights/quant"
)

// cacheFlags say where integer weights are kept between starts.
type cacheFlags struct {
	CacheDir  string `help:"Folder for converted weights; default: .krater_cache in the model's folder, else the user's cache folder." type:"path" placeholder:"DIR"`
	CacheLoad string `help:"How converted weights come into memory: ${enum}. auto maps them on a machine with one memory node and copies elsewhere." enum:"auto,map,copy" default:"auto"`
}

// reporter tells people how a load goes on.
type reporter struct {
	notice   func(line string) // something to look at
	info     func(line string)
	progress func(phase string, done, all int64) // bytes
	end      func()                              // of the progress
}

// reportTo logs what a load has to tell.
func reportTo(log zerolog.Logger, p *term.Progress) reporter {
	return reporter{
		notice:   func(line string) { log.Warn().Msg(line) },
		info:     func(line string) { log.Info().Msg(line) },
		progress: func(phase string, done, all int64) { p.Set(phase, term.Bytes, done, all) },
		end:      p.End,
	}
}

// reportOn writes what a load has to tell for people.
func reportOn(e *console.Env) reporter {
	r := reportTo(zerolog.Nop(), e.Shown())
	r.notice = func(line string) { e.Say(line) }
	r.info = r.notice
	return r
}

// logProgress logs how far long work is.
func logProgress(log zerolog.Logger) func(term.State) {
	return func(s term.State) {
		l := log.Info().Str("phase", s.Phase).Float64("share", math.Round(1000*s.Share())/1000).Str("done", s.Amounts())
		if rate := s.Rate(); rate != "" {
			l = l.Str("rate", rate)
		}
		if left, ok := s.Left(); ok {
			l = l.Str("left", term.Duration(left))
		}
		l.Msg("loading")
	}
}

// cacheOptions describes the cache of a prepared session's experts; its weights
// must be open.
func (s *session) cacheOptions(f *engineFlags, method cache.Method, r reporter) (cache.Options, error) {
	config, err := s.src.read("config.json", false)
	if err != nil {
		return cache.Options{}, err
	}
	print, err := cache.FingerprintOf(config, s.cfg, s.set)
	if err != nil {
		return cache.Options{}, err
	}
	p := s.look.options.Precision
	spec := quant.Spec{Bits: p.Experts, Group: p.Group}
	if spec.Bits == 0 {
		spec.Bits = 4 // none is wanted, others are looked for
	}
	plan, err := cache.NewPlan(s.cfg, spec, method, print)
	if err != nil {
		return cache.Options{}, err
	}
	return cache.Options{
		Plan: plan, Model: s.src.dir, Dir: f.CacheDir, Threads: f.threads(), Notice: r.notice, Progress: r.progress,
		Source: &cache.Weights{Config: s.cfg, Set: s.set, Spec: spec, Method: method, Threads: f.threads()},
	}, nil
}

// hostSpec is how the host keeps experts that it computes beside a card; nil: it computes none,
// or has them as the files hold them.
func (s *session) hostSpec() *quant.Spec {
	if s.look.resident || !s.look.rank.host() || s.look.hostBits == 0 {
		return nil
	}
	return &quant.Spec{Bits: s.look.hostBits, Group: s.look.options.Precision.Group}
}

// cardFormats has a cache hold what a card takes, and what the host does beside it.
func (s *session) cardFormats(c *cache.Options) error {
	host := c.Plan
	c.Plan.Format = cache.FormatA
	spec := s.hostSpec()
	if spec == nil {
		return nil
	}
	if *spec != host.Spec {
		var err error
		if host, err = cache.NewPlan(s.cfg, *spec, host.Method, host.Source); err != nil {
			return err
		}
	}
	c.Also = []cache.Plan{host}
	return nil
}

// integersOnly refuses experts that cannot be had: a folder that has them only as integers (krater
// synth) has nothing to make others from.
func (s *session) integersOnly(f *engineFlags, r reporter) error {
	cfg, p := s.cfg, s.look.options.Precision
	layer := 0
	for layer < len(cfg.Layers) && !cfg.MoELayer(layer) {
		layer++
	}
	if layer == len(cfg.Layers) {
		return nil
	}
	if _, ok := s.set.Tensor(cfg.ExpertNames(layer, 0).Gate); ok {
		return nil
	}
	c, err := s.cacheOptions(f, cache.Search, r)
	if err != nil {
		return err
	}
	if p.Experts != 0 && s.card != nil {
		if err := s.cardFormats(&c); err != nil {
			return err
		}
	}
	kept, err := c.Kept()
	if err != nil || len(kept) == 0 {
		return err // the load says which tensors are missing
	}
	for _, want := range append([]cache.Plan{c.Plan}, c.Also...) {
		is := func(k cache.Plan) bool { return k.FileName() == want.FileName() }
		if p.Experts != 0 && slices.ContainsFunc(kept, is) {
			continue
		}
		what := "experts as their files hold them"
		if p.Experts != 0 {
			what = expertsOf(want)
		}
		var has, flags []string
		for _, k := range kept {
			has = append(has, k.FileName())
			if (k.Format == cache.FormatA) == (s.card != nil) {
				flags = append(flags, expertFlags(k))
			}
		}
		err := fmt.Errorf("%s: they cannot be made, the model has its experts only as integers (%s)", what, strings.Join(has, ", "))
		if len(flags) > 0 {
			err = fmt.Errorf("%w: start with %s", err, strings.Join(flags, ", or "))
		}
		return err
	}
	return nil
}

// expertsOf is what a file of experts holds, for people.
func expertsOf(p cache.Plan) string {
	device, group := "the processor", "one scale a row"
	if p.Format == cache.FormatA {
		device = "a GPU"
	}
	if p.Spec.Group != 0 {
		group = fmt.Sprintf("groups of %d", p.Spec.Group)
	}
	return fmt.Sprintf("experts of %d bits for %s, %s", p.Spec.Bits, device, group)
}

// expertFlags are the flags with which a file of experts is used.
func expertFlags(p cache.Plan) string {
	device, group := "cpu", "row"
	if p.Format == cache.FormatA {
		device = "gpu"
	}
	if p.Spec.Group != 0 {
		group = fmt.Sprint(p.Spec.Group)
	}
	return fmt.Sprintf("--%s-expert-bits %d --group-size %s", device, p.Spec.Bits, group)
}

// copies reports whether converted weights are read into memory of the device.
func (s *session) copies(f *engineFlags) bool {
	several := len(s.look.machine.Nodes) > 1 || len(s.look.nodes) > 1
	return f.CacheLoad == "copy" || f.CacheLoad == "auto" && several
}

// openIntegers puts the weights that are kept as integers on the device: from
// their caches, which are made first where there are no good ones. Those of a
// second kind are made while the model is loaded; see sealIntegers.
func (s *session) openIntegers(ctx context.Context, f *engineFlags, o *load.Options, r reporter) error {
	var experts cache.Fingerprint
	if o.Precision.Experts != 0 {
		c, err := s.cacheOptions(f, cache.Search, r)
		if err != nil {
			return err
		}
		if s.card != nil {
			if err := s.cardFormats(&c); err != nil {
				return err
			}
		}
		c.Copy = s.card == nil && s.copies(f) && !s.look.places() // what is brought to nodes is copied there
		if s.experts, err = cache.Open(ctx, s.dev, c); err != nil {
			return fmt.Errorf("experts in %d bits: %w", o.Precision.Experts, err)
		}
		if c.Copy {
			s.copied += s.experts.Bytes
		}
		if s.card != nil && s.hostSpec() == nil {
			return nil
		}
		o.Experts, experts = s.experts.Experts, c.Plan.Source
		if s.look.places() {
			if err := s.placeExperts(ctx, o, r); err != nil {
				return err
			}
		}
	}
	rest := o.Precision
	if rest.Experts = 0; !rest.Integer() || s.card != nil {
		return nil // a card's are made at every load
	}
	config, err := s.src.read("config.json", false)
	if err != nil {
		return err
	}
	print, err := cache.MatrixFingerprintOf(config, s.cfg, s.set)
	if err != nil {
		return err
	}
	s.matrices, err = cache.OpenMatrices(ctx, s.rank(), cache.MatrixOptions{
		Source: print, Experts: experts, Precision: fmt.Sprintf("%+v", rest), Model: s.src.dir, Dir: f.CacheDir,
		Copy: s.copies(f) && s.sim == nil, Threads: f.threads(), Progress: r.progress, Notice: r.notice,
	})
	if err != nil {
		return err
	}
	o.Store = s.matrices
	return nil
}

// sealIntegers ends the load: what was made is kept for the next start.
func (s *session) sealIntegers(r reporter) {
	if s.matrices == nil {
		return
	}
	if err := s.matrices.Seal(); err != nil {
		r.notice(fmt.Sprintf("the weights converted now are not kept: %v", err))
	}
	s.copied += s.matrices.Allocated()
}
