package dispatch

// staticPin is active_only with the hottest experts of the whole model always there.
// They take all but a part of the slots.
type staticPin struct{}

// pinRest is the part of its slots, 1/pinRest, that a pinning strategy leaves to the
// experts that come and go.
const pinRest = 4

func (staticPin) Name() string { return "static_pin" }

func (p staticPin) Start(s *Setup) (Start, error) {
	if err := s.check(); err != nil {
		return Start{}, err
	}
	return pinned(p.Name(), s, s.hottest)
}

func (staticPin) Decide(out *Decision, in *Step) { cached(out, in) }

func (staticPin) Smaller(*Setup) Strategy { return cpuOnly{} }

// pinned pins the experts that choose names, as many as it is asked for or fewer, and
// divides the rest of the slots among the layers.
func pinned(name string, s *Setup, choose func(n int) []Key) (Start, error) {
	others := s.all() - len(s.Kept)
	n := min(others, s.slots())
	pins := n
	if n < others {
		if n == 0 {
			return Start{}, s.room(name, 1)
		}
		pins -= max(1, n/pinRest)
	}
	start := keep(choose(pins))
	if n < others {
		start.Places = byLayer(s, start.Slots, n-start.Slots)
		start.Slots = n
	} else {
		start.Places = make([]Place, len(s.Layers))
	}
	return start, nil
}
