package scheduler

import "fmt"

// Fail reports that a batch is lost, while the KV cache of the other sequences is whole. With retry
// its sequences are computed again, in their slots. Prompt and generated tokens that are in the cache,
// to which the lost batch has not written, are reused, and the others are computed. A sequence that
// was retried MaxRetries times fails. Without retry all sequences fail with this cause. No token of the
// batch may have reached a client or a sampler's history: the retry makes it again. If Fail returns
// ErrUnknownBatch, it has changed nothing.
//
// A device may still work on a lost batch, or carry out its Moves; so may an actor that does not
// know that it is lost. So it keeps its place in its micro-batch, its sequences their blocks and
// slots, and its moves what they read and write, until Gone. Its id is unknown from now on but to
// Gone.
//
// A batch that is ahead of the lost one is lost with it, which a Voided effect tells: its sequences
// are retried or fail once. So is a batch that follows it (Config.Follow). A lost batch that is itself ahead leaves the one before it in flight:
// that one's tokens count, and the sequences are computed again only when both are back.
func (c *Core) Fail(id uint64, cause error, retry bool) error {
	f := c.flight(id)
	if f == nil {
		return fmt.Errorf("%w: %d", ErrUnknownBatch, id)
	}
	c.lose(f)
	if a := c.aheadOf(id); a != nil && !a.lost {
		c.lose(a)
		c.effects = append(c.effects, Effect{Kind: Voided, Batch: a.ID, Slot: -1})
	}
	c.again(f, cause, retry) // the sequences of the batch ahead are among them
	c.loseFollowers(cause)
	return nil
}

// again has the sequences of a lost batch computed again, or ends them with the cause.
func (c *Core) again(f *flight, cause error, retry bool) {
	for _, s := range f.seqs {
		switch {
		case s.ended != None:
		case retry && c.retried(s):
			s.recompute = true
		default:
			c.conclude(s, Failed, cause)
		}
	}
}

// lose marks a batch as lost: nothing of it counts any more.
func (c *Core) lose(f *flight) {
	f.lost = true
	c.stats.FailedBatches++
}

// Gone reports that no actor and no device works on a lost batch any more: nothing that it was to
// write changes from now on. Its sequences are released or computed again, unless another batch has
// them. ErrUnknownBatch, for one that is not lost, changes nothing.
func (c *Core) Gone(id uint64) error {
	f := c.record(id)
	if id == 0 || f == nil || !f.lost {
		return fmt.Errorf("%w: %d", ErrUnknownBatch, id)
	}
	if a := c.aheadOf(id); a != nil {
		a.After = 0
	}
	c.settleMoves(f, false)
	for i, s := range f.seqs {
		switch s.inFlight--; {
		case s.inFlight > 0:
			if c.cfg.Follow && f.Spans[i].Last { // the others have earlier rows of its prompt
				c.leaveMicro(s)
			}
		case s.ended != None:
			c.release(s)
		default:
			c.refill(s)
		}
	}
	f.clear()
	return nil
}

// retried counts a retry, if there is one left. A sequence that still waits for its batch to come
// back is not counted twice.
func (c *Core) retried(s *seq) bool {
	if s.recompute {
		return true
	}
	if s.retries >= c.cfg.MaxRetries {
		return false
	}
	s.retries++
	c.stats.Retries++
	return true
}

// refill sends an idle sequence back to prefill, to compute all its known tokens again.
func (c *Core) refill(s *seq) {
	s.recompute, s.yields, s.overShare = false, false, false
	c.leaveMicro(s)
	c.setPhase(s, filling)
	c.drop(s)
	c.filling.insert(s, arrivedBefore)
}
