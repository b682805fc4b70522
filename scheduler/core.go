package scheduler

import (
	"fmt"
	"math"

	"krater/scheduler/kvblocks"
)

// Core is the state of the scheduler. One goroutine uses it at a time. Times are nanoseconds on any
// clock of the driver that never goes back.
type Core struct {
	cfg      Config
	pool     *kvblocks.Pool
	slots    []int // free slots, the next one last
	byID     map[uint64]*seq
	keys     map[payer]*account
	groups   map[uint64]*group
	queue    queue
	parked   list        // waiting for blocks that others compute
	filling  list        // idle, in the order of arrival
	decoding list        // idle, the one that waits longest first
	flights  []flight    // Depth records
	streams  []int       // of each micro-batch: its streams
	count    [phases]int // live sequences in each phase, also those in flight

	promised   int    // blocks that prompts in work still need
	short      *seq   // blocks that come free are for this idle sequence first; nil: none waits
	shortNeed  int    // blocks
	lacks      int    // blocks that the request whose turn it is lacked when it was last looked at
	high       [2]int // the most blocks that were in use, in this stretch of batches and in the one before
	background int    // running sequences

	clocks     [2]uint64  // virtual time of the keys, and of their background requests
	turns      uint64     // how often a key began to have something to compute
	active     int        // keys with live requests that are not in the background
	busyKeys   []*account // with running sequences
	debtorList []*seq     // scratch of deal

	arrivals uint64 // accepted so far
	batches  uint64 // made so far: the id of the newest
	rounds   uint64 // how often prompts were taken
	draining bool
	wake     int64 // no live request has an earlier deadline

	now    int64  // of the last Next
	pass   uint64 // the batch in flight that is a pass, or was the last one
	passed int64  // when it was made; 0: its return was noted
	passAt int64  // when the next pass may begin

	effects      []Effect
	effectsSpare []Effect
	spare        []*seq // for reuse
	expired      []*seq // scratch of Tick
	needy        []*seq // scratch of feed
	chain        chain  // scratch of look
	left, right  []int32
	one          [1]int32
	held         []int32 // scratch of load
	lowest       seq     // outranks only the background
	stats        Stats   // the counters; Stats fills in the gauges
}

// New returns an idle core, or an error that wraps ErrConfig.
func New(cfg Config) (*Core, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	c := &Core{
		cfg:     cfg,
		pool:    kvblocks.New(kvblocks.Config{Blocks: cfg.Blocks, BlockTokens: cfg.BlockTokens, RAM: cfg.RAMBlocks, Snapshots: cfg.Snapshots, Windows: cfg.WindowBlocks}),
		slots:   make([]int, cfg.MaxSeqs),
		byID:    make(map[uint64]*seq),
		keys:    make(map[payer]*account),
		groups:  make(map[uint64]*group),
		lowest:  seq{tier: math.MaxInt, arrival: math.MaxUint64},
		flights: make([]flight, cfg.Depth()),
		streams: make([]int, cfg.MicroBatches),
		wake:    math.MaxInt64,
	}
	for i := range c.slots {
		c.slots[i] = cfg.MaxSeqs - 1 - i
	}
	if cfg.Open > 0 {
		c.pool.Resize(cfg.Open)
	}
	return c, nil
}

// Add puts a request into the queue, or refuses it with one of the errors of errors.go, wrapped
// where figures help. An accepted request gets exactly one Ended effect, whatever happens.
func (c *Core) Add(r Request, now int64) error {
	if err := c.refuse(&r, now); err != nil {
		return err
	}
	s := c.newSeq()
	s.arrival = c.arrivals
	c.arrivals++
	c.enter(s, &r, nil)
	return nil
}

// enter makes a new sequence of a request, of which the given tokens were generated, wait in the queue.
func (c *Core) enter(s *seq, r *Request, answer []int32) {
	s.req, s.known, s.slot = *r, r.PromptLen, -1
	s.level, s.empty, s.key = r.Priority, true, c.open(r)
	if s.reuses = r.Prompt != nil && !r.Scored && !c.cfg.NoReuse; s.reuses {
		s.root = c.pool.Open(r.Domain)
		s.link = s.root
	}
	c.noteTokens(s, &Outcome{NewTokens: len(answer), Tokens: answer})
	s.known += len(answer)
	c.joinGroup(s)
	c.byID[r.ID] = s
	c.tally(s, waiting, 1)
	c.enqueue(s)
	if r.Deadline != 0 {
		c.wake = min(c.wake, r.Deadline)
	}
}

func (c *Core) refuse(r *Request, now int64) error {
	if c.draining {
		return ErrDraining
	}
	if err := c.unfit(r); err != nil {
		return err
	}
	if r.Deadline != 0 && r.Deadline <= now {
		return ErrExpired
	}
	n, own := c.count[waiting], 0
	if a := c.keys[payer{r.Key, r.Background}]; a != nil {
		own = a.count[waiting]
	}
	switch left := c.cfg.MaxQueue - n; {
	case left <= 0:
		return fmt.Errorf("%w: %d wait", ErrQueueFull, n)
	case r.Key != 0 && own >= 3*left: // so that some places are always left for other keys
		return fmt.Errorf("%w for this key: %d of %d wait", ErrQueueFull, own, n)
	}
	return nil
}

