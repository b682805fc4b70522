package dispatch

// chunked copies all experts of every layer for every batch, as many at a time as its buffer holds,
// needed or not. Expert e has slot e mod the buffer's size.
type chunked struct{}

func (chunked) Name() string { return "chunked" }

func (c chunked) Start(s *Setup) (Start, error) {
	if err := s.check(); err != nil || len(s.Layers) == 0 {
		return Start{}, err
	}
	n := min(s.Experts, s.slots())
	if n == 0 {
		return Start{}, s.room(c.Name(), 1)
	}
	return Start{Slots: n, Places: everywhere(s, Place{0, int32(n)})}, nil
}

// Borrow is Start: nothing stays.
func (c chunked) Borrow(s *Setup) (Start, error) { return c.Start(s) }

func (chunked) Decide(out *Decision, in *Step) {
	out.reset()
	p, work := in.place(in.Index), 0
	for range p.Slots {
		out.order = append(out.order, 0) // 1: overwritten in this step
	}
	for first := int32(0); int(first) < in.Setup.Experts; first += p.Slots {
		w := out.wave()
		end := min(first+p.Slots, int32(in.Setup.Experts))
		for e := first; e < end; e++ {
			k, own := Key{in.Layer(), e}, p.First+e-first
			slot, ok := in.Residency.Slot(k)
			if !ok || slot == own && out.order[e-first] > 0 {
				w.Loads = append(w.Loads, Load{own, k})
				out.order[e-first] = 1
			}
		}
		for ; work < len(in.Work) && in.Work[work].Expert < end; work++ {
			w.Work = append(w.Work, int32(work))
		}
	}
}

func (chunked) Smaller(*Setup) Strategy { return cpuOnly{} }

// everywhere gives all layers one place.
func everywhere(s *Setup, p Place) []Place {
	places := make([]Place, len(s.Layers))
	for i := range places {
		places[i] = p
	}
	return places
}
