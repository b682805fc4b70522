// Package routing keeps what routers chose in a file, and replays it against policies: how many of the
// experts that batches read would lie in a small fast memory.
package routing

import (
	"errors"
	"fmt"

	"krater/scheduler/heat"
)

// Errors of traces.
var (
	// ErrFormat: the file is not a trace of this version.
	ErrFormat = errors.New("no recording of router choices")
	// ErrDamaged: a part of the file is cut off or changed. What was read before is right.
	ErrDamaged = errors.New("the recording of router choices is damaged")
	// ErrBatch: a batch that the model cannot have.
	ErrBatch = errors.New("impossible batch of router choices")
)

// Header says whose choices a trace has.
type Header struct {
	Identity heat.Identity
	heat.Shape
}

// check refuses shapes that no model has, and those whose rows would not fit into a block.
func (h *Header) check() error {
	if _, err := heat.New(h.Identity, h.Shape); err != nil {
		return err
	}
	if n := h.row(); n > rowMost {
		return fmt.Errorf("%w: %d choices of a row", heat.ErrShape, n)
	}
	return nil
}

// row returns the number of choices of one row.
func (h *Header) row() int { return len(h.Layers) * h.TopK }

// Batch is the choices for the rows of one step that were kept.
type Batch struct {
	Decode bool     // the rows are generated tokens, one of each sequence
	Rows   int      // > 0
	IDs    []uint16 // [rows, layers with experts, top_k]
}

// checkBatch compares b with the shape.
func (h *Header) checkBatch(b *Batch) error {
	if b.Rows < 1 || len(b.IDs) != b.Rows*h.row() {
		return fmt.Errorf("%w: %d choices of %d rows, %d each", ErrBatch, len(b.IDs), b.Rows, h.row())
	}
	for _, e := range b.IDs {
		if int(e) >= h.Experts {
			return fmt.Errorf("%w: expert %d of %d", ErrBatch, e, h.Experts)
		}
	}
	return nil
}
