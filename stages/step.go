package stages

import (
	"fmt"

	"krater/kernels/device"
	"krater/stages/model"
)

// Step describes a step on the host: rows of tokens, and the work to be done with them. All ranks that
// compute the step share it. Spans cover the rows one after another: the first starts at row 0, the last
// ends at len(Tokens).
//
// A caller either describes a step in a Step of its own, and State.Fill copies it, or it fills in the
// State's own Step, and Fill checks it. Between two calls of Fill a Step does not change.
type Step struct {
	Tokens []int32 // [T] one id per row
	Spans  []Span
	// Moves are done in order on the KV cache of every group before the rows are computed.
	Moves []Move
	// AllLogits asks for the logits of every row instead of those of the spans
	// that Want them.
	AllLogits bool
	// Draws are the parameters with which an accelerator chooses the tokens itself, one for each row
	// that Spans Want. Then State.ChosenID returns the tokens, and the logits stay on the device. Draws
	// may be used only with states that Choose.
	Draws []device.Draw
	// From and Take are for a step whose tokens an accelerator is still choosing. The token of row i
	// is the one chosen for row From.Wanted[Take[i]], and Tokens[i] is ignored. The streams of both
	// steps must be in the same queue.
	From *State
	Take []int32
	// Queue is the queue of the accelerator that runs the step, below Limits.Queues.
	Queue int
	// UsesHost says that the host takes part in the middle of the step, so that it cannot be
	// repeated as a whole.
	UsesHost bool
	// Links says that the accelerator itself copies experts in the middle of the step, so that it repeats
	// only other such steps.
	Links bool
	// Watched says that a Probe sees the step. Such a step never repeats another.
	Watched bool

	// Fill derives these.
	Wanted []int32 // rows with logits, rising
	Owner  []int32 // Owner[i]: index in Spans of Wanted[i]'s sequence

	bounds Limits
	vocab  int
	single bool    // a rank computes generated rows one at a time
	draws  bool    // the rank with the head can choose tokens
	takes  bool    // the only rank can take them from another step
	blocks []int32 // arena of copied block tables
	taken  []bool  // [Seqs] slots of the spans that were checked; nil: the model keeps nothing by slot
}

// NewStep makes a step for batches within lim (checked by Limits.For). ranks are the ranks in this
// process that compute it, one after another.
func NewStep(cfg *model.Config, lim Limits, ranks ...*Rows) *Step {
	st := &Step{bounds: lim, vocab: cfg.Vocab}
	for _, r := range ranks {
		st.single = st.single || r.layout != nil
		st.draws, st.takes = st.draws || r.Choose(), len(ranks) == 1
	}
	if lim.Snapshots > 0 {
		st.taken = make([]bool, lim.Seqs)
	}
	st.Tokens = make([]int32, 0, lim.Tokens)
	st.Spans = make([]Span, 0, lim.Seqs)
	st.Draws = make([]device.Draw, 0, lim.LogitRows)
	st.Wanted = make([]int32, 0, lim.LogitRows)
	st.Owner = make([]int32, 0, lim.LogitRows)
	return st
}

// Total returns the number of rows of the step. Layers may see fewer (State.Look).
func (st *Step) Total() int { return len(st.Tokens) }

// WantedGenerated returns the number of generated rows at the start of the rows with logits.
func (st *Step) WantedGenerated() (rows int) {
	for rows < len(st.Owner) && st.Spans[st.Owner[rows]].Decode {
		rows++
	}
	return rows
}

// Reset empties the step and keeps its memory.
func (st *Step) Reset() {
	st.Tokens, st.Spans, st.Moves, st.Draws, st.Take = st.Tokens[:0], st.Spans[:0], st.Moves[:0], st.Draws[:0], st.Take[:0]
	st.Wanted, st.Owner, st.blocks = st.Wanted[:0], st.Owner[:0], st.blocks[:0]
	st.AllLogits, st.From, st.Queue, st.UsesHost, st.Links, st.Watched = false, nil, 0, false, false, false
}

// Copy makes st describe the step that b describes, block tables included.
func (st *Step) Copy(b *Step) {
	st.Reset()
	st.Tokens, st.Spans, st.Moves = append(st.Tokens, b.Tokens...), append(st.Spans, b.Spans...), append(st.Moves, b.Moves...)
	st.Draws, st.Take = append(st.Draws, b.Draws...), append(st.Take, b.Take...)
	st.AllLogits, st.From, st.Queue, st.UsesHost, st.Links, st.Watched = b.AllLogits, b.From, b.Queue, b.UsesHost, b.Links, b.Watched
	need := 0
	for i := range st.Spans {
		need += len(st.Spans[i].Blocks) + len(st.Spans[i].Windows)
	}
	if cap(st.blocks) < need {
		// Rare: tables grow by a block every BlockTokens steps, so grow ahead.
		st.blocks = make([]int32, 0, 2*need)
	}
	for i := range st.Spans {
		for _, table := range [...]*[]int32{&st.Spans[i].Blocks, &st.Spans[i].Windows} {
			from := len(st.blocks)
			st.blocks = append(st.blocks, *table...)
			*table = st.blocks[from:len(st.blocks):len(st.blocks)]
		}
	}
}

// Fill makes st a copy of b, unless b is st, checks it and derives the wanted rows. On an error
// (ErrBatch) st is empty.
func (st *Step) Fill(b *Step) error {
	if b != st {
		st.Copy(b)
	}
	err := st.check()
	if err != nil {
		st.Reset()
	}
	return err
}

