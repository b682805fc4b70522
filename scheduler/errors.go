package scheduler

import "errors"

// Errors of Add. The core has not changed.
var (
	// ErrQueueFull: MaxQueue requests wait already. The server answers 429.
	ErrQueueFull = errors.New("scheduler: the queue is full")
	// ErrTooLong: prompt and answer need more KV blocks than there are, so the
	// request could never run.
	ErrTooLong = errors.New("scheduler: the request does not fit the KV cache")
	// ErrDuplicate: a request of this id waits, runs or is not yet released.
	ErrDuplicate = errors.New("scheduler: the request id is in use")
	// ErrDraining: Drain was called. The server answers 503.
	ErrDraining = errors.New("scheduler: draining")
	// ErrExpired: the deadline has passed already.
	ErrExpired = errors.New("scheduler: the deadline has passed")
	// ErrPrompt: len(Prompt) is not PromptLen.
	ErrPrompt = errors.New("scheduler: the prompt is not whole")
	// ErrEmpty: the prompt has no token, or there is no token to generate.
	ErrEmpty = errors.New("scheduler: nothing to do")
)

// Errors of Done and Fail, which then change nothing.
var (
	// ErrUnknownBatch: no batch of this id is in flight.
	ErrUnknownBatch = errors.New("scheduler: no such batch in flight")
	// ErrAhead: the batch is ahead of one that is still in flight, whose outcomes
	// come first. It stays in flight.
	ErrAhead = errors.New("scheduler: the batch before it is in flight")
	// ErrOutcome: the outcomes do not match the batch's spans. The batch stays in
	// flight; the driver fails it.
	ErrOutcome = errors.New("scheduler: outcomes do not match the batch")
)

// ErrConfig is wrapped by every error of New.
var ErrConfig = errors.New("scheduler: bad configuration")
