package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"krater/actors/local/config"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/load"
	"krater/stages/weights/cache"
)

// CacheOptions describes the expert cache of a prepared model, whose weights must be open.
func (s *Model) CacheOptions(method cache.Method) (cache.Options, error) {
	config, err := s.Source.Read("config.json", false)
	if err != nil {
		return cache.Options{}, err
	}
	print, err := cache.FingerprintOf(config, s.Config, s.Weights)
	if err != nil {
		return cache.Options{}, err
	}
	f := &s.Plan.Options
	format := s.expertFormat()
	if format.PerTensor() {
		return cache.Options{}, errors.New("experts with a format of each tensor (--expert-format) are converted at the first start")
	}
	if format.Zero() {
		format = tensor.INT4.By(128) // none is wanted; search for the others
	}
	plan, err := cache.NewPlan(s.Config, format, method, print)
	if err != nil {
		return cache.Options{}, err
	}
	return cache.Options{
		Plan: plan, Model: s.Source.Dir, Dir: f.CacheDir, Threads: f.ThreadCount(), Notice: s.report.Notice, Progress: s.report.Progress,
		Source: &cache.Weights{Config: s.Config, Set: s.Weights, Format: format, Method: method, Threads: f.ThreadCount()},
	}, nil
}

// plans sets the files of experts that the ranks take from a cache: for GPUs and for the host.
func (s *Model) plans(c *cache.Options) error {
	list := []cache.Plan{}
	add := func(kind tensor.Kind, f tensor.Format) (err error) {
		same := func(p cache.Plan) bool { return p.For == kind && p.Format == f }
		if f.Zero() || slices.ContainsFunc(list, same) {
			return nil
		}
		p := c.Plan
		if p.Format != f {
			p, err = cache.NewPlan(s.Config, f, p.Method, p.Source)
		}
		p.For = kind
		list = append(list, p)
		return err
	}
	for _, p := range s.Ranks {
		gpu, host := p.formats()
		if err := errors.Join(add(tensor.GPU, gpu), add(tensor.CPU, host)); err != nil {
			return err
		}
	}
	if len(list) > 0 {
		c.Plan, c.Also = list[0], list[1:]
	}
	return nil
}

// integersOnly refuses a precision that is not available: a folder whose experts exist only as
// integers (krater synth) has no floats to convert.
func (s *Model) integersOnly() error {
	cfg, format := s.Config, s.expertFormat()
	layer := 0
	for layer < len(cfg.Layers) && !cfg.MoELayer(layer) {
		layer++
	}
	if layer == len(cfg.Layers) {
		return nil
	}
	if _, ok := s.Weights.Tensor(cfg.ExpertNames(layer, 0).Gate); ok {
		return nil
	}
	c, err := s.CacheOptions(cache.Search)
	if err != nil {
		return err
	}
	if err := s.plans(&c); err != nil {
		return err
	}
	kept, err := c.Kept()
	if err != nil || len(kept) == 0 {
		return err // loading says which tensors are missing
	}
	for _, want := range append([]cache.Plan{c.Plan}, c.Also...) {
		is := func(k cache.Plan) bool { return k.FileName() == want.FileName() }
		if !format.Zero() && slices.ContainsFunc(kept, is) {
			continue
		}
		what := "experts as their files hold them"
		if !format.Zero() {
			what = expertsOf(want)
		}
		var has, flags []string
		for _, k := range kept {
			has = append(has, k.FileName())
			if (k.For == tensor.GPU) == s.OnGPU() {
				flags = append(flags, expertFlags(k))
			}
		}
		err := fmt.Errorf("%s cannot be made: the model has its experts only as integers (%s)", what, strings.Join(has, ", "))
		if len(flags) > 0 {
			err = fmt.Errorf("%w: start with %s", err, strings.Join(flags, ", or "))
		}
		return err
	}
	return nil
}

// expertsOf describes what a file of experts holds, for people.
func expertsOf(p cache.Plan) string {
	device, group := "the processor", "one scale per row"
	if p.For == tensor.GPU {
		device = "a GPU"
	}
	if p.Format.Group != 0 {
		group = fmt.Sprintf("groups of %d", p.Format.Group)
	}
	return fmt.Sprintf("experts as %s for %s, %s", p.Format.Name(), device, group)
}

