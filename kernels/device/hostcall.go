package device

import "time"

// HostCallSize bounds host calls.
type HostCallSize struct {
	Rows, Hidden, TopK int
	// Each makes the host return a row for each of its choices instead of their weighted sum.
	Each  bool
	Limit time.Duration // for an answer
}

// HostCalls is the host's side of the calls by which an accelerator requests rows from the host in
// the middle of a step. The accelerator waits for the answer by itself, without work that the host
// enqueues, so the step can be replayed. The calls of a step are numbered from 0, in the order of
// their AskHost operators. Methods are safe for concurrent use by the goroutines that answer a step.
type HostCalls interface {
	// Begin starts a step: calls are numbered from 0 again. The caller calls it before it submits the
	// step, after the step before has ended.
	Begin()
	// Await polls until call n has come, or until stop, which it calls from time to time, returns true.
	// The call is valid until it is answered.
	Await(n int, stop func() bool) (HostCall, bool)
	// Answer sends the rows that were written to Out of call n. n = -1 answers the last call
	// before Begin, if the device still waits for that.
	Answer(n int)
	// Err returns ErrLate if the device has stopped waiting for an answer since Begin.
	Err() error
	Close()
}

// HostCall is a request of the device. Its memory belongs to HostCalls.
type HostCall struct {
	Rows int    // T; 0: nothing is requested, and the device waits for no answer
	X    []byte // [T, H] of RowType
	// IDs [T*K] are the experts that the host computes, below 0 for choices that the device computes.
	IDs     []int32
	Weights []float32 // [T*K]
	// Out is the memory for the answer: the weighted sum of the host's choices, [T, H], or with Each the
	// row of each of them, [T*K, H]. Rows of other choices are not read.
	Out []float32
}
