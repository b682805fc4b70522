package actors

import (
	"errors"
	"fmt"
	"slices"

	"krater/actors/msg"
	"krater/actors/trace"
	"krater/kernels/device"
	"krater/scheduler"
	"krater/scheduler/files"
	"krater/stages"
)

// rawIDs is the first id of raw steps, apart from the core's ids.
const rawIDs = 1 << 63

// fill makes a free batch hold the core's decision.
func (n *scheduleNode) fill(d scheduler.Batch) {
	b := n.takeCredit(d.MicroBatch)
	b.Batch, b.Live, b.Rows = d, len(d.Spans), b.Rows[:0]
	step := b.Step
	step.Reset()
	step.Moves = moves(step.Moves, d.Moves)
	if d.After != 0 {
		step.From = n.inFlight(d.After).Ranks[0].State
	}
	for i := range d.Spans {
		sp := &d.Spans[i]
		r := n.slots[sp.Slot]
		if d.After != 0 {
			step.Tokens, step.Take = append(step.Tokens, 0), append(step.Take, int32(sp.From))
		} else {
			step.Tokens = append(step.Tokens, r.tokens[sp.Pos:sp.Pos+sp.Len]...)
		}
		step.Spans = append(step.Spans, stages.Span{
			Span:    device.Span{Slot: sp.Slot, Row: sp.Row, Len: sp.Len, Pos: sp.Pos, Blocks: sp.Blocks},
			Windows: sp.Windows, Seq: sp.ID, Decode: sp.Decode || sp.Recomputed, Want: sp.Last, Every: r.scores(sp),
		})
		if r.scores(sp) {
			b.Rows = r.scored(b.Rows, sp)
		}
		if sp.Last {
			b.Rows = append(b.Rows, msg.Row{Seq: sp.ID, Sampler: r.submit.Sampler})
		}
	}
	n.draws(b)
	n.note(b, d.Spans)
	if err := n.place(b); err != nil {
		n.refused(b, fmt.Errorf("batch %d: %w", d.ID, err))
		return
	}
	n.meters.step(d.Rows, d.Rows-d.Decode)
	n.filled = append(n.filled, b)
}

// note tells the trace which requests are in a batch, and decides whether the batch is part of the
// sample.
func (n *scheduleNode) note(b *msg.Batch, spans []scheduler.Span) {
	if n.trace == nil {
		return
	}
	noted, others := n.trace.Detail(b.ID)
	b.Quiet, b.Others = !noted, others
	clocked(b, noted)
	timed(b, func(rank int) bool { return noted && rank < len(n.ranks) && n.ranks[rank].times })
	n.spans = n.spans[:0]
	for i := range spans {
		sp := &spans[i]
		n.spans = append(n.spans, trace.Rider{Request: sp.ID, Rows: uint32(sp.Len), Decode: sp.Decode})
	}
	n.trace.Roster().Note(b.ID, n.spans)
}

// scores reports whether a span has rows before tokens of the prompt that are to be scored.
func (r *record) scores(sp *scheduler.Span) bool {
	return r.submit.Request.Scored && sp.Pos+1 < r.submit.Request.PromptLen
}

// scored appends the rows of a span that is scored, except for the one after which a token is
// chosen.
func (r *record) scored(rows []msg.Row, sp *scheduler.Span) []msg.Row {
	for at := sp.Pos + 1; at <= sp.Pos+sp.Len && at < len(r.tokens); at++ {
		rows = append(rows, msg.Row{Seq: sp.ID, Sampler: r.submit.Sampler, Scored: true, Given: r.tokens[at], At: at, Alternatives: r.submit.Scores})
	}
	return rows
}

// moves appends the scheduler's moves as the groups take them.
func moves(dst []stages.Move, list []scheduler.Move) []stages.Move {
	for _, m := range list {
		dst = append(dst, stages.Move{Kind: moveKinds[m.Kind], From: m.From, To: m.To})
	}
	return dst
}

var moveKinds = [...]stages.MoveKind{
	scheduler.Copy: stages.Copy, scheduler.Save: stages.Save, scheduler.Load: stages.Load,
	scheduler.SaveState: stages.SaveState, scheduler.LoadState: stages.LoadState, scheduler.CopyWindow: stages.CopyWindow,
}

// place loads a batch's step on the first rank. Without a stream of its own it waits for the
// copies, since the next actor works on another stream. With one it must not: the stream has
// them behind the batch before this one, and a wait would wait for that.
func (n *scheduleNode) place(b *msg.Batch) error {
	prepareStep(n.ranks, b)
	if n.deadline > 0 {
		b.Step.UsesHost = true // the first rank computes the head once the workers are done
	}
	b.Enter(0)
	err := fill(b.State, b.On(n.stream))
	if b.Stream != nil {
		return err
	}
	if err := n.stream.Synchronize(); err != nil { // also after a fault: the next batch overwrites the source of the copies
		panic(err)
	}
	return err
}

// prepareStep notes what the ranks need to know of a step before it begins.
func prepareStep(ranks []*rank, b *msg.Batch) {
	b.Step.Queue, b.Step.UsesHost, b.Step.Links = b.Queue, usesHost(ranks, b.Step), links(ranks, b.Step)
	for i, r := range ranks {
		b.Ranks[i].CallsHost, b.Ranks[i].Serving = r.callsHost(b.Step), false
	}
}

// fill loads a step, and returns an error where the device refuses a copy: only this batch is
// lost.
func fill(st *stages.State, s device.Stream) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("inputs: %w", files.Caught(r))
		}
	}()
	return st.Fill(s, st.Step)
}

// fillRaw makes a free batch hold the oldest raw step.
func (n *scheduleNode) fillRaw() {
	raw := n.raws[0]
	n.raws = slices.Delete(n.raws, 0, 1)
	if !n.core.Idle() {
		raw.Reply <- errors.New("a raw step needs a pipeline without requests")
		return
	}
	b := n.takeCredit(0)
	n.rawLast++
	n.raw = true
	n.core.ClearCache()
	b.Batch, b.Raw, b.Rows, b.Quiet, b.Others = scheduler.Batch{ID: rawIDs + n.rawLast}, raw, b.Rows[:0], false, 0
	clocked(b, false) // the caller of a raw step measures from outside
	timed(b, func(int) bool { return false })
	b.Step.Copy(raw.Step)
	if err := n.place(b); err != nil {
		n.refused(b, err)
		return
	}
	n.filled = append(n.filled, b)
}
