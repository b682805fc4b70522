package stages

import (
	"fmt"

	"krater/kernels/device"
	"krater/stages/model"
)

// Step is the host's side of a step: a Batch that was checked, and what follows from it.
// All ranks that compute the step share it. Nothing in it changes from Fill to Fill.
type Step struct {
	Batch          // a copy, block tables included
	Wanted []int32 // rows with logits, rising
	Owner  []int32 // Owner[i]: index in Spans of Wanted[i]'s sequence

	bounds Limits
	vocab  int
	single bool    // a rank computes generated rows one at a time
	draws  bool    // the device with the head can choose tokens
	takes  bool    // the only rank can take them from another step
	blocks []int32 // arena of the block tables
}

// NewStep makes a step for batches within lim (checked by Limits.For) that these ranks compute
// one after another; those elsewhere are none of them.
func NewStep(cfg *model.Config, lim Limits, ranks ...*Rows) *Step {
	st := &Step{bounds: lim, vocab: cfg.Vocab}
	for _, r := range ranks {
		st.single = st.single || r.layout != nil
		st.draws, st.takes = r.Choose(), len(ranks) == 1
	}
	st.Tokens = make([]int32, 0, lim.Tokens)
	st.Spans = make([]Span, 0, lim.Seqs)
	st.Draws = make([]device.Draw, 0, lim.LogitRows)
	st.Wanted = make([]int32, 0, lim.LogitRows)
	st.Owner = make([]int32, 0, lim.LogitRows)
	return st
}

// Total is the rows of the step, however many of them layers see.
func (st *Step) Total() int { return len(st.Tokens) }

// WantedGenerated is how many of the rows with logits are generated ones, as far as they come
// first.
func (st *Step) WantedGenerated() (rows int) {
	for rows < len(st.Owner) && st.Spans[st.Owner[rows]].Decode {
		rows++
	}
	return rows
}

// Fill makes st a copy of b: it checks b and derives the wanted rows. On an error (ErrBatch)
// the former batch is gone and st has no rows.
func (st *Step) Fill(b *Batch) error {
	err := st.fill(b)
	if err != nil {
		st.reset(&Batch{})
	}
	return err
}

// reset takes b but for its spans, into the memory that st has.
func (st *Step) reset(b *Batch) {
	tokens, moves, draws, take := append(st.Tokens[:0], b.Tokens...), append(st.Moves[:0], b.Moves...), append(st.Draws[:0], b.Draws...), append(st.Take[:0], b.Take...)
	spans := st.Spans[:0]
	st.Batch = *b
	st.Tokens, st.Spans, st.Moves, st.Draws, st.Take = tokens, spans, moves, draws, take
	st.Wanted, st.Owner, st.blocks = st.Wanted[:0], st.Owner[:0], st.blocks[:0]
}

func (st *Step) fill(b *Batch) error {
	t := len(b.Tokens)
	if t < 1 || t > st.bounds.Tokens {
		return fmt.Errorf("%w: %d rows, 1 to %d fit", ErrBatch, t, st.bounds.Tokens)
	}
	if len(b.Spans) > st.bounds.Seqs {
		return fmt.Errorf("%w: %d sequences, %d fit", ErrBatch, len(b.Spans), st.bounds.Seqs)
	}
	for i, id := range b.Tokens {
		if id < 0 || int(id) >= st.vocab {
			return fmt.Errorf("%w: row %d: token %d is not in a vocabulary of %d", ErrBatch, i, id, st.vocab)
		}
	}
	if b.Queue < 0 || b.Queue >= max(1, st.bounds.Queues) {
		return fmt.Errorf("%w: queue %d of %d", ErrBatch, b.Queue, st.bounds.Queues)
	}
	if err := st.bounds.checkMoves(b.Moves); err != nil {
		return err
	}
	st.reset(b)
	if err := st.fillSpans(b); err != nil {
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

// fillSpans checks and copies the spans and derives the wanted rows.
func (st *Step) fillSpans(b *Batch) error {
	need := 0
	for i := range b.Spans {
		need += len(b.Spans[i].Blocks)
	}
	if cap(st.blocks) < need {
		// Rare: tables grow by a block every BlockTokens steps, so grow ahead.
		st.blocks = make([]int32, 0, 2*need)
	}
	row := 0
	for i := range b.Spans {
		sp := b.Spans[i]
		if err := st.checkSpan(&sp, row, len(b.Tokens)); err != nil {
			return fmt.Errorf("%w: span %d of sequence %d: %w", ErrBatch, i, sp.Seq, err)
		}
		from := len(st.blocks)
		st.blocks = append(st.blocks, sp.Blocks...)
		sp.Blocks = st.blocks[from:len(st.blocks):len(st.blocks)]
		st.Spans = append(st.Spans, sp)
		if err := st.want(&sp, i); err != nil {
			return err
		}
		row += sp.Len
	}
	if row != len(b.Tokens) {
		return fmt.Errorf("%w: spans cover %d of %d rows", ErrBatch, row, len(b.Tokens))
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
	case len(sp.Blocks) < (sp.Pos+sp.Len+bt-1)/bt:
		return fmt.Errorf("%d blocks of %d tokens do not hold position %d", len(sp.Blocks), bt, sp.Pos+sp.Len-1)
	}
	for _, id := range sp.Blocks {
		if id < 0 || int(id) >= st.bounds.Blocks {
			return fmt.Errorf("block %d is not one of %d", id, st.bounds.Blocks)
		}
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