// unfit is why a request could never run.
func (c *Core) unfit(r *Request) error {
	if r.PromptLen < 1 || r.MaxNew < 1 {
		return fmt.Errorf("%w: prompt of %d tokens, answer of %d", ErrEmpty, r.PromptLen, r.MaxNew)
	}
	if r.Prompt != nil && len(r.Prompt) != r.PromptLen {
		return fmt.Errorf("%w: %d ids for %d tokens", ErrPrompt, len(r.Prompt), r.PromptLen)
	}
	room := c.cfg.Blocks * c.cfg.BlockTokens
	if r.PromptLen > room || r.MaxNew-1 > room-r.PromptLen {
		return fmt.Errorf("%w: prompt of %d tokens and answer of %d, room for %d", ErrTooLong, r.PromptLen, r.MaxNew, room)
	}
	if c.byID[r.ID] != nil {
		return fmt.Errorf("%w: %d", ErrDuplicate, r.ID)
	}
	return nil
}

// Cancel ends a request for a reason that the driver found: Cancelled by the client, or Stop where
// a stop string shows in the text after the step was reported. Its blocks are free at once or, if
// it is in flight, when its last batch returns. It reports whether the request was live; an unknown
// or ended one is left alone.
func (c *Core) Cancel(id uint64, why Reason) bool {
	s := c.byID[id]
	if s == nil || s.ended != None || why == None || why >= reasons {
		return false
	}
	c.end(s, why, nil)
	return true
}

// Drain stops admission: Add refuses from now on, requests that wait and have not started end with
// Drained, and the others continue to their end. Idle reports when that is reached.
func (c *Core) Drain() {
	c.draining = true
	c.expired = c.expired[:0]
	c.each(func(s *seq) {
		if s.phase == waiting && !s.started {
			c.expired = append(c.expired, s)
		}
	})
	for _, s := range c.expired {
		c.end(s, Drained, nil)
	}
	clear(c.expired)
}

// Idle reports that no request waits, runs or is in flight.
func (c *Core) Idle() bool { return len(c.byID) == 0 }

// ClearCache empties the cache while the core is Idle. The driver calls it after it has written to
// the blocks itself, because what the blocks held is no longer there.
func (c *Core) ClearCache() {
	if c.Idle() {
		c.pool.Clear()
	}
}

// Tick ends the requests whose deadline is now or earlier. Next does it too.
func (c *Core) Tick(now int64) {
	if now < c.wake {
		return
	}
	c.wake = math.MaxInt64
	c.expired = c.expired[:0]
	c.each(func(s *seq) {
		switch d := s.req.Deadline; {
		case s.ended != None || d == 0:
		case d <= now:
			c.expired = append(c.expired, s)
		default:
			c.wake = min(c.wake, d)
		}
	})
	for _, s := range c.expired {
		c.end(s, Expired, nil)
	}
	clear(c.expired)
}

// NextDeadline returns the earliest time at which Tick may have something to do; false if no request has
// a deadline. It may be early, never late.
func (c *Core) NextDeadline() (int64, bool) { return c.wake, c.wake != math.MaxInt64 }

// each visits every sequence of the core in a fixed order. f must not change the lists.
func (c *Core) each(f func(*seq)) {
	for _, l := range c.queue.lines {
		for _, s := range l.list.all() {
			f(s)
		}
	}
	for _, l := range []*list{&c.queue.preempted, &c.parked, &c.filling, &c.decoding} {
		for _, s := range l.all() {
			f(s)
		}
	}
	for i := range c.flights {
		if c.flights[i].After != 0 {
			continue // its sequences are in the batch before, too
		}
		for _, s := range c.flights[i].seqs {
			if c.leads(&c.flights[i], s) {
				f(s)
			}
		}
	}
}

// end concludes a live sequence in whatever list it is. A sequence in flight is released when its
// last batch returns, since the device may still write to its blocks.
func (c *Core) end(s *seq, why Reason, cause error) {
	c.conclude(s, why, cause)
	switch {
	case s.inFlight > 0:
	case s.phase == waiting:
		c.dequeue(s)
		c.recycle(s)
	case s.phase == filling:
		c.filling.remove(s)
		c.release(s)
	default:
		c.decoding.remove(s)
		c.release(s)
	}
}

// conclude marks a sequence as ended and announces it.
func (c *Core) conclude(s *seq, why Reason, cause error) {
	s.ended = why
	c.tally(s, s.phase, -1)
	c.removeRunning(s)
	if s.req.Background && s.slot >= 0 {
		c.background--
	}
	c.leaveMicro(s)
	c.endWaits(s)
	c.stats.Ended[why]++
	c.emit(Ended, s, why, cause)
}

// release returns what an admitted sequence holds. The sequence is in no list and no batch.
func (c *Core) release(s *seq) {
	c.dropWindows(s)
	c.pool.Free(s.blocks)
	c.slots = append(c.slots, s.slot)
	c.emit(Released, s, None, nil)
	c.recycle(s)
}

func (c *Core) recycle(s *seq) {
	delete(c.byID, s.req.ID)
	s.key.live--
	c.leaveGroup(s)
	if s.reuses {
		c.pool.Close(s.root)
	}
	*s = seq{blocks: s.blocks[:0], windows: s.windows[:0], answer: s.answer[:0]}
	c.spare = append(c.spare, s)
}

func (c *Core) newSeq() *seq {
	n := len(c.spare)
	if n == 0 {
		return &seq{}
	}
	s := c.spare[n-1]
	c.spare = c.spare[:n-1]
	return s
}

func (c *Core) setPhase(s *seq, p phase) {
	was := s.phase
	c.tally(s, p, 1)
	c.tally(s, was, -1)
	s.phase = p
}
