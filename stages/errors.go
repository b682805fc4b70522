package stages

import "errors"

// Start-up.
var (
	// ErrLimits: sizes that no step could run in.
	ErrLimits = errors.New("stages: impossible limits")
)

// Each step.
var (
	// ErrBatch: a batch that contradicts itself or exceeds the limits; nothing
	// was computed.
	ErrBatch = errors.New("stages: bad batch")
	// ErrNotFinite: keys or values of a token are not finite, so nothing that reads them is of use.
	ErrNotFinite = errors.New("keys or values are NaN or infinite")
)
