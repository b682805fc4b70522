package scheduler

import "fmt"

// Outcome is the result of a span with Last. The driver passes one for each such span to Done, in the
// batch's order, also for requests that were cancelled meanwhile.
type Outcome struct {
	ID        uint64
	NewTokens int     // tokens generated: 1 to Len after a decode span, 1 after prefill; 0 only with End
	End       Reason  // None to go on, Stop, or Failed for this sequence alone
	Tokens    []int32 // the ids, read during Done only; nil: unknown, so no block with them is cached
}

// Done reports that the pipeline completed a batch. No actor may read or write the batch's memory after
// this call. Done releases sequences that have ended; the others wait for their next batch. Sequences
// that are also in the batch ahead stay in it and are released when it returns. That batch is no longer
// ahead after this call. If Done returns ErrUnknownBatch, ErrAhead or ErrOutcome, it has changed nothing.
func (c *Core) Done(id uint64, outcomes []Outcome) error {
	f := c.flight(id)
	if f == nil {
		return fmt.Errorf("%w: %d", ErrUnknownBatch, id)
	}
	if f.After != 0 {
		return fmt.Errorf("%w: %d after %d", ErrAhead, id, f.After)
	}
	if err := f.check(outcomes); err != nil {
		return err
	}
	if a := c.aheadOf(id); a != nil {
		a.After = 0
	}
	c.settleMoves(f, true)
	for i, s := range f.seqs {
		s.inFlight--
		if s.phase == filling {
			s.flying = max(0, s.flying-f.Spans[i].Len)
		}
		switch sp := &f.Spans[i]; {
		case s.ended != None:
			c.releaseIdle(s) // its rows may not have been computed
		case sp.Last:
			c.advance(s, &outcomes[0])
		default:
			s.computed += sp.Len
			c.register(s, s.computed)
			c.passWindows(s)
			switch {
			case s.inFlight > 0: // its next chunk follows
			case s.recompute:
				c.refill(s)
			case !c.yield(s):
				c.filling.insert(s, arrivedBefore)
			}
		}
		if f.Spans[i].Last {
			outcomes = outcomes[1:]
		}
	}
	f.clear()
	return nil
}

// clear makes the record free; its buffers are used again.
func (f *flight) clear() {
	clear(f.seqs)
	clear(f.Spans)
	f.Batch = Batch{Spans: f.Spans[:0], Moves: f.Moves[:0]}
	f.seqs, f.held, f.lost, f.loads = f.seqs[:0], false, false, 0
}

// flight returns the record of a batch in flight that is not lost, or nil.
func (c *Core) flight(id uint64) *flight {
	if f := c.record(id); id != 0 && f != nil && !f.lost {
		return f
	}
	return nil
}

// check compares outcomes with the spans that want one. Those of ended requests are dropped unread;
// only their place counts.
func (f *flight) check(outcomes []Outcome) error {
	if len(outcomes) != f.Wanted {
		return fmt.Errorf("%w: batch %d wants %d, got %d", ErrOutcome, f.ID, f.Wanted, len(outcomes))
	}
	next := 0
	for i, s := range f.seqs {
		sp := &f.Spans[i]
		if f.Follows != 0 && sp.Pos > s.computed && s.ended == None && !s.recompute {
			return fmt.Errorf("%w: %d has rows behind %d others of request %d", ErrAhead, f.ID, sp.Pos-s.computed, sp.ID)
		}
		if !sp.Last {
			continue
		}
		o := &outcomes[next]
		next++
		if o.ID != sp.ID {
			return fmt.Errorf("%w: batch %d wants request %d, got %d", ErrOutcome, f.ID, sp.ID, o.ID)
		}
		if s.ended != None {
			continue
		}
		lo, hi := 1, 1
		if sp.Decode {
			hi = sp.Len
		}
		if o.End != None {
			lo = 0
		}
		if o.NewTokens < lo || o.NewTokens > min(hi, s.req.MaxNew-s.generated()) {
			return fmt.Errorf("%w: batch %d, request %d made %d tokens", ErrOutcome, f.ID, sp.ID, o.NewTokens)
		}
		if o.Tokens != nil && len(o.Tokens) != o.NewTokens {
			return fmt.Errorf("%w: batch %d, request %d made %d tokens, %d ids", ErrOutcome, f.ID, sp.ID, o.NewTokens, len(o.Tokens))
		}
		if o.End != None && o.End != Stop && o.End != Failed {
			return fmt.Errorf("%w: batch %d, request %d ends with %v", ErrOutcome, f.ID, sp.ID, o.End)
		}
	}
	return nil
}

// advance takes a sampled sequence out of its batch: to its end, or on to decode, where all tokens
// but the newest are in the cache. A sequence that is in the batch ahead has its next row there.
func (c *Core) advance(s *seq, o *Outcome) {
	c.noteTokens(s, o)
	s.known += o.NewTokens
	s.computed = s.known - 1
	if o.End != Failed {
		c.register(s, s.computed)
		c.passWindows(s)
		if s.phase == filling && s.generated() == o.NewTokens {
			c.notePromptEnd(s)
		}
	}
	c.stats.NewTokens += uint64(o.NewTokens)
	why := o.End
	if why == None && s.generated() == s.req.MaxNew {
		why = Length
	}
	if why != None {
		if why != Failed {
			c.keepPart(s)
		}
		c.conclude(s, why, nil)
		c.releaseIdle(s)
		return
	}
	if s.recompute {
		if s.inFlight == 0 {
			c.refill(s)
		}
		return
	}
	if s.phase == filling {
		c.setPhase(s, decoding)
		c.endWaits(s)
	}
	if s.inFlight > 0 || c.yield(s) {
		return
	}
	s.since = c.batches
	c.decoding.append(s)
}

// noteTokens notes the ids of new tokens. Once some are missing, none after them are of use.
func (c *Core) noteTokens(s *seq, o *Outcome) {
	if s.reuses && len(o.Tokens) == o.NewTokens && s.knownIDs() == s.known {
		for _, id := range o.Tokens {
			if c.cfg.Classes {
				id = ^id // never equal to a token of a prompt
			}
			s.answer = append(s.answer, id)
		}
	}
}

// yield preempts a sequence that is back and in no list, if that is still necessary.
func (c *Core) yield(s *seq) bool {
	if !s.yields {
		return false
	}
	s.yields = false
	if c.short != nil && outranks(c.short, s) || c.mustYield(s) {
		c.requeue(s)
		return true
	}
	return false
}
