package local

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"krater/actors"
	"krater/actors/local/config"
	"krater/actors/local/predict"
	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/hostsim"
	"krater/scheduler/dispatch"
	"krater/scheduler/planner/forecast"
	"krater/stages/expert"
	"krater/stages/load"
)

// openDevices starts the CPU threads, on their NUMA nodes if there are several, and opens the devices that Prepare did not.
func (s *Model) openDevices() error {
	f := &s.Plan.Options
	if s.Wrap != nil && f.OwnMemory() {
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
	if slices.ContainsFunc(s.Ranks, func(p *Part) bool { return p.Plan.Load.Precision.Integer() }) {
		s.Host.Probe()
	}
	clock := new(hostsim.Clock) // of all simulated devices
	for i, p := range s.Ranks {
		switch p.place.Kind {
		case config.CPU:
			p.Device = s.Host
		case config.HostSim:
			o := hostsim.Options{CPU: s.Host, Budget: int64(f.VRAM.Of(i)), Rates: s.Rates, Clock: clock}
			if len(s.Ranks) > 1 || s.Helper != nil {
				o.Name = fmt.Sprintf("%s:%d", config.HostSim, i)
			}
			sim, err := hostsim.New(o)
			if err != nil {
				return err
			}
			p.Device = sim
		}
	}
	return s.Helper.simulate(s, clock)
}

// placeExperts moves the experts of the open cache to the NUMA nodes of their pools and closes the
// cache.
func (s *Model) placeExperts(ctx context.Context) error {
	pools := s.Plan.Pools
	s.partition = actors.Partition(s.Host, s.Config.MoE.Experts, pools)
	layers := make([][]device.QExpert, len(s.Config.Layers))
	for _, p := range s.Ranks {
		for i, last := p.Plan.Load.Range(s.Config); i < last && p.hosts(); i++ {
			layers[i] = s.hostExperts(i)
		}
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

// keepServed keeps what the strategy learned served for later forecasts. Without it these only know less.
func (s *Model) keepServed() {
	if len(s.Ranks) != 1 || !s.OnGPU() || s.Ranks[0].Placement == nil {
		return
	}
	v, ok := s.Ranks[0].Placement.Served()
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
	for _, p := range s.Ranks {
		if p.Placement != nil {
			p.Placement.Close()
			p.Placement = nil
		}
	}
}

// expertLayersBefore returns the number of layers before one that have experts.
func (s *Model) expertLayersBefore(layer int) (n int) {
	for i := range layer {
		if s.Config.MoELayer(i) {
			n++
		}
	}
	return n
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

// WhereExperts describes where a rank's experts are computed, if not all are with the rest of its layers.
func (p *Part) WhereExperts() string {
	n, bytes := p.Placement.Slots()
	return fmt.Sprintf("prefill %s, decode %s, %d experts of %d bytes on %s",
		p.Placement.Strategy(dispatch.Prefill).Name(), p.Placement.Strategy(dispatch.Decode).Name(), n, bytes/max(1, int64(n)), p.Name())
}
