package dispatch

// persistent loads all experts once at the start and never copies again.
type persistent struct{}

func (persistent) Name() string { return "persistent" }

func (p persistent) Start(s *Setup) (Start, error) {
	if err := s.check(); err != nil {
		return Start{}, err
	}
	if err := s.room(p.Name(), s.all()-len(s.Kept)); err != nil {
		return Start{}, err
	}
	start := keep(s.hottest(s.all()))
	start.Fixed = [Phases]bool{true, true}
	return start, nil
}

func (persistent) Decide(out *Decision, in *Step) { resident(out, in) }

func (persistent) Smaller(*Setup) Strategy { return layerGrouped{groups: 2, buffers: 2} }

// resident computes what is there on the device and leaves the rest to the host.
func resident(out *Decision, in *Step) {
	out.reset()
	out.split(in)
	out.Host = append(out.Host, out.misses...)
	if len(out.hits) > 0 {
		w := out.wave()
		w.Work = append(w.Work, out.hits...)
	}
}
