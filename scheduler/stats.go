package scheduler

// Stats is a snapshot. Gauges describe the moment, counters run from New on.
type Stats struct {
	// Gauges.
	Waiting     int // preempted ones too
	Prefilling  int // running, prompt not complete; in flight or idle
	Decoding    int // running, in decode; in flight or idle
	Ending      int // ended, its batches not yet back
	InFlight    int // batches, lost ones too until they are gone
	BlocksUsed  int // held by sequences
	BlocksTotal int
	// BlocksCached are in the pool, held by no sequence and of use to the next with the same
	// prefix: free, if need be.
	BlocksCached   int
	RAMUsed        int // places in host memory
	RAMTotal       int
	SnapshotsUsed  int
	SnapshotsTotal int

	// Counters.
	Accepted      uint64
	Batches       uint64
	Ahead         uint64 // of Batches, those made ahead of another
	FailedBatches uint64
	Retries       uint64 // sequences sent back to prefill
	Preemptions   uint64
	PrefixQueries uint64                 // tokens of prompts that started and were looked up; not when they resume
	PrefixHits    uint64                 // of these, found
	Moves         [len(moveNames)]uint64 // by MoveKind
	PrefillRows   uint64                 // recomputed ones too
	DecodeRows    uint64
	NewTokens     uint64          // generated
	Ended         [reasons]uint64 // requests by Reason
}

// Running returns the number of requests that have started and not ended.
func (s *Stats) Running() int { return s.Prefilling + s.Decoding }

// Prefixes returns the digests of prefixes that requests of a domain find in the cache: see kvblocks.Pool.Digests.
func (c *Core) Prefixes(domain [32]byte) []uint64 { return c.pool.Digests(domain) }

// Stats returns the figures of this moment.
func (c *Core) Stats() Stats {
	s := c.stats
	s.Waiting, s.Prefilling, s.Decoding = c.count[waiting], c.count[filling], c.count[decoding]
	s.Ending = len(c.byID) - s.Waiting - s.Running()
	for i := range c.flights {
		if c.flights[i].ID != 0 {
			s.InFlight++
		}
	}
	s.BlocksUsed, s.BlocksTotal, s.BlocksCached = c.pool.Used(), c.pool.Usable(), c.pool.Idle()
	s.RAMUsed, s.RAMTotal = c.pool.Places(), c.cfg.RAMBlocks
	s.SnapshotsUsed, s.SnapshotsTotal = c.pool.Snapshots(), c.cfg.Snapshots
	s.Accepted = c.arrivals
	return s
}
