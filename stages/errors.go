package stages

import "errors"

// Errors of Limits.For.
var (
	// ErrLimits: no step can run within the limits.
	ErrLimits = errors.New("stages: impossible limits")
)

// Errors of a step.
var (
	// ErrBatch: the fields of the batch contradict each other or exceed the limits. Nothing
	// was computed.
	ErrBatch = errors.New("stages: bad batch")
	// ErrNotFinite: keys or values of a token are not finite, so results that depend on them are invalid.
	ErrNotFinite = errors.New("keys or values are NaN or infinite")
)