// expertFlags returns the flags that use a file of experts.
func expertFlags(p cache.Plan) string {
	group := "row"
	if p.Format.Group != 0 {
		group = fmt.Sprint(p.Format.Group)
	}
	switch p.Format.Encoding {
	case tensor.INT3, tensor.INT4, tensor.INT8:
		return fmt.Sprintf("--%s-expert-bits %d --group-size %s", p.For, p.Format.Bits(), group)
	}
	return "--precision " + p.Format.Name()
}

// hostExperts returns the experts of a layer for the CPU.
func (s *Model) hostExperts(layer int) []device.QExpert { return s.experts.Experts(tensor.CPU, layer) }

// copies reports whether converted weights are read into memory of the device instead of mapped.
func (s *Model) copies() bool {
	f := &s.Plan.Options
	several := len(s.Plan.Machine.Nodes) > 1 || len(s.Plan.Nodes) > 1
	return f.CacheLoad == "copy" || f.CacheLoad == "auto" && several
}

// expertFormat returns the format of the experts of the first rank.
func (s *Model) expertFormat() tensor.Format { return s.Ranks[0].Plan.Load.Precision.Experts }

// openExperts opens the caches of experts that the ranks need, and makes a cache first where there is none that is valid.
func (s *Model) openExperts(ctx context.Context) (err error) {
	cached, host := false, false
	for _, p := range s.Ranks {
		gpu, cpu := p.formats()
		cached, host = cached || !gpu.Zero() || !cpu.Zero(), host || !cpu.Zero()
		if of := p.Plan.Load.Precision.Experts; of.PerTensor() && p.hosts() && s.native == nil {
			if s.native, err = s.openMatrices(ctx, s.Host, of.Name()+" experts", cache.Fingerprint{}); err != nil {
				return err
			}
		}
	}
	if !cached {
		return nil
	}
	c, err := s.CacheOptions(cache.Search)
	if err != nil {
		return err
	}
	if err := s.plans(&c); err != nil {
		return err
	}
	c.Copy = !s.OnGPU() && s.copies() && !s.Plan.Places() // experts that move to nodes are copied there
	if s.experts, err = cache.Open(ctx, s.Host, c); err != nil {
		return fmt.Errorf("experts as %s: %w", s.expertFormat(), err)
	}
	if c.Copy {
		s.copied += s.experts.Bytes
	}
	if !host {
		return nil
	}
	s.expertsID = c.Plan.Source
	if s.Plan.Places() {
		return s.placeExperts(ctx)
	}
	return nil
}

// nativeFor returns where experts of a rank come from that have a format of each tensor; nil: it has none.
func (s *Model) nativeFor(p *Part) load.Store {
	if s.native == nil || !p.Plan.Load.Precision.Experts.PerTensor() {
		return nil
	}
	return s.native
}

// openStore opens the matrices other than experts for the device of a rank; nil: it has none as integers. Those of a GPU are made at
// every load.
func (s *Model) openStore(ctx context.Context, p *Part) (load.Store, error) {
	rest := p.Plan.Load.Precision
	if rest.Experts = (tensor.Format{}); !rest.Integer() || p.onGPU() {
		return nil, nil
	}
	var err error
	if s.Matrices, err = s.openMatrices(ctx, p.Device, rest.Key(), s.expertsID); err != nil {
		return nil, err
	}
	return s.Matrices, nil
}

// openMatrices opens the file of packed matrices of a precision, for a device.
func (s *Model) openMatrices(ctx context.Context, dev device.Device, precision string, experts cache.Fingerprint) (*cache.Matrices, error) {
	raw, err := s.Source.Read("config.json", false)
	if err != nil {
		return nil, err
	}
	print, err := cache.MatrixFingerprintOf(raw, s.Config, s.Weights)
	if err != nil {
		return nil, err
	}
	m, err := cache.OpenMatrices(ctx, dev, cache.MatrixOptions{
		Source: print, Experts: experts, Precision: precision, Model: s.Source.Dir, Dir: s.Plan.Options.CacheDir,
		Copy: s.copies() && !s.Plan.Options.On(config.HostSim), Threads: s.Plan.Options.ThreadCount(), Progress: s.report.Progress, Notice: s.report.Notice,
	})
	if err == nil {
		s.stores = append(s.stores, m)
	}
	return m, err
}

// seal ends the conversion of matrices: it keeps them for the next start.
func (s *Model) seal(m *cache.Matrices) {
	if m == nil {
		return
	}
	if err := m.Seal(); err != nil {
		s.report.Notice(fmt.Sprintf("the weights converted now are not kept: %v", err))
	}
	s.copied += m.Allocated()
}
