package dispatch

import "errors"

// Errors of Parse and Strategy.Start.
var (
	// ErrUnknown: no strategy has this name or number.
	ErrUnknown = errors.New("no such strategy")
	// ErrSetup: the fields of the setup contradict each other.
	ErrSetup = errors.New("impossible setup of experts")
	// ErrNoRoom: the strategy needs more memory than the budget.
	ErrNoRoom = errors.New("experts do not fit on the device")
)
