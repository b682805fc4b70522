package webui

import (
	"encoding/json"
	"time"

	"krater/actors/trace"
	"krater/scheduler/jsonlines"
)

// show notes that a viewer looks, or does not. While anybody does, the meter runs and the trace
// notes every batch in detail.
func (p *Page) show(v *viewer, yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, here := p.viewers[v]; !here || v.visible == yes {
		return
	}
	v.visible = yes
	if yes {
		v.needFull = true
		p.visible++
	} else {
		p.visible--
	}
	switch {
	case p.visible > 0 && p.stop == nil:
		p.stop = make(chan struct{})
		go p.meter(p.stop)
	case p.visible == 0 && p.stop != nil:
		close(p.stop)
		p.stop, p.last = nil, nil
	}
}

// meter pushes states until stop is closed.
func (p *Page) meter(stop chan struct{}) {
	tick := time.NewTicker(p.opt.Every)
	defer tick.Stop()
	var m *meter
	var release func()
	changed := false // the topology, since the last push
	defer func() {
		if release != nil {
			release()
		}
	}()
	for {
		if m == nil && p.src.Trace() != nil {
			release = p.src.Trace().Watch()
			m = newMeter(p.src, p.past, trace.Now())
		}
		var s *state
		if m == nil {
			s = p.loadingState()
		} else {
			changed = m.look() // of a cluster, after a loss
			s = m.measure(trace.Now())
		}
		p.push(stop, s, changed)
		select {
		case <-stop:
			return
		case <-tick.C:
		}
	}
}

// push sends every active viewer the parts of s that it has not seen, or everything if the topology has changed.
func (p *Page) push(stop chan struct{}, s *state, changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop != stop { // there is no viewer any more
		return
	}
	delta := s
	if s.Nodes != nil {
		delta = s.since(p.last)
	}
	p.last = s
	frames := map[frameKey][]byte{} // viewers of the same owner get the same frame
	for v := range p.viewers {
		if !v.visible {
			continue
		}
		full := v.missed() || v.needFull || changed
		key := frameKey{v.owner, full}
		if frames[key] == nil {
			frames[key] = p.frame(s, delta, key)
		}
		v.needFull = full && s.Nodes == nil // of a model that is loading there is more to come
		v.offer(frames[key])
	}
}

type frameKey struct {
	owner string
	full  bool
}

// frame returns a push as JSON: a snapshot is all there is to know, with the topology.
func (p *Page) frame(s, delta *state, key frameKey) []byte {
	f := struct {
		Type     string    `json:"type"`
		Model    string    `json:"model,omitempty"`
		Context  int       `json:"context,omitempty"`
		Topology *topology `json:"topology,omitempty"`
		State    *state    `json:"state"`
		History  []point   `json:"history,omitempty"`
	}{Type: "delta", State: delta.as(key.owner)}
	if key.full {
		info := p.src.Info()
		f.Type, f.Model, f.Context = "snapshot", info.ID, info.Context
		f.Topology, f.State, f.History = draw(p.src.Topology()), s.as(key.owner), p.past.all()
	}
	return encode(f)
}

// encode is for what always marshals.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return jsonlines.Escape(data)
}
