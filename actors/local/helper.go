package local

import (
	"fmt"

	"krater/actors"
	"krater/actors/local/config"
	"krater/kernels/hostsim"
	"krater/scheduler/dispatch"
	"krater/stages/helper"
	"krater/stages/load"
)

// Helper is a device that computes a share of the experts for the only rank.
type Helper struct {
	Rank
	place   config.Place
	Experts *helper.Experts
}

// newHelper opens the device of --expert-device if that is a GPU; nil: there is none.
func newHelper(f *config.Options, rank config.Place) (*Helper, error) {
	p, ok, err := f.Helper(rank)
	if err != nil || !ok {
		return nil, err
	}
	h := &Helper{place: p}
	h.Rank, err = openRank(f, 1, p)
	return h, err
}

// facts describes the device to a case.
func (h *Helper) facts(c *config.Case) {
	if h != nil && h.GPU != nil {
		c.Helper = config.RankFacts{Name: h.GPU.Describe(), Memory: h.GPU.Memory().Total, Capacity: h.GPU.Capacity()}
	}
}

// simulate opens the device if it is a simulated one.
func (h *Helper) simulate(s *Model, clock *hostsim.Clock) error {
	if h == nil || h.place.Kind != config.HostSim {
		return nil
	}
	rates := s.Rates
	if s.HelperRates != nil {
		rates = *s.HelperRates
	}
	sim, err := hostsim.New(hostsim.Options{CPU: s.Host, Name: "hostsim:helper", Budget: s.Plan.Helper.Memory, Rates: rates, Clock: clock})
	if err == nil {
		h.Device = sim
	}
	return err
}

// load copies experts of the rank's layers to the device: those that the rank lacks, or a part of each layer's. parts are the rank's as they were
// before its device took experts.
func (h *Helper) load(s *Model, p *Part, parts *load.Parts) (err error) {
	if h == nil {
		return nil
	}
	plan, heat, i, left := s.Plan.Helper, s.Heat.Scaled(), 0, s.Plan.Helper.Slots
	holds := map[int][]bool{}
	for _, g := range p.Parts.Groups {
		for layer := g.First; layer < g.Last; layer++ {
			if !g.MoE(layer) {
				continue
			}
			var hot []uint32
			if heat != nil {
				hot = heat[i]
			}
			if i++; plan.Part > 0 {
				holds[layer] = dispatch.Divide(s.Config.MoE.Experts, hot, nil, plan.Part)
			} else {
				here := p.Placement.Resident(nil, layer)
				holds[layer] = make([]bool, len(here))
				for e := range here {
					holds[layer][e] = !here[e]
				}
			}
			for e, held := range holds[layer] {
				if holds[layer][e] = held && left > 0; holds[layer][e] {
					left--
				}
			}
		}
	}
	h.Experts, err = helper.New(h.Device, s.Host, parts, holds, func(done, all int64) { s.report.Progress("copy experts to "+h.Name(), done, all) })
	if err != nil {
		return fmt.Errorf("--expert-device %s: %w", h.place, err)
	}
	return nil
}

// help returns the helper as a pipeline takes it.
func (h *Helper) help(s *Model) *actors.Help {
	if h == nil {
		return nil
	}
	f := &s.Plan.Options
	return &actors.Help{Experts: h.Experts, Share: float64(f.ExpertShare) / 100, Least: f.GPUPrefillThreshold, Heat: s.Heat.Scaled()}
}

func (h *Helper) unload() {
	if h != nil && h.Experts != nil {
		h.Experts.Close()
		h.Experts = nil
	}
}

func (h *Helper) closeDevice() {
	if h != nil && h.Device != nil {
		h.Close()
		h.Rank = Rank{}
	}
}
