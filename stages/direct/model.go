// Package direct runs a whole model as plain function calls: what the actor
// pipeline is compared with, and what offline commands use.
package direct

import (
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/group"
	"krater/stages/load"
)

// Model is a loaded model with one stream and one state. It computes one batch
// at a time.
type Model struct {
	Parts  *load.Parts
	dev    device.Device
	first  *flight
	second *flight // made by Chain
}

// flight is a step that may be in flight: its stream and its state.
type flight struct {
	stream device.Stream
	state  *stages.State
}

func newFlight(dev device.Device, parts *load.Parts) (*flight, error) {
	s, err := dev.NewStream()
	if err != nil {
		return nil, err
	}
	st, err := stages.NewState(dev, parts.Config, parts.Limits)
	if err != nil {
		s.Close()
		return nil, err
	}
	return &flight{s, st}, nil
}

func (f *flight) close() {
	f.state.Close()
	f.stream.Close()
}

// New makes a model of parts, which it does not own.
func New(dev device.Device, parts *load.Parts) (*Model, error) {
	f, err := newFlight(dev, parts)
	if err != nil {
		return nil, err
	}
	return &Model{Parts: parts, dev: dev, first: f}, nil
}

// Close frees the states and streams.
func (m *Model) Close() {
	m.first.close()
	if m.second != nil {
		m.second.close()
	}
}

// Device is where it is.
func (m *Model) Device() device.Device { return m.dev }

// Limits are those the model was loaded for.
func (m *Model) Limits() stages.Limits { return m.Parts.Limits }

// Step runs one batch and calls read with the result (drive.Runner). An error
// of the device leaves the sequences of the batch undefined.
func (m *Model) Step(b *stages.Step, probe stages.Probe, read func(*stages.State) error) error {
	b.Watched = probe != nil
	if err := m.first.state.Fill(m.first.stream, b); err != nil {
		return err
	}
	if err := Forward(m.first.stream, m.Parts, m.first.state, probe); err != nil {
		return err
	}
	if read == nil {
		return nil
	}
	return read(m.first.state)
}

// Forward takes a filled state through all stages and waits for s. Where p has no embedding, st.Hidden has
// what enters its first layer.
func Forward(s device.Stream, p *load.Parts, st *stages.State, probe stages.Probe) error {
	if err := enqueue(s, p, st, probe); err != nil {
		return err
	}
	return s.Synchronize()
}

// enqueue is Forward without the wait.
func enqueue(s device.Stream, p *load.Parts, st *stages.State, probe stages.Probe) error {
	if p.Embed != nil {
		p.Embed.Run(s, st, probe)
	}
	for _, g := range p.Groups {
		if st.Repeated() {
			break
		}
		g.Move(s, st)
		if err := layers(s, g, st, probe); err != nil {
			return err
		}
	}
	p.Head.Run(s, st, probe)
	return nil
}

// layers runs a group.
func layers(s device.Stream, g *group.Group, st *stages.State, probe stages.Probe) error {
	for w, ok := g.Walk(st, nil), true; ok; ok = g.Next(s, st, &w) {
		layer := w.Layer
		g.Attend(s, st, layer, probe)
		if !g.MoE(layer) {
			continue
		}
		if g.Resident(layer) {
			g.Mix(s, st, layer, probe)
			continue
		}
		g.Ask(s, st, layer)
		if err := s.Synchronize(); err != nil { // the host reads the router's choice
			return err
		}
		g.Experts(s, st, layer, g.Work(st, layer))
		g.Shared(s, st, layer, probe)
		g.Combine(s, st, layer, probe)
	}
	return nil
}
