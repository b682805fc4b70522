package dispatch

import "errors"

// Start-up.
var (
	// ErrUnknown: no strategy of this name or number exists.
	ErrUnknown = errors.New("no such strategy")
	// ErrSetup: a setup that contradicts itself.
	ErrSetup = errors.New("impossible setup of experts")
	// ErrNoRoom: the budget does not hold what a strategy needs.
	ErrNoRoom = errors.New("experts do not fit on the device")
)
