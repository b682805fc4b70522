package stages

import "fmt"

// MoveKind is what a Move does.
type MoveKind uint8

const (
	Copy MoveKind = iota // a block of the KV cache to another
	Save                 // a block to one in host memory
	Load                 // one in host memory to a block
)

func (k MoveKind) String() string {
	switch k {
	case Copy:
		return "copy"
	case Save:
		return "save"
	case Load:
		return "load"
	}
	return "invalid"
}

// Move takes a block from one place to another, in every layer's cache. Nothing else may
// write From or use To until the batch that carries it is back.
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
		default:
			return fmt.Errorf("%w: a move of kind %d", ErrBatch, m.Kind)
		}
		if m.From < 0 || int(m.From) >= from || m.To < 0 || int(m.To) >= to || m.Kind == Copy && m.From == m.To {
			return fmt.Errorf("%w: %s of block %d to %d, there are %d and %d", ErrBatch, m.Kind, m.From, m.To, from, to)
		}
	}
	return nil
}
