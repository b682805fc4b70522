package device

import "time"

// Pinner is a device whose copies from some host memory are faster once it knows that
// memory, and that CopyIn reads in place then: b stays as it is until the stream has passed.
type Pinner interface {
	// Pin makes b known, which must not be memory of the Go heap, until release is called.
	Pin(b []byte) (release func() error, err error)
}

// BlockMover is a device that copies many blocks of its KV cache to pinned host memory, or back,
// at once.
type BlockMover interface {
	// MoveBlocks enqueues the copies on s. It is false, and enqueues nothing, where some of
	// the host's memory is not pinned.
	MoveBlocks(s Stream, m *BlockMoves) bool
}

// BlockMoves are copies of blocks: in every part block From[i] of one side to block To[i] of
// the other. No block is both read and written.
type BlockMoves struct {
	Save     bool // to the host, else from it
	From, To []int32
	Parts    []BlockPart
}

// BlockPart is a matrix of blocks on the device, [blocks * tokens, width] without gaps, and the
// host's room for blocks, one behind the other. Bytes is the size of a block.
type BlockPart struct {
	Cache Mat
	Host  []byte
	Bytes int
}

// CopyStreamer is a device with an engine for copies, beside the one that computes.
type CopyStreamer interface {
	// NewCopyStream gives a stream for copies that runs at the same time as others.
	NewCopyStream() (Stream, error)
}

// LaneStreamer is a device that runs several orders of work at the same time.
type LaneStreamer interface {
	// NewLaneStream is NewStream for a lane, a small number: the streams of one run one after
	// the other, as all those of NewStream do, and beside those of others.
	NewLaneStream(lane int) (Stream, error)
}

// Mailer is a device that asks the host for rows in the middle of a step and goes on with
// what it answers: the step may be repeated as it is, and nobody enqueues anything.
type Mailer interface {
	// NewMail makes a mailbox for letters of up to rows rows. It serves one stream.
	NewMail(o MailSize) (Mail, error)
}

// MailSize bounds letters.
type MailSize struct {
	Rows, Hidden, TopK int
	Limit              time.Duration // that an answer may take
}

// Mail is the host's side of a mailbox. Letters of a step are numbered from 0, in the order
// of their Posts; Begin starts the numbers anew. Its methods are safe for concurrent use by
// those who serve a step.
type Mail interface {
	// Begin is called before a step is submitted, when the former one has ended.
	Begin()
	// Await burns its core until letter n is there, or gives up when stop says so, which is
	// asked now and then. The letter is valid until it is answered.
	Await(n int, stop func() bool) (Letter, bool)
	// Answer sends the rows of letter n: those written to its Out. That of letter -1 is to what was
	// asked last before Begin, if the device still waits for it.
	Answer(n int)
	// Err is ErrLate if the device has given up a wait since Begin.
	Err() error
	Close()
}

// Letter is what the device asks for. Its memory is the mailbox's.
type Letter struct {
	Rows int    // T; 0: nothing is asked, and no answer is waited for
	X    []byte // [T, H] of RowType
	// IDs [T*K] are the host's choices, below 0 where a choice is not the host's.
	IDs     []int32
	Weights []float32 // [T*K]
	Out     []float32 // [T, H], to be written: the weighted sum of the host's choices
}
