package dispatch

import "errors"

// Settled is a strategy with its start.
type Settled struct {
	Strategy
	Start Start
	Falls []Fall // the strategies tried before, in order
}

// Fall records that a smaller strategy replaced one that does not fit.
type Fall struct {
	From, To string
	Why      error
}

// Settle starts s, or the first smaller strategy that fits. It returns an error if the setup is
// impossible, or if no smaller strategy fits.
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
