// Package hop carries batches between the processes of a cluster: a step and its rows, in frames. It has no codec
// and no network: package transport/peers carries frames over connections, and Pipe within a process.
package hop

// Kind says what a frame is for.
type Kind uint8

const (
	Step      Kind = iota + 1 // a step for the receiver's ranks, and the rows it starts with
	Failed                    // the step was lost at the sender or before it; Meta is the cause as text
	Forget                    // the receiver must abandon the batch, and answer Forgotten when nothing uses its memory any more
	Forgotten                 // the answer to Forget
)

// Frame is a message about one batch.
type Frame struct {
	Kind       Kind
	Batch      uint8  // index of the batch
	Epoch      uint32 // of the step; a receiver drops frames of an older one
	ID         uint64 // number of the step
	Follows    uint64 // the newest step before it that has earlier rows of a prompt of this one; 0: none
	Repeatable bool   // of Failed: the same step may work the next time
	Bulk       bool   // it has rows of prompts: frames without them go first
	Sent       int64  // sender's trace clock, ns
	Meta       []byte // Step: the encoding of stages.Step; Failed: text
	// Rows are hidden states, marks and selected positions; nil where there are none.
	Rows [3][]byte
	// Release gives the memory of a received frame back; nil for frames that are sent.
	Release func()
}

// Bytes returns the length of the frame's contents.
func (f *Frame) Bytes() int {
	n := len(f.Meta)
	for _, rows := range f.Rows {
		n += len(rows)
	}
	return n
}

// Conn connects two members of a cluster: both ends may send and receive. After an error of Send or Receive the
// connection is closed and stays so.
type Conn interface {
	// Send is safe for concurrent use. It returns when the frame's memory may be used again, and fails when the
	// peer did not take it in time.
	Send(f *Frame) error
	// Receive waits for the next frame, which is the caller's until its Release. One goroutine calls it.
	Receive() (*Frame, error)
	// Close ends the connection: Send and Receive fail at both ends. It may be called more than once.
	Close() error
	// Name is that of the peer, for logs, the trace and metrics.
	Name() string
}
