package stages

import (
	"fmt"

	"krater/kernels/device"
)

// Fill makes st hold the batch b: it checks b, computes positions and KV slots
// and copies the indices to the device through s. b is not kept, b.From must not be
// filled again before s has submitted the step. On an error
// (ErrBatch) the state's former batch is gone and nothing runs.
func (st *State) Fill(s device.Stream, b *Batch) error {
	t := len(b.Tokens)
	if t < 1 || t > st.lim.Tokens {
		return fmt.Errorf("%w: %d rows, 1 to %d fit", ErrBatch, t, st.lim.Tokens)
	}
	if len(b.Spans) > st.lim.Seqs {
		return fmt.Errorf("%w: %d sequences, %d fit", ErrBatch, len(b.Spans), st.lim.Seqs)
	}
	for i, id := range b.Tokens {
		if id < 0 || int(id) >= st.cfg.Vocab {
			return fmt.Errorf("%w: row %d: token %d is not in a vocabulary of %d", ErrBatch, i, id, st.cfg.Vocab)
		}
	}
	if b.Lane < 0 || b.Lane >= max(1, st.lim.Lanes) {
		return fmt.Errorf("%w: lane %d of %d", ErrBatch, b.Lane, st.lim.Lanes)
	}
	st.T, st.Pending, st.All, st.Lane = t, false, b.AllLogits, b.Lane
	st.Spans, st.Prefill, st.Decode = st.Spans[:0], st.Prefill[:0], st.Decode[:0]
	st.Wanted, st.Owner, st.blocks = st.Wanted[:0], st.Owner[:0], st.blocks[:0]
	st.Moves = append(st.Moves[:0], b.Moves...)
	st.draws, st.changed = st.draws[:0], false
	st.inputs.begin(t)
	copy(st.inputs.tokens, b.Tokens)
	if err := st.fillRows(s, b); err != nil {
		st.T = 0
		return err
	}
	st.view()
	st.sendInputs(s, b)
	st.repeated = false
	if r, ok := s.(device.Repeater); ok {
		st.repeated = r.Repeat(st.stepKey(b))
	}
	if !st.repeated {
		st.takeTokens(s, b)
	}
	return nil
}

// fillRows copies and checks what belongs to b's rows.
func (st *State) fillRows(s device.Stream, b *Batch) error {
	if err := st.lim.checkMoves(b.Moves); err != nil {
		return err
	}
	if err := st.fillSpans(b); err != nil {
		return err
	}
	if n := len(b.Draws); n > 0 {
		if n != len(st.Wanted) || !st.Choose() {
			return fmt.Errorf("%w: %d draws for %d rows", ErrBatch, n, len(st.Wanted))
		}
		st.draws = append(st.draws, b.Draws...)
		if err := st.checkChanges(); err != nil {
			return err
		}
	}
	return st.checkTake(s, b)
}

// stepKey tells apart steps of different work, 0 for one that has prompts, moves blocks, is looked at, has
// the host take part, or is taken in pieces, whose tables of spans lie where the former ones
// end.
func (st *State) stepKey(b *Batch) uint64 {
	if b.Watched || b.Halts || len(st.Moves) > 0 || len(st.Prefill) > 0 || st.All || st.layout == nil || st.Windows() > 1 {
		return 0
	}
	const prime = 0x100000001b3
	key, from, changed := uint64(14695981039346656037), uint64(0), uint64(0)
	if b.From != nil {
		from = b.From.id
	}
	if st.changed {
		changed = 1
	}
	for _, v := range []uint64{uint64(st.T), uint64(len(st.Wanted)), uint64(len(st.draws)), changed, from, st.layout.StepKey(st.Decode)} {
		key = (key ^ v) * prime
	}
	return key | 1
}

// Repeated reports whether the stream given to Fill has done the whole step by itself:
// embed and groups are not to run then, and head knows.
func (st *State) Repeated() bool { return st.repeated }

