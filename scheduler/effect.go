package scheduler

// EffectKind selects what the driver must do.
type EffectKind uint8

const (
	// Started: the request has a slot, and its first rows are in the next batch. It comes once for each
	// request that starts, even if the request is preempted later.
	Started EffectKind = iota
	// Ended: the answer is complete, for Reason. It comes exactly once for each accepted request. Rows of
	// the request may still be in flight; their results are dropped.
	Ended
	// Released: no batch has the request any more. Its slot and its id are free, and the driver drops its
	// data of the request. It comes once for each request that has a slot when it ends, after its Ended.
	Released
	// Voided: a batch failed, and Batch, which is in flight ahead of it, is void with it: its result
	// is dropped, and its id is unknown from now on. It comes before the effects on the requests of
	// both.
	Voided
	// Preempted: the request lost its slot and its blocks to another and waits again; no batch has
	// rows of it. What was generated stands. An Ended that comes while it waits has Slot -1 and no
	// Released after it.
	Preempted
	// Resumed: a preempted request has a slot again, seldom the same, and rows in the next batch.
	Resumed
)

func (k EffectKind) String() string {
	switch k {
	case Started:
		return "started"
	case Ended:
		return "ended"
	case Released:
		return "released"
	case Voided:
		return "voided"
	case Preempted:
		return "preempted"
	case Resumed:
		return "resumed"
	}
	return "invalid"
}

// Effect is one thing the driver must carry out.
type Effect struct {
	Kind   EffectKind
	ID     uint64 // of the request; 0 for Voided
	Batch  uint64 // of Voided
	Slot   int    // below MaxSeqs; of Preempted the one lost; -1 where the request has none
	Cached int    // of Started and Resumed: tokens whose keys and values came from the cache
	Reason Reason // of Ended
	Cause  error  // of Ended with Failed: what the driver gave to Fail
}

// Effects returns what has happened since its last call, in order. Carry it out before the batch
// that Next returned with it is sent. The slice stays valid until Effects is called again.
func (c *Core) Effects() []Effect {
	out := c.effects
	c.effects, c.effectsSpare = c.effectsSpare[:0], out
	return out
}

func (c *Core) emit(k EffectKind, s *seq, why Reason, cause error) {
	c.effects = append(c.effects, Effect{Kind: k, ID: s.req.ID, Slot: s.slot, Reason: why, Cause: cause})
}
