// Package drive feeds token sequences through anything that runs batches, one batch at a
// time. It has teacher forcing and greedy continuation, with prompt chunks and several
// sequences together. It is the host side of comparisons, perplexity and benchmarks;
// serving has a scheduler instead.
package drive

import (
	"errors"
	"fmt"
	"slices"

	"krater/kernels/device"
	"krater/stages"
)

// Runner runs batches: the stages called directly, or a pipeline of actors.
type Runner interface {
	Limits() stages.Limits
	// Step runs one batch to its end and calls read with the result; the state
	// is valid during the call. probe may be nil.
	Step(b *stages.Step, probe stages.Probe, read func(*stages.State) error) error
}

// Sequence is a text that a Runner continues. The caller sets Prompt, New
// and perhaps See and Stop.
type Sequence struct {
	Prompt []int32
	New    int     // tokens to append greedily
	Stop   []int32 // ids that end the continuation; the id is kept
	Given  []int32 // the first tokens of the continuation, whatever is chosen
	All    bool    // See gets every position, not only those that predict a new token
	// See, if set, gets the logits [V] after the token at pos, nil where the device chooses.
	// logits is valid during the call.
	See func(pos int, logits []float32)
	// Out is the continuation.
	Out []int32

	pos     int     // tokens already in the cache
	blocks  []int32 // block table
	windows []int32 // block table of the layers with a window, if there are window blocks
	done    bool
}

// Options of a run.
type Options struct {
	Chunk int // prompt rows of a sequence in one batch; 0: as many as fit
	Probe stages.Probe
	// Draws has the device choose the tokens, where it can: logits stay there.
	Draws bool
}

// ErrStuck: a sequence cannot go on within the runner's limits.
var ErrStuck = errors.New("drive: does not fit")

// Run takes all sequences to their end. They share every batch: a sequence adds
// its next chunk of prompt, or the token it generated last. The id of sequence i
// in a batch is i. Ties between logits go to the lower id.
func Run(r Runner, seqs []*Sequence, o Options) error {
	lim := r.Limits()
	if err := place(lim, seqs); err != nil {
		return err
	}
	var b stages.Step
	read := func(st *stages.State) error { return collect(st, seqs) }
	for fillBatch(&b, lim, seqs, o.Chunk) {
		b.Draws = b.Draws[:0]
		for i := range b.Spans {
			if o.Draws && b.Spans[i].Want {
				b.Draws = append(b.Draws, device.Draw{})
			}
		}
		if err := r.Step(&b, o.Probe, read); err != nil {
			return err
		}
		for i := range b.Spans {
			seqs[b.Spans[i].Seq].pos += b.Spans[i].Len
		}
	}
	return nil
}

// place gives every sequence the KV blocks of its whole length.
func place(lim stages.Limits, seqs []*Sequence) error {
	if len(seqs) > lim.Seqs || len(seqs) > lim.Tokens || len(seqs) > lim.LogitRows {
		return fmt.Errorf("%w: %d sequences, limits %+v", ErrStuck, len(seqs), lim)
	}
	if lim.WindowRows(max(1, len(seqs))) < 1 {
		return fmt.Errorf("%w: %d sequences have %d window blocks", ErrStuck, len(seqs), lim.WindowBlocks)
	}
	next := 0
	for i, q := range seqs {
		if len(q.Prompt) == 0 {
			return fmt.Errorf("%w: sequence %d is empty", ErrStuck, i)
		}
		// The last new token is not fed back.
		length := len(q.Prompt) + max(0, q.New-1)
		n := (length + lim.BlockTokens - 1) / lim.BlockTokens
		if length > lim.Context || n > lim.Blocks-next {
			return fmt.Errorf("%w: sequence %d needs %d positions (context %d) and %d KV blocks (%d left)",
				ErrStuck, i, length, lim.Context, n, lim.Blocks-next)
		}
		q.pos, q.done, q.Out, q.blocks = 0, false, q.Out[:0], q.blocks[:0]
		for range n {
			// From the end, so that no block table is the identity.
			q.blocks = append(q.blocks, int32(lim.Blocks-1-next))
			next++
		}
		q.ring(lim, i, len(seqs))
	}
	return nil
}

