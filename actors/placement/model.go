package placement

import (
	"sync"

	"krater/kernels/device"
	"krater/scheduler/dispatch"
	"krater/stages"
	"krater/stages/group"
	"krater/stages/load"
	"krater/stages/offload"
)

// Model runs a placed model with plain calls, as stages/direct does for a model on one device. It
// computes one batch at a time (drive.Runner).
type Model struct {
	parts   *load.Parts
	place   *Placement
	mirror  *offload.Mirror
	calls   *offload.HostCalls // nil: the device makes none
	state   *stages.State
	stream  device.Stream // of the device
	host    device.Stream
	work    []device.ExpertRows // of the host in the current layer
	watched bool                // the step has a probe
	moved   int                 // rows of the step for which experts were moved ahead; 0: none were
	failed  error               // why that failed
}

// NewModel makes a model from parts and their placement. The caller keeps the ownership of both.
func NewModel(dev device.Device, host offload.Host, parts *load.Parts, p *Placement) (*Model, error) {
	m := &Model{parts: parts, place: p}
	var err error
	if m.stream, err = dev.NewStream(); err == nil {
		m.host, err = host.NewStream()
	}
	if err == nil {
		m.state, err = stages.NewState(dev, parts.Config, parts.Limits)
	}
	if err == nil {
		m.mirror, err = p.NewMirror()
	}
	if err == nil {
		m.calls = p.NewHostCalls(1)
	}
	if err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// Close frees what the model allocated.
func (m *Model) Close() {
	if m.state != nil {
		m.state.Close()
	}
	if m.mirror != nil {
		m.mirror.Close()
	}
	if m.calls != nil {
		m.calls.Close()
	}
	for _, s := range []device.Stream{m.stream, m.host} {
		if s != nil {
			s.Close()
		}
	}
}

// Limits returns the limits for which the model was loaded.
func (m *Model) Limits() stages.Limits { return m.parts.Limits }

// Step runs one batch and calls read with the result.
func (m *Model) Step(b *stages.Step, probe stages.Probe, read func(*stages.State) error) error {
	st := m.state
	m.watched = probe != nil
	b.Watched, b.UsesHost = m.watched, !m.place.Whole(len(b.Tokens), m.watched)
	b.Links = m.place.Links(len(b.Tokens), m.watched)
	if err := st.Fill(m.stream, b); err != nil {
		return err
	}
	if err := m.place.Enter(m.stream, len(b.Tokens)); err != nil {
		return err
	}
	if err := m.learn(len(b.Tokens)); err != nil {
		return err
	}
	if err := m.place.Ahead(st.T, nil); err != nil {
		return err
	}
	err := m.served(func(submitted chan<- bool) error {
		if err := m.enqueue(probe); err != nil {
			return err
		}
		if m.unseen() {
			st.FetchRoutes(m.stream)
		}
		m.stream.Submit()
		submitted <- true
		return m.stream.Synchronize()
	})
	if err == nil && m.unseen() {
		m.place.Note(st.Total(), st.Routes)
	}
	if err != nil || read == nil {
		return err
	}
	return read(st)
}

// learn has experts moved before a step, unless that was done at the end of the step before (ahead).
func (m *Model) learn(rows int) error {
	moved, err := m.moved == rows, m.failed
	m.moved, m.failed = 0, nil
	if moved || err != nil {
		return err
	}
	return m.place.Learn(rows, true)
}

// ahead is learn for the next step, which is taken to have as many rows as this one. The host has answered the last call of this
// step, all of it is submitted, and the device still works.
func (m *Model) ahead() {
	if rows := m.state.Total(); m.place.Learns() && m.place.Phase(rows) == dispatch.Decode {
		m.moved, m.failed = rows, m.place.Learn(rows, true)
	}
}

// unseen reports whether the placement wants to know the routers' choices of this step, which stay on the
// device.
func (m *Model) unseen() bool {
	return m.place.Learns() && m.place.Whole(m.state.Total(), m.watched)
}

// enqueue runs the stages.
func (m *Model) enqueue(probe stages.Probe) error {
	m.parts.Embed.Run(m.stream, m.state, probe)
	for _, g := range m.parts.Groups {
		if m.state.Repeated() {
			break
		}
		if err := m.group(g, probe); err != nil {
			return err
		}
	}
	m.parts.Head.Run(m.stream, m.state, probe)
	return nil
}

// served runs a step, from its first operator to its end, and answers its host calls meanwhile. step sends a value when it
// has submitted everything.
func (m *Model) served(step func(submitted chan<- bool) error) error {
	submitted := make(chan bool, 1)
	if m.calls == nil || !m.place.Asks(m.state.Total(), m.watched) {
		return step(submitted)
	}
	n := m.calls.Begin(m.state.Total())
	var served sync.WaitGroup
	served.Go(func() {
		if m.calls.Serve(n, m.host, 0, func(int32) bool { return true }, nil) == nil && <-submitted { // End returns the cause
			m.ahead()
		}
	})
	defer served.Wait()
	defer close(submitted)
	defer m.calls.Stop() // where the step has panicked
	if err := step(submitted); err != nil {
		return err
	}
	return m.calls.End()
}

// group runs the layers of a group.
func (m *Model) group(g *group.Group, probe stages.Probe) error {
	for w, ok := g.Walk(m.state, m.place.Parts(m.state.T)), true; ok; ok = g.Next(m.stream, m.state, &w) {
		g.Attend(m.stream, m.state, w.Layer, probe)
		if !g.MoE(w.Layer) {
			continue
		}
		if m.place.Whole(m.state.Total(), m.watched) {
			if err := m.place.Mix(m.stream, g, m.state, w.Layer, m.calls, probe); err != nil {
				return err
			}
			continue
		}
		if err := m.experts(g, w.Layer, probe); err != nil {
			return err
		}
	}
	return nil
}

// experts runs the experts of a layer: the host's while the device computes its own and the shared one.
func (m *Model) experts(g *group.Group, layer int, probe stages.Probe) error {
	st := m.state
	if m.place.Shares(st.Total()) {
		m.mirror.Fetch(m.stream, st)
	}
	g.Ask(m.stream, st, layer)
	if err := m.stream.Synchronize(); err != nil { // the host reads the router's choice
		return err
	}
	var err error
	m.work, err = m.place.Run(m.stream, g, st, layer, g.Work(st, layer), m.work[:0])
	if err != nil {
		return err
	}
	g.Shared(m.stream, st, layer, probe)
	if len(m.work) > 0 {
		m.place.Prepare(m.host, m.mirror, layer)
		m.place.Compute(m.host, m.mirror.State(), layer, m.work)
		if err := m.host.Synchronize(); err != nil {
			return err
		}
		m.mirror.Return(m.stream, st, m.work)
	}
	g.Combine(m.stream, st, layer, probe)
	return nil
}
