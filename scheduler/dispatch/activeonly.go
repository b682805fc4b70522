package dispatch

// activeOnly copies the experts that the router chose and that are not there yet. Each layer has
// slots of its own, of which the least recently used are evicted; with fewer slots than layers,
// neighbouring layers share.
type activeOnly struct{}

func (activeOnly) Name() string { return "active_only" }

func (a activeOnly) Start(s *Setup) (Start, error) {
	if err := s.check(); err != nil || len(s.Layers) == 0 {
		return Start{}, err
	}
	n := s.slots()
	if n == 0 {
		return Start{}, s.room(a.Name(), 1)
	}
	return Start{Slots: n, Places: byLayer(s, 0, n)}, nil
}

func (activeOnly) Decide(out *Decision, in *Step) { cached(out, in) }

func (activeOnly) Smaller(*Setup) Strategy { return cpuOnly{} }

// byLayer divides n slots from first on evenly among the layers.
func byLayer(s *Setup, first, n int) []Place {
	places := make([]Place, len(s.Layers))
	parts := min(len(places), n)
	for i := range places {
		p := i * parts / len(places)
		from, to := p*n/parts, (p+1)*n/parts
		places[i] = Place{int32(first + from), int32(to - from)}
	}
	return places
}

// cached computes the experts that are there, then those that are not: they are loaded to the
// layer's place, where the least recently used are evicted. As many are loaded at a time that half
// of the place is copied to while the other half is used.
func cached(out *Decision, in *Step) {
	out.reset()
	out.split(in)
	if len(out.hits) > 0 {
		w := out.wave()
		w.Work = append(w.Work, out.hits...)
	}
	if len(out.misses) == 0 {
		return
	}
	p := in.place(in.Index)
	out.victims(in, p)
	size := (int(p.Slots) + 1) / 2
	var w *Wave
	for j, i := range out.misses {
		if j%size == 0 {
			w = out.wave()
		}
		w.Loads = append(w.Loads, Load{out.order[j%len(out.order)], Key{in.Layer(), in.Work[i].Expert}})
		w.Work = append(w.Work, i)
	}
}

// victims fills order with the slots to evict: the least recently used first, then those that this
// step uses first, in turn.
func (d *Decision) victims(in *Step, p Place) {
	d.want(in)
	need := min(len(d.misses), int(p.Slots))
	for slot := in.Residency.oldest(p); slot >= 0 && len(d.order) < need; slot = in.Residency.newer(slot) {
		if k, ok := in.Residency.At(slot); !ok || k.Layer != in.Layer() || !d.wants(k.Expert) {
			d.order = append(d.order, slot)
		}
	}
	for _, i := range d.hits {
		if len(d.order) == need {
			return
		}
		slot, _ := in.Residency.Slot(Key{in.Layer(), in.Work[i].Expert})
		if slot >= p.First && slot < p.First+p.Slots {
			d.order = append(d.order, slot)
		}
	}
}

// want notes the experts of a step.
func (d *Decision) want(in *Step) {
	words := (in.Setup.Experts + 63) / 64
	if cap(d.wanted) < words {
		d.wanted = make([]uint64, words)
	}
	d.wanted = d.wanted[:words]
	clear(d.wanted)
	for _, w := range in.Work {
		d.wanted[w.Expert/64] |= 1 << (w.Expert % 64)
	}
}

func (d *Decision) wants(e int32) bool { return d.wanted[e/64]&(1<<(e%64)) != 0 }