// ring lets sequence i of n use its part of the window blocks in turn.
func (q *Sequence) ring(lim stages.Limits, i, n int) {
	q.windows = q.windows[:0]
	each := lim.WindowBlocks / n
	for j := 0; each > 0 && j < len(q.blocks); j++ {
		q.windows = append(q.windows, int32(i*each+j%each))
	}
}

// fillBatch makes the next batch; false when all is done.
func fillBatch(b *stages.Step, lim stages.Limits, seqs []*Sequence, chunk int) bool {
	b.Tokens, b.Spans, b.AllLogits = b.Tokens[:0], b.Spans[:0], false
	rows := lim.Tokens
	for _, q := range seqs {
		if !q.done && q.All && q.pos < len(q.Prompt) {
			b.AllLogits = true
			rows = min(rows, lim.LogitRows)
		}
	}
	live := 0
	for _, q := range seqs {
		if !q.done {
			live++
		}
	}
	for i, q := range seqs {
		if q.done {
			continue
		}
		live--
		sp := stages.Span{Seq: uint64(i), Windows: q.windows, Span: device.Span{Slot: i, Row: len(b.Tokens), Len: 1, Pos: q.pos, Blocks: q.blocks}}
		if q.pos < len(q.Prompt) {
			// Every sequence behind this one keeps at least a row.
			sp.Len = min(len(q.Prompt)-q.pos, rows-len(b.Tokens)-live)
			if chunk > 0 {
				sp.Len = min(sp.Len, chunk)
			}
			sp.Len = min(sp.Len, lim.WindowRows(len(seqs)))
			sp.Want = q.All || q.pos+sp.Len == len(q.Prompt)
			b.Tokens = append(b.Tokens, q.Prompt[q.pos:q.pos+sp.Len]...)
		} else {
			sp.Decode, sp.Want = true, true
			b.Tokens = append(b.Tokens, q.Out[len(q.Out)-1])
		}
		b.Spans = append(b.Spans, sp)
	}
	return len(b.Spans) > 0
}

// collect reads the logits of a step and chooses the next tokens.
func collect(st *stages.State, seqs []*Sequence) error {
	if len(st.Wanted) != st.Logits.Rows { // on a device that chooses they are there, too
		return fmt.Errorf("drive: %d rows of logits for %d wanted", st.Logits.Rows, len(st.Wanted))
	}
	for i, row := range st.Wanted {
		sp := &st.Spans[st.Owner[i]]
		q := seqs[sp.Seq]
		pos := sp.Pos + int(row) - sp.Row
		id, chosen := st.ChosenID(i)
		var logits []float32
		if !chosen {
			logits = st.LogitRow(i)
		}
		last := pos >= len(q.Prompt)-1
		if q.See != nil && (last || q.All) {
			q.See(pos, logits)
		}
		if !last {
			continue
		}
		if len(q.Out) < q.New {
			if !chosen {
				id = Argmax(logits)
			}
			if n := len(q.Out); n < len(q.Given) {
				id = q.Given[n]
			}
			q.Out = append(q.Out, id)
		}
		if n := len(q.Out); n >= q.New || slices.Contains(q.Stop, q.Out[n-1]) {
			q.done = true
		}
	}
	// A prompt that wants no token is done with its last row, wanted or not.
	for i := range st.Spans {
		sp := &st.Spans[i]
		if q := seqs[sp.Seq]; q.New == 0 && sp.Pos+sp.Len >= len(q.Prompt) {
			q.done = true
		}
	}
	return nil
}

// Argmax returns the index of the largest logit, the lowest of equal ones.
func Argmax(logits []float32) int32 {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	return int32(best)
}
