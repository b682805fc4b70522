package stages

import (
	"fmt"
	"math"

	"krater/kernels/tensor"
	"krater/stages/model"
)

// Limits bounds the size of a step. States, scratch memory, rope tables and KV
// caches are allocated for it once.
type Limits struct {
	Tokens int // rows of a batch
	// Window is the number of rows that layers compute at once; 0: all of a batch. A larger batch
	// goes through the layers in pieces: State.Look.
	Window      int
	Seqs        int // spans of a batch
	LogitRows   int // rows of logits of a batch; 0: Seqs
	Blocks      int // blocks of the KV cache
	BlockTokens int // tokens of a block
	HostBlocks  int // blocks in host memory, for Save and Load
	Context     int // positions of a sequence; 0: as many as model and cache allow
	// Snapshots is the number of places for copies of sequences' states, taken at ends of blocks so that
	// other sequences can continue from there; 0: Seqs. A model whose state is all in blocks has none.
	Snapshots int
	// WindowBlocks is the number of window blocks, for the layers that see only the newest tokens. If
	// it is 0 or more than Blocks, these layers keep the rows of all tokens, in Blocks.
	WindowBlocks int
	// QuantGroup is the number of columns that share a scale if rows of H are quantised; 0:
	// no layer is kept as integers.
	QuantGroup int
	// Queues is the number of batches that an accelerator may compute at the same time; 0: 1. Batches of
	// one queue (Step.Queue) run one after another.
	Queues int

	// ChosenRow is the size in bytes of the widest row of state that is Chosen (model.State), if such rows are in host memory
	// and an accelerator reads the chosen ones from there; 0: they are in the accelerator's memory.
	ChosenRow int

	sees int // the most tokens that a layer with a window sees; 0 if WindowBlocks is 0
}

// For returns l with the defaults for a model, or an error if a limit is impossible.
func (l Limits) For(cfg *model.Config) (Limits, error) {
	if l.Window < 0 || l.Tokens < 1 || l.Seqs < 1 || l.Blocks < 1 || l.BlockTokens < 1 || l.LogitRows < 0 || l.Context < 0 || l.QuantGroup < 0 || l.Queues < 0 || l.HostBlocks < 0 || l.Snapshots < 0 || l.WindowBlocks < 0 {
		return l, fmt.Errorf("%w: tokens %d, window %d, seqs %d, blocks %d, block tokens %d, logit rows %d, context %d",
			ErrLimits, l.Tokens, l.Window, l.Seqs, l.Blocks, l.BlockTokens, l.LogitRows, l.Context)
	}
	// Slots are int32.
	for _, n := range []int{l.Blocks, l.HostBlocks, l.WindowBlocks} {
		if n > math.MaxInt32/l.BlockTokens {
			return l, fmt.Errorf("%w: %d blocks of %d tokens", ErrLimits, n, l.BlockTokens)
		}
	}
	if l.Window == 0 || l.Window > l.Tokens {
		l.Window = l.Tokens
	}
	l.Queues = max(1, l.Queues)
	if l.LogitRows == 0 {
		l.LogitRows = min(l.Seqs, l.Tokens)
	}
	switch {
	case cfg.SequenceBytes(tensor.F32) == 0:
		l.Snapshots = 0
	case l.Snapshots == 0:
		l.Snapshots = max(2, l.Seqs)
	}
	if l.sees = cfg.Window(); l.sees == 0 || l.WindowBlocks == 0 || l.WindowBlocks > l.Blocks {
		l.WindowBlocks, l.sees = 0, 0
	}
	if l.Context == 0 || l.Context > cfg.MaxContext {
		l.Context = cfg.MaxContext
	}
	l.Context = min(l.Context, l.Blocks*l.BlockTokens)
	if l.WindowBlocks > 0 && l.WindowRows(1) < 1 {
		return l, fmt.Errorf("%w: %d blocks of %d tokens where layers see %d", ErrLimits, l.WindowBlocks, l.BlockTokens, l.sees)
	}
	if l.Context < 1 {
		return l, fmt.Errorf("%w: context %d", ErrLimits, l.Context)
	}
	return l, nil
}

// LayerRows returns the most rows that layers see at once.
func (l Limits) LayerRows() int {
	if l.Window == 0 {
		return l.Tokens
	}
	return min(l.Window, l.Tokens)
}

// windows returns the number of pieces in which layers see the given number of rows.
func (l Limits) windows(rows int) int { return (rows + l.LayerRows() - 1) / l.LayerRows() }

// Slots returns the number of rows of a layer's KV cache.
func (l Limits) Slots() int { return l.Blocks * l.BlockTokens }

// WindowSlots returns the number of rows of the KV cache of a layer with a window.
func (l Limits) WindowSlots() int {
	if l.WindowBlocks == 0 {
		return l.Slots()
	}
	return l.WindowBlocks * l.BlockTokens
}

// WindowRows returns the most rows of a sequence in a batch if the sequence uses one of the given
// number of equal parts of the window blocks as a ring.
func (l Limits) WindowRows(parts int) int {
	if l.WindowBlocks == 0 {
		return l.Tokens
	}
	return (l.WindowBlocks/parts-1)*l.BlockTokens - (l.sees - 1)
}