func (st *Step) check() error {
	t := len(st.Tokens)
	if t < 1 || t > st.bounds.Tokens {
		return fmt.Errorf("%w: %d rows, 1 to %d fit", ErrBatch, t, st.bounds.Tokens)
	}
	if len(st.Spans) > st.bounds.Seqs {
		return fmt.Errorf("%w: %d sequences, %d fit", ErrBatch, len(st.Spans), st.bounds.Seqs)
	}
	for i, id := range st.Tokens {
		if id < 0 || int(id) >= st.vocab {
			return fmt.Errorf("%w: row %d: token %d is not in a vocabulary of %d", ErrBatch, i, id, st.vocab)
		}
	}
	if st.Queue < 0 || st.Queue >= max(1, st.bounds.Queues) {
		return fmt.Errorf("%w: queue %d of %d", ErrBatch, st.Queue, st.bounds.Queues)
	}
	if err := st.bounds.checkMoves(st.Moves); err != nil {
		return err
	}
	if err := st.checkSpans(); err != nil {
		return err
	}
	if n := len(st.Draws); n > 0 && (n != len(st.Wanted) || !st.draws) {
		return fmt.Errorf("%w: %d draws for %d rows", ErrBatch, n, len(st.Wanted))
	}
	return st.checkTake()
}

// checkTake checks the tokens that the step takes from another.
func (st *Step) checkTake() error {
	if st.From == nil {
		return nil
	}
	t, draws := len(st.Tokens), st.From.Step.Draws
	if !st.takes || len(st.Take) != t || t > st.bounds.Seqs || len(draws) == 0 {
		return fmt.Errorf("%w: tokens of another step for %d rows", ErrBatch, t)
	}
	for i, from := range st.Take {
		if int(from) >= len(draws) || from < 0 {
			return fmt.Errorf("%w: row %d takes token %d of %d", ErrBatch, i, from, len(draws))
		}
	}
	return nil
}

// checkSpans checks the spans and derives the wanted rows.
func (st *Step) checkSpans() error {
	st.Wanted, st.Owner = st.Wanted[:0], st.Owner[:0]
	clear(st.taken)
	row := 0
	for i := range st.Spans {
		sp := &st.Spans[i]
		if err := st.checkSpan(sp, row, len(st.Tokens)); err != nil {
			return fmt.Errorf("%w: span %d of sequence %d: %w", ErrBatch, i, sp.Seq, err)
		}
		if err := st.want(sp, i); err != nil {
			return err
		}
		if st.taken != nil {
			st.taken[sp.Slot] = true
		}
		row += sp.Len
	}
	if row != len(st.Tokens) {
		return fmt.Errorf("%w: spans cover %d of %d rows", ErrBatch, row, len(st.Tokens))
	}
	return nil
}

func (st *Step) checkSpan(sp *Span, row, rows int) error {
	bt := st.bounds.BlockTokens
	switch {
	case sp.Row != row:
		return fmt.Errorf("starts at row %d, expected %d", sp.Row, row)
	case sp.Len < 1 || sp.Len > rows-row:
		return fmt.Errorf("has %d rows, %d are left", sp.Len, rows-row)
	case sp.Decode && sp.Len != 1 && st.single:
		return fmt.Errorf("decodes %d rows at once, an accelerator has room for one", sp.Len)
	case sp.Pos < 0 || sp.Pos > st.bounds.Context-sp.Len:
		return fmt.Errorf("positions %d to %d exceed the context of %d", sp.Pos, sp.Pos+sp.Len-1, st.bounds.Context)
	case sp.Slot < 0 || sp.Slot >= st.bounds.Seqs:
		return fmt.Errorf("is in slot %d of %d", sp.Slot, st.bounds.Seqs)
	case st.taken != nil && st.taken[sp.Slot]:
		return fmt.Errorf("is in slot %d, as another is", sp.Slot)
	case len(sp.Blocks) < (sp.Pos+sp.Len+bt-1)/bt:
		return fmt.Errorf("%d blocks of %d tokens do not hold position %d", len(sp.Blocks), bt, sp.Pos+sp.Len-1)
	}
	if err := checkTable(sp.Blocks, st.bounds.Blocks); err != nil {
		return err
	}
	return st.checkWindows(sp)
}

func checkTable(table []int32, blocks int) error {
	for _, id := range table {
		if id < 0 || int(id) >= blocks {
			return fmt.Errorf("block %d is not one of %d", id, blocks)
		}
	}
	return nil
}

// checkWindows checks a span's table of window blocks. A span without one gets Blocks.
func (st *Step) checkWindows(sp *Span) error {
	switch lim := &st.bounds; {
	case lim.WindowBlocks == 0:
		sp.Windows = nil
		return nil
	case len(sp.Windows) == 0:
		sp.Windows = sp.Blocks
	case len(sp.Windows) < (sp.Pos+sp.Len+lim.BlockTokens-1)/lim.BlockTokens:
		return fmt.Errorf("%d window blocks of %d tokens do not hold position %d", len(sp.Windows), lim.BlockTokens, sp.Pos+sp.Len-1)
	}
	if err := checkTable(sp.Windows, st.bounds.WindowBlocks); err != nil {
		return fmt.Errorf("of the layers with a window: %w", err)
	}
	return nil
}

// want notes the rows of a span that get logits.
func (st *Step) want(sp *Span, index int) error {
	first, n := sp.Row+sp.Len-1, 1
	if st.AllLogits || sp.Every {
		first, n = sp.Row, sp.Len
	} else if !sp.Want {
		return nil
	}
	if len(st.Wanted)+n > st.bounds.LogitRows {
		return fmt.Errorf("%w: logits of more than %d rows", ErrBatch, st.bounds.LogitRows)
	}
	for i := range n {
		st.Wanted = append(st.Wanted, int32(first+i))
		st.Owner = append(st.Owner, int32(index))
	}
	return nil
}
