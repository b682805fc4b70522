package stages

import "fmt"

// MoveKind selects the source and the destination of a Move.
type MoveKind uint8

const (
	Copy       MoveKind = iota // a block of the KV cache to another
	Save                       // a block to one in host memory
	Load                       // one in host memory to a block
	CopyWindow                 // a window block to another one
	SaveState                  // the state of the sequence in slot From to snapshot To
	LoadState                  // snapshot From to the state of the sequence in slot To
)

func (k MoveKind) String() string {
	switch k {
	case Copy:
		return "copy"
	case Save:
		return "save"
	case Load:
		return "load"
	case CopyWindow:
		return "copy window"
	case SaveState:
		return "save state"
	case LoadState:
		return "load state"
	}
	return "invalid"
}

// Move copies a block, or a sequence's state outside of blocks, in every layer. Until the batch with the
// move is back, nothing else may write From or use To.
type Move struct {
	Kind     MoveKind
	From, To int32
}

// checkMoves holds moves against the blocks there are.
func (l *Limits) checkMoves(moves []Move) error {
	for _, m := range moves {
		from, to := l.Blocks, l.Blocks
		switch m.Kind {
		case Copy:
		case Save:
			to = l.HostBlocks
		case Load:
			from = l.HostBlocks
		case CopyWindow:
			from, to = l.WindowBlocks, l.WindowBlocks
		case SaveState:
			from, to = l.Seqs, l.Snapshots
		case LoadState:
			from, to = l.Snapshots, l.Seqs
		default:
			return fmt.Errorf("%w: a move of kind %d", ErrBatch, m.Kind)
		}
		if m.From < 0 || int(m.From) >= from || m.To < 0 || int(m.To) >= to || (m.Kind == Copy || m.Kind == CopyWindow) && m.From == m.To {
			return fmt.Errorf("%w: %s of %d to %d, there are %d and %d", ErrBatch, m.Kind, m.From, m.To, from, to)
		}
	}
	return nil
}
