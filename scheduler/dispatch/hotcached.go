package dispatch

// hotCachedStatic loads the hottest experts once at the start; the host computes the others at the
// same time. Later only the input and output rows of experts are copied.
type hotCachedStatic struct{}

func (hotCachedStatic) Name() string { return "hot_cached_static" }

func (h hotCachedStatic) Start(s *Setup) (Start, error) { return keepHottest(h.Name(), s) }

// keepHottest loads the hottest experts, and leaves the others to the host.
func keepHottest(name string, s *Setup) (Start, error) {
	if err := s.check(); err != nil {
		return Start{}, err
	}
	n := min(s.all()-len(s.Kept), s.slots())
	if n == 0 && s.all() > 0 && len(s.Kept) == 0 {
		return Start{}, s.room(name, 1)
	}
	start := keep(s.hottest(n))
	some := n+len(s.Kept) < s.all()
	start.Host, start.Fixed = [Phases]bool{some, some}, [Phases]bool{true, true}
	return start, nil
}

func (hotCachedStatic) Decide(out *Decision, in *Step) { resident(out, in) }

func (hotCachedStatic) Smaller(*Setup) Strategy { return cpuOnly{} }
