package hostsim

import "errors"

// What an enqueued operator or copy can end with, beside the panics of
// kernels/cpu. All of them stay but ErrRefused.
var (
	// ErrInjected: Fail asked for it.
	ErrInjected = errors.New("injected fault")
	// ErrRefused: Fail asked for a Refusal. It does not stay.
	ErrRefused = errors.New("refused")
	// ErrFreed: memory was freed before the work that uses it had run.
	ErrFreed = errors.New("memory was freed before its turn")
	// ErrChanged: the source of a copy to the device changed before it had run.
	ErrChanged = errors.New("the source of a copy changed before its turn")
)
