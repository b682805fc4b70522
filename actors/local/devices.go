package local

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"krater/actors"
	"krater/actors/local/config"
	"krater/actors/local/predict"
	"krater/actors/placement"
	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/hostsim"
	"krater/scheduler/dispatch"
	"krater/scheduler/planner/forecast"
	"krater/stages/expert"
	"krater/stages/load"
)

// openDevices starts the CPU threads, on their NUMA nodes if there are several, and opens the
// device of the layers unless Prepare did.
func (s *Model) openDevices() error {
	f := &s.Plan.Options
	if s.Wrap != nil && f.Device.Own() {
		return fmt.Errorf("--device %s: this command measures the CPU; use --device cpu", f.Device)
	}
	if nodes := s.Plan.Nodes; len(nodes) > 0 {
		// This runs before the device is opened, which reads the number of threads.
		runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), cpu.Processors(nodes)))
	}
	var err error
	s.Host, err = cpu.New(cpu.Options{Threads: f.Threads, Nodes: s.Plan.Nodes, TileBF16: f.TileBF16})
	if err != nil && f.TileBF16 {
		err = fmt.Errorf("--tile-bf16: %w", err)
	}
	if err != nil {
		return err
	}
	if s.Plan.Load.Precision.Integer() {
		s.Host.Probe()
	}
	switch f.Device {
	case config.CPU:
		s.devices = []Rank{{Device: s.Host, kind: config.CPU}}
	case config.HostSim:
		sim, err := hostsim.New(hostsim.Options{CPU: s.Host, Budget: int64(f.VRAM), Rates: s.Rates})
		if err != nil {
			return err
		}
		s.devices = []Rank{{Device: sim, kind: config.HostSim}}
	}
	return nil
}

// placeExperts moves the experts of the open cache to the NUMA nodes of their pools and closes the
// cache.
func (s *Model) placeExperts(ctx context.Context, o *load.Options) error {
	pools := s.Plan.Pools
	s.partition = actors.Partition(s.Host, s.Config.MoE.Experts, pools)
	layers := make([][]device.QExpert, len(s.Config.Layers))
	for i := range layers {
		layers[i] = s.hostExperts(i)
	}
	var err error
	done, all := int64(0), int64(0)
	for _, list := range layers {
		all += int64(len(list))
	}
	placed := func(int, int) {
		done++
		s.report.Progress("place experts", s.experts.Bytes*done/all, s.experts.Bytes)
	}
	if s.placed, err = expert.Place(ctx, s.Host, s.partition, layers, placed); err != nil {
		return fmt.Errorf("move experts to their NUMA nodes: %w", err)
	}
	o.Experts = s.placed.Experts
	s.copied += s.experts.Bytes
	if !s.OnGPU() { // a GPU takes experts from the same files
		err = s.experts.Close()
		s.experts = nil
	}
	for pool := range pools {
		p, err := s.Host.PlacementOn(s.partition.Node(pool), s.placed.Buffers(pool)...)
		if err != nil {
			return err
		}
		tell := s.report.Info
		if p.Looked > 0 && p.Right < p.Looked-p.Absent {
			tell = s.report.Notice
		}
		tell(fmt.Sprintf("expert pool %d: %s", pool, p))
	}
	for _, line := range s.Host.Notices() {
		s.report.Notice(line)
	}
	return err
}

// placeExpertsBeside divides the routed experts of loaded parts between the host and the devices of
// the layers, for each rank separately.
func (s *Model) placeExpertsBeside() error {
	ranks, err := s.ranks()
	if err != nil {
		return err
	}
	s.Placements = make([]*placement.Placement, len(ranks))
	x, all, before := &s.Plan.Experts, expertLayers(s.Parts), 0
	for i, r := range ranks {
		n := expertLayers(r.Parts)
		if n == 0 && len(ranks) > 1 {
			continue
		}
		s.Placements[i], err = placement.New(s.Rank().Device, s.Host, r.Parts, share(placement.Options{
			Prefill: x.Prefill, Decode: x.Decode, Threshold: s.Plan.Options.GPUPrefillThreshold,
			Budget: max(1, x.Budget), PrefillBudget: s.Plan.PrefillExperts, Heat: s.Heat.Scaled(),
			Progress: func(done, all int64) { s.report.Progress("place experts", done, all) },
		}, before, n, all))
		if err != nil {
			return err
		}
		before += n
		for _, line := range placement.TellFalls(s.Placements[i].Falls()) {
			s.report.Notice(line)
		}
	}
	s.Placement = s.Placements[slices.IndexFunc(s.Placements, func(p *placement.Placement) bool { return p != nil })]
	return nil
}

// keepServed keeps what the strategy learned served for later forecasts. Without it these only know less.
func (s *Model) keepServed() {
	if !s.OnGPU() || s.Placement == nil || len(s.Placements) != 1 {
		return
	}
	v, ok := s.Placement.Served()
	if !ok {
		return
	}
	err := predict.KeepServed(&s.Plan.Options, s.Plan.Machine, s.Plan.Case.Rank, predict.ServedFile{
		Model: s.Source.Name, Layers: expertLayers(s.Parts), Experts: s.Config.MoE.Experts, Bytes: int64(s.Parts.Slots.Step),
		Served: forecast.Served{Tokens: v.Tokens, Places: v.Places, Rows: v.Rows, Seconds: v.Step.Seconds(), HitRate: v.HitRate},
	})
	if err != nil {
		s.report.Notice(fmt.Sprintf("what was served is not kept for krater plan: %v", err))
	}
}

// ClosePlacement removes the experts from the devices of the layers; the caller places them again.
func (s *Model) ClosePlacement() {
	for _, p := range s.Placements {
		if p != nil {
			p.Close()
		}
	}
	s.Placement, s.Placements = nil, nil
}

// expertLayers returns the number of layers of parts that have experts.
func expertLayers(p *load.Parts) (n int) {
	for _, g := range p.Groups {
		for layer := g.First; layer < g.Last; layer++ {
			if g.MoE(layer) {
				n++
			}
		}
	}
	return n
}

// share sets o to place the experts of one of several ranks: n of all layers, starting after the
// given number. Each rank gets its share of the memory.
func share(o placement.Options, before, n, all int) placement.Options {
	if n == all {
		return o
	}
	o.Budget = max(1, o.Budget/int64(max(1, all))*int64(n))
	o.PrefillBudget = o.PrefillBudget / int64(max(1, all)) * int64(n)
	if o.Heat != nil {
		o.Heat = o.Heat[before : before+n]
	}
	return o
}

// WhereExperts describes where a rank's experts are computed.
func (s *Model) WhereExperts() string {
	n, bytes := s.Placement.Slots()
	return fmt.Sprintf("prefill %s, decode %s, %d experts of %d bytes on %s",
		s.Placement.Strategy(dispatch.Prefill).Name(), s.Placement.Strategy(dispatch.Decode).Name(), n, bytes/max(1, int64(n)), s.Rank().Name())
}
