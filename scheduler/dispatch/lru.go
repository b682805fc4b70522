package dispatch

// lru is active_only with one place for all layers: the least recently used experts of all layers
// are evicted.
type lru struct{}

func (lru) Name() string { return "lru" }

func (l lru) Start(s *Setup) (Start, error) {
	if err := s.check(); err != nil || len(s.Layers) == 0 {
		return Start{}, err
	}
	n := s.slots()
	if n == 0 {
		return Start{}, s.room(l.Name(), 1)
	}
	return Start{Slots: n, Places: everywhere(s, Place{0, int32(n)})}, nil
}

func (lru) Decide(out *Decision, in *Step) { cached(out, in) }

func (lru) Smaller(*Setup) Strategy { return cpuOnly{} }
