package device

import "time"

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
