package local

import (
	"fmt"

	"krater/actors/local/config"
	"krater/actors/local/plan"
	"krater/actors/placement"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/load"
	"krater/stages/synth"
)

// Rank is a device that computes layers.
type Rank struct {
	load.Device
	GPU GPU // set if the device is a GPU
}

// Describe names the device.
func (r Rank) Describe() string {
	if r.GPU != nil {
		return r.GPU.Describe()
	}
	return r.Name()
}

// Part is one rank's part of a model: a device, its layers, and the places of their experts.
type Part struct {
	Rank
	place     config.Place
	Plan      *plan.Plan
	Parts     *load.Parts
	Placement *placement.Placement // experts outside the device; nil: all are with the rest
	made      *synth.Loaded        // set for a model with random weights; owns Parts
}

// onGPU reports whether the device is a GPU, which takes experts in tiles.
func (p *Part) onGPU() bool { return p.place.Kind == config.CUDA }

// hostFormat returns the format of the experts that the host computes next to a GPU. It is zero if
// the host computes none or keeps them as the files hold them.
func (p *Part) hostFormat() tensor.Format {
	if !p.Plan.Beside() || !p.Plan.Experts.Host() {
		return tensor.Format{}
	}
	return p.Plan.HostExperts
}

// hosts reports whether the host computes experts of the layers, in a format that a cache has.
func (p *Part) hosts() bool { return !p.onGPU() || !p.hostFormat().Zero() }

// formats returns the formats of experts that the part takes from caches, for a GPU and for the host; zero: none.
func (p *Part) formats() (gpu, host tensor.Format) {
	of := p.Plan.Load.Precision.Experts
	switch {
	case of.Zero() || of.PerTensor():
		return
	case !p.onGPU():
		return gpu, of
	}
	return of, p.hostFormat()
}

// bind puts the weights of the files on the device. Routed experts that do not all fit go where the
// strategies say.
func (s *Model) bind(p *Part, dev load.Device, o load.Options) (err error) {
	if p.onGPU() && s.experts != nil {
		o.Packed = s.packedExpert
	}
	if p.Plan.Beside() {
		o.Routed = s.Host
	}
	if p.hosts() {
		if gpu, host := p.formats(); !gpu.Zero() || !host.Zero() {
			o.Experts = s.hostExperts
			if s.placed != nil {
				o.Experts = s.placed.Experts
			}
		}
		o.Native = s.nativeFor(p)
	}
	if p.Parts, err = load.Model(dev, s.Config, s.Weights, o); err == nil {
		err = s.place(p)
	}
	if err != nil && p.Plan.Beside() {
		return fmt.Errorf("%s: %w", p.Name(), err)
	}
	return err
}

// make puts the layers of a model with random weights on the device.
func (s *Model) make(p *Part, dev load.Device, o load.Options) (err error) {
	threads := s.Plan.Options.ThreadCount()
	switch p.place.Kind {
	case config.CUDA:
		if p.Plan.Beside() {
			o.Routed = s.Host
		}
		p.made, err = s.Source.Synth.LoadCard(dev, s.Host, o, p.hostFormat(), threads)
	case config.HostSim:
		p.made, err = s.Source.Synth.LoadBeside(dev, s.Host, o, threads)
	default:
		p.made, err = s.Source.Synth.Load(dev, o, threads)
	}
	if err != nil {
		return err
	}
	p.Parts = p.made.Parts
	s.copied += p.Parts.WeightBytes
	return s.place(p)
}

// place divides the routed experts of loaded layers between the rank's device, the host and a helper.
func (s *Model) place(p *Part) error {
	var again *load.Parts
	if s.Helper != nil {
		again = p.Parts.Again() // before the device takes the experts
	}
	if p.Plan.Beside() {
		if err := s.placeBeside(p); err != nil {
			return err
		}
	}
	return s.Helper.load(s, p, again)
}

// placeBeside divides the routed experts of loaded layers between the host and the rank's device.
func (s *Model) placeBeside(p *Part) (err error) {
	n := expertLayers(p.Parts)
	if n == 0 && len(s.Ranks) > 1 {
		return nil
	}
	x, f := &p.Plan.Experts, &p.Plan.Options
	o := placement.Options{
		Prefill: x.Prefill, Decode: x.Decode, Threshold: f.GPUPrefillThreshold,
		Budget: max(1, x.Budget), PrefillBudget: p.Plan.PrefillExperts, Heat: s.Heat.Scaled(),
		Progress: func(done, all int64) { s.report.Progress("place experts", done, all) },
	}
	if o.Heat != nil {
		before := s.expertLayersBefore(p.Plan.Load.First)
		o.Heat = o.Heat[before : before+n]
	}
	if p.Placement, err = placement.New(p.Device, s.Host, p.Parts, o); err != nil {
		return err
	}
	for _, line := range placement.TellFalls(p.Placement.Falls()) {
		s.report.Notice(line)
	}
	return nil
}

// keepBlocks allocates room for KV blocks in host memory.
func (s *Model) keepBlocks(p *Part) error {
	if p.Parts.Limits.HostBlocks == 0 {
		return nil
	}
	s.report.Progress("make room for KV blocks in host memory", 0, 0)
	for _, g := range p.Parts.Groups {
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

// unload frees the layers of the rank and leaves its device open.
func (p *Part) unload() {
	if p.Placement != nil {
		p.Placement.Close()
	}
	switch {
	case p.made != nil:
		p.made.Close()
	case p.Parts != nil:
		p.Parts.Close()
	}
	p.Placement, p.made, p.Parts = nil, nil, nil
}

// closeDevice closes a device that has memory of its own.
func (p *Part) closeDevice() {
	if p.Device != nil && p.place.Kind.Own() {
		p.Close()
	}
	p.Rank = Rank{}
}

// packedExpert finds an expert for the GPU in the open cache.
func (s *Model) packedExpert(layer, e int) (device.QExpert, error) {
	list := s.experts.Experts(tensor.GPU, layer)
	if e >= len(list) {
		return device.QExpert{}, fmt.Errorf("the cache has %d experts", len(list))
	}
	return list[e], nil
}
