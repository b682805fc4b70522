package hostsim

import "errors"

// Errors of enqueued operators and copies, in addition to the panics of
// kernels/cpu. All except ErrRefused are permanent.
var (
	// ErrInjected: Fail caused it.
	ErrInjected = errors.New("injected fault")
	// ErrRefused: Fail caused a Refusal. The device is not broken.
	ErrRefused = errors.New("refused")
	// ErrFreed: memory was freed before the work that uses it had run.
	ErrFreed = errors.New("memory was freed before its turn")
	// ErrChanged: the source of a copy to the device changed before it had run.
	ErrChanged = errors.New("the source of a copy changed before its turn")
)
