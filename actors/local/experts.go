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
	f, p := &s.Plan.Options, s.Plan.Load.Precision
	format := p.Experts
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

// hostFormat returns the format of the experts that the host computes next to a GPU. It is zero if
// the host computes none or keeps them as the files hold them.
func (s *Model) hostFormat() tensor.Format {
	if !s.Plan.Beside() || !s.Plan.Experts.Host() {
		return tensor.Format{}
	}
	return s.Plan.HostExperts
}

// gpuFormats adds to a cache what a GPU needs, and what the host needs next to it.
func (s *Model) gpuFormats(c *cache.Options) error {
	host := c.Plan
	c.Plan.For = tensor.GPU
	format := s.hostFormat()
	if format.Zero() {
		return nil
	}
	if format != host.Format {
		var err error
		if host, err = cache.NewPlan(s.Config, format, host.Method, host.Source); err != nil {
			return err
		}
	}
	c.Also = []cache.Plan{host}
	return nil
}

// integersOnly refuses a precision that is not available: a folder whose experts exist only as
// integers (krater synth) has no floats to convert.
func (s *Model) integersOnly() error {
	cfg, p := s.Config, s.Plan.Load.Precision
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
	if !p.Experts.Zero() && s.OnGPU() {
		if err := s.gpuFormats(&c); err != nil {
			return err
		}
	}
	kept, err := c.Kept()
	if err != nil || len(kept) == 0 {
		return err // loading says which tensors are missing
	}
	for _, want := range append([]cache.Plan{c.Plan}, c.Also...) {
		is := func(k cache.Plan) bool { return k.FileName() == want.FileName() }
		if !p.Experts.Zero() && slices.ContainsFunc(kept, is) {
			continue
		}
		what := "experts as their files hold them"
		if !p.Experts.Zero() {
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

// openIntegers puts the packed weights on the device, from their caches. It makes a cache first
// where there is none that is valid. Matrices other than experts are converted while the model is
// loaded; see sealIntegers.
func (s *Model) openIntegers(ctx context.Context, o *load.Options) error {
	var experts cache.Fingerprint
	switch {
	case o.Precision.Experts.Zero():
	case o.Precision.Experts.PerTensor():
		if s.OnGPU() && s.hostFormat().Zero() {
			return nil // the files have what the GPU needs
		}
		var err error
		if s.native, err = s.openMatrices(ctx, s.Host, o.Precision.Experts.Name()+" experts", experts); err != nil {
			return err
		}
		o.Native = s.native
	default:
		c, err := s.CacheOptions(cache.Search)
		if err != nil {
			return err
		}
		if s.OnGPU() {
			if err := s.gpuFormats(&c); err != nil {
				return err
			}
		}
		c.Copy = !s.OnGPU() && s.copies() && !s.Plan.Places() // experts that move to nodes are copied there
		if s.experts, err = cache.Open(ctx, s.Host, c); err != nil {
			return fmt.Errorf("experts as %s: %w", o.Precision.Experts, err)
		}
		if c.Copy {
			s.copied += s.experts.Bytes
		}
		if s.OnGPU() && s.hostFormat().Zero() {
			return nil
		}
		o.Experts, experts = s.hostExperts, c.Plan.Source
		if s.Plan.Places() {
			if err := s.placeExperts(ctx, o); err != nil {
				return err
			}
		}
	}
	rest := o.Precision
	if rest.Experts = (tensor.Format{}); !rest.Integer() || s.OnGPU() {
		return nil // those of a GPU are made at every load
	}
	var err error
	if s.Matrices, err = s.openMatrices(ctx, s.Rank().Device, rest.Key(), experts); err != nil {
		return err
	}
	o.Store = s.Matrices
	return nil
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
	return cache.OpenMatrices(ctx, dev, cache.MatrixOptions{
		Source: print, Experts: experts, Precision: precision, Model: s.Source.Dir, Dir: s.Plan.Options.CacheDir,
		Copy: s.copies() && s.Plan.Options.Device != config.HostSim, Threads: s.Plan.Options.ThreadCount(), Progress: s.report.Progress, Notice: s.report.Notice,
	})
}

// sealIntegers ends the load: it keeps the converted matrices for the next start.
func (s *Model) sealIntegers() {
	for _, m := range []*cache.Matrices{s.Matrices, s.native} {
		if m == nil {
			continue
		}
		if err := m.Seal(); err != nil {
			s.report.Notice(fmt.Sprintf("the weights converted now are not kept: %v", err))
		}
		s.copied += m.Allocated()
	}
}
