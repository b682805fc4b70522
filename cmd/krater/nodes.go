package main

import (
	"context"
	"fmt"
	"runtime"

	"krater/actors"
	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/machine"
	"krater/stages/expert"
	"krater/stages/load"
)

// nodesOf are the nodes the threads are divided among: those of --fake-topology,
// else the machine's; nil where there is one.
func (f *engineFlags) nodesOf(m *machine.Machine) ([]cpu.Node, error) {
	var fake []machine.Node
	if f.FakeTopology != "" {
		var err error
		if fake, err = machine.ParseTopology(f.FakeTopology); err != nil {
			return nil, fmt.Errorf("--fake-topology: %w", err)
		}
	}
	return cpu.NodesOf(m, fake, f.Threads)
}

// poolCount is --expert-pools, or one for each node.
func (o *outlook) poolCount(f *engineFlags) int {
	if f.ExpertPools > 0 {
		return f.ExpertPools
	}
	return max(1, len(o.nodes))
}

// places reports whether pools have nodes of their own, to which their experts are
// brought. With fewer pools than nodes none has.
func (o *outlook) places() bool { return len(o.nodes) > 1 && o.pools >= len(o.nodes) }

// openDevice starts the processor's threads, on their nodes where there are several.
func (s *session) openDevice(f *engineFlags) error {
	if nodes := s.look.nodes; len(nodes) > 0 {
		// Before the device: it looks how many there are.
		runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), cpu.Processors(nodes)))
	}
	var err error
	s.dev, err = cpu.New(cpu.Options{Threads: f.Threads, Nodes: s.look.nodes, TileBF16: f.TileBF16})
	if err != nil && f.TileBF16 {
		err = fmt.Errorf("--tile-bf16: %w", err)
	}
	if err == nil && s.look.options.Precision.Integer() {
		s.dev.Probe()
	}
	return err
}

// placeExperts brings the experts of the open cache to the nodes of their pools and
// lets the cache go.
func (s *session) placeExperts(ctx context.Context, o *load.Options, r reporter) error {
	pools := s.look.pools
	s.partition = actors.Partition(s.dev, s.cfg.MoE.Experts, pools)
	layers := make([][]device.QExpert, len(s.cfg.Layers))
	for i := range layers {
		layers[i] = s.experts.Experts(i)
	}
	var err error
	done, all := int64(0), int64(0)
	for _, list := range layers {
		all += int64(len(list))
	}
	placed := func(int, int) {
		done++
		r.progress("place experts", s.experts.Bytes*done/all, s.experts.Bytes)
	}
	if s.placed, err = expert.Place(ctx, s.dev, s.partition, layers, placed); err != nil {
		return fmt.Errorf("experts to their nodes: %w", err)
	}
	o.Experts = s.placed.Experts
	s.copied += s.experts.Bytes
	if s.card == nil { // which takes experts of the same files
		err = s.experts.Close()
		s.experts = nil
	}
	for pool := range pools {
		p, err := s.dev.PlacementOn(s.partition.Node(pool), s.placed.Buffers(pool)...)
		if err != nil {
			return err
		}
		tell := r.info
		if p.Looked > 0 && p.Right < p.Looked-p.Absent {
			tell = r.notice
		}
		tell(fmt.Sprintf("expert pool %d: %s", pool, p))
	}
	for _, line := range s.dev.Notices() {
		r.notice(line)
	}
	return err
}
