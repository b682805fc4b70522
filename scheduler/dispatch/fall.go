package dispatch

import "errors"

// Settled is a strategy with its start.
type Settled struct {
	Strategy
	Start Start
	Falls []Fall // what was tried before, in order
}

// Fall is a step from a strategy without room to a smaller one.
type Fall struct {
	From, To string
	Why      error
}

// Settle starts s, or the first smaller strategy that fits. It fails only for an impossible setup,
// or for a strategy without a smaller one.
func Settle(s Strategy, setup *Setup) (Settled, error) {
	var falls []Fall
	for {
		start, err := s.Start(setup)
		if err == nil {
			return Settled{s, start, falls}, nil
		}
		less := s.Smaller(setup)
		if less == nil || !errors.Is(err, ErrNoRoom) {
			return Settled{}, err
		}
		falls = append(falls, Fall{s.Name(), less.Name(), err})
		s = less
	}
}