// fillSpans checks and copies the spans and derives positions, slots and wanted
// rows.
func (st *State) fillSpans(b *Batch) error {
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
		if sp.Decode {
			st.Decode = append(st.Decode, sp.Span)
		} else {
			st.Prefill = append(st.Prefill, sp.Span)
		}
		bt := st.lim.BlockTokens
		for j := range sp.Len {
			p := sp.Pos + j
			st.inputs.pos[row+j] = int32(p)
			st.inputs.slots[row+j] = sp.Blocks[p/bt]*int32(bt) + int32(p%bt)
		}
		if err := st.want(&sp, i, b.AllLogits); err != nil {
			return err
		}
		row += sp.Len
	}
	if row != len(b.Tokens) {
		return fmt.Errorf("%w: spans cover %d of %d rows", ErrBatch, row, len(b.Tokens))
	}
	return nil
}

func (st *State) checkSpan(sp *Span, row, rows int) error {
	bt := st.lim.BlockTokens
	switch {
	case sp.Row != row:
		return fmt.Errorf("starts at row %d, expected %d", sp.Row, row)
	case sp.Len < 1 || sp.Len > rows-row:
		return fmt.Errorf("has %d rows, %d are left", sp.Len, rows-row)
	case sp.Decode && sp.Len != 1 && st.layout != nil:
		return fmt.Errorf("decodes %d rows at once, an accelerator has room for one", sp.Len)
	case sp.Pos < 0 || sp.Pos > st.lim.Context-sp.Len:
		return fmt.Errorf("positions %d to %d exceed the context of %d", sp.Pos, sp.Pos+sp.Len-1, st.lim.Context)
	case len(sp.Blocks) < (sp.Pos+sp.Len+bt-1)/bt:
		return fmt.Errorf("%d blocks of %d tokens do not hold position %d", len(sp.Blocks), bt, sp.Pos+sp.Len-1)
	}
	for _, id := range sp.Blocks {
		if id < 0 || int(id) >= st.lim.Blocks {
			return fmt.Errorf("block %d is not one of %d", id, st.lim.Blocks)
		}
	}
	return nil
}

// want notes the rows of a span that get logits.
func (st *State) want(sp *Span, index int, all bool) error {
	first, n := sp.Row+sp.Len-1, 1
	if all || sp.Every {
		first, n = sp.Row, sp.Len
	} else if !sp.Want {
		return nil
	}
	if len(st.Wanted)+n > st.lim.LogitRows {
		return fmt.Errorf("%w: logits of more than %d rows", ErrBatch, st.lim.LogitRows)
	}
	for i := range n {
		st.Wanted = append(st.Wanted, int32(first+i))
		st.Owner = append(st.Owner, int32(index))
	}
	return nil
}

// view cuts the matrices to the batch's rows.
func (st *State) view() {
	t, n, f := st.T, len(st.Wanted), &st.full
	st.first = 0
	st.Final = f.final.RowRange(0, n)
	st.Picked = st.Final
	if !f.picked.Zero() {
		st.Picked = f.picked.RowRange(0, n)
	}
	st.Hidden = f.hidden.RowRange(0, t)
	st.Normed = f.normed.RowRange(0, t)
	st.Delta = f.delta.RowRange(0, t)
	st.Input, st.Output = NewInput(st.Normed, st.normed), NewInput(st.Final, st.final)
	st.Logits = f.logits.RowRange(0, n)
	if !f.shared.Zero() {
		st.Shared = f.shared.RowRange(0, t)
	}
	if !f.expertOut.Zero() {
		st.ExpertOut = f.expertOut.RowRange(0, t*f.routerIDs.Cols)
		st.RouterLogits = f.routerLogits.RowRange(0, t)
		st.RouterIDs = f.routerIDs.RowRange(0, t)
		st.RouterWeights = f.routerWeights.RowRange(0, t)
	}
}
