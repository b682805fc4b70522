package device

import "time"

// HostCallSize bounds host calls.
type HostCallSize struct {
	Rows, Hidden, TopK int
	// Each has the host return a row for each of its choices, and not their weighted sum.
	Each  bool
	Limit time.Duration // for an answer
}

// HostCalls is the host's side of the calls by which an accelerator requests rows from the host in
// the middle of a step. The accelerator goes on with the answer: nothing is enqueued for that, so
// the step can be replayed. The calls of a step are numbered from 0, in the order of their
// AskHost operators. Methods are safe for concurrent use by the servers of a step.
type HostCalls interface {
	// Begin is called before a step is submitted, when the former one has ended. It numbers calls
	// from 0 again.
	Begin()
	// Await polls until call n has come, or gives up if stop reports true, which it asks now and
	// then. The call is valid until it is answered.
	Await(n int, stop func() bool) (HostCall, bool)
	// Answer sends the rows that were written to Out of call n. n = -1 answers the last call
	// before Begin, if the device still waits for that.
	Answer(n int)
	// Err is ErrLate if the device has given up a wait since Begin.
	Err() error
	Close()
}

// HostCall is a request of the device. Its memory belongs to HostCalls.
type HostCall struct {
	Rows int    // T; 0: nothing is requested, and the device waits for no answer
	X    []byte // [T, H] of RowType
	// IDs [T*K] are the host's choices, below 0 where a choice is not the host's.
	IDs     []int32
	Weights []float32 // [T*K]
	// Out, to be written, is the weighted sum of the host's choices, [T, H], or with Each the row of each of
	// them, [T*K, H]; the others are not read.
	Out []float32
}
