package dispatch

// persistent loads the resident experts (all of them, unless Setup.Resident says
// otherwise) once at the start and never copies again. What is not resident is
// the host's.
type persistent struct{}

func (persistent) Name() string { return "persistent" }

func (p persistent) Start(s *Setup) (Start, error) {
	if err := s.check(); err != nil {
		return Start{}, err
	}
	n := s.residents()
	if err := s.room(p.Name(), n); err != nil {
		return Start{}, err
	}
	start := Start{Slots: n, Loads: make([]Load, 0, n)}
	s.resident(func(k Key) { start.Loads = append(start.Loads, Load{int32(len(start.Loads)), k}) })
	if n < len(s.Layers)*s.Experts {
		start.Host = [Phases]bool{true, true}
	}
	return start, nil
}

func (persistent) Decide(out *Decision, in *Step) {
	out.reset(1)
	for i, w := range in.Work {
		if _, ok := in.Residency.Slot(Key{in.Layer, w.Expert}); ok {
			out.Waves[0].Work = append(out.Waves[0].Work, int32(i))
		} else {
			out.Host = append(out.Host, int32(i))
		}
	}
	if len(out.Waves[0].Work) == 0 {
		out.Waves = out.Waves[:0]
	}
}
