package scheduler

// Span is the part of a batch that belongs to one sequence: Len rows of the
// batch from Row on, for the sequence's tokens Pos to Pos+Len-1 (prompt first,
// then what was generated).
type Span struct {
	ID     uint64
	Slot   int // the sequence's own from Started to Released, below MaxSeqs
	Row    int
	Len    int // 1 in decode; more once a step verifies drafted tokens
	Pos    int
	Decode bool // the row of the newest generated token, all before it are in the cache when the batch runs
	Last   bool // the span reaches the last known token: its last row is to be sampled
	// From is -1 where the driver knows the span's tokens. In a batch that is
	// ahead of another it counts that one's Wanted rows from 0: this row takes the
	// token that is chosen there. The zero value means the first of them, so a
	// Span made by hand says -1.
	From int
	// Blocks is the block table up to the span's end: position p lives in slot
	// Blocks[p/BlockTokens]*BlockTokens + p%BlockTokens of every layer's cache.
	Blocks []int32
}

// MoveKind says what a Move does.
type MoveKind uint8

const (
	Copy      MoveKind = iota // block From to block To
	Save                      // block From to place To in host memory, below RAMBlocks
	Load                      // place From in host memory to block To
	SaveState                 // the state of the sequence in slot From to snapshot To, below Snapshots
	LoadState                 // snapshot From to the state of the sequence in slot To
)

var moveNames = [...]string{"copy", "save", "load", "save state", "load state"}

func (k MoveKind) String() string {
	if int(k) < len(moveNames) {
		return moveNames[k]
	}
	return "invalid"
}

// Move is work on the KV cache that comes with a batch. Every layer group does it
// on its own cache: all moves of a batch in their order, before it reads or writes a
// row of the batch. Rows of other batches may come before or after; no order between
// lanes is needed, for this holds from the making of a batch until Done or Fail:
//
//   - What a move reads was written by a batch whose Done was reported, and no batch
//     in flight writes it. (Copy reads a block whose later positions another sequence may be
//     writing: what is copied of those is of no use and overwritten before it is read.)
//   - What a move writes, and what a Save empties, no other batch in flight reads
//     or writes, but the one ahead of this one in its lane.
//
// Fail leaves undefined what the batch's moves would have written, nothing else.
type Move struct {
	Kind     MoveKind
	From, To int32
}

// Batch is one step for the pipeline. Spans lie in row order, decode first.
//
// The core owns Spans and the block tables. They are read-only, may be shared
// between actors, and stay as they are until the core is told Done. After Fail
// or Restart they are left to the garbage collector, so a late reader of an
// abandoned batch sees no change either.
type Batch struct {
	ID     uint64 // rises by one from 1
	Lane   int    // of the micro-batches, which one: below Config.Lanes
	After  uint64 // the batch in flight, of the same lane, that this one is ahead of; 0: none
	Epoch  uint32 // rises with every Restart; a message of an older epoch is dropped
	Rows   int    // sum of Len
	Decode int    // rows of decode spans
	Wanted int    // spans with Last: rows that need logits, and outcomes for Done
	Spans  []Span
	Moves  []Move // to be done before the rows; owned like Spans
}

// flight is the core's record of a batch in flight; id 0 means free.
type flight struct {
	id     uint64
	lane   int
	after  uint64 // the batch in flight before it, or 0
	held   bool   // see Hold
	rows   int
	decode int
	wanted int
	spans  []Span
	seqs   []*seq // of spans
}

// Next makes the next batch, if there is work and a place in flight; with
// Config.Ahead, where there is no other work, one ahead of a lane's only batch. It
// ends expired requests first and admits waiting ones as far as slots, blocks and
// prefill budget reach; so carry out Effects before sending the batch. The
// driver calls it until it returns false.
func (c *Core) Next(now int64) (Batch, bool) {
	c.Tick(now)
	c.level()
	f := c.ordinary()
	if f == nil && c.cfg.Ahead {
		f = c.further()
	}
	if f == nil {
		return Batch{}, false
	}
	c.batches++
	f.id = c.batches
	c.stats.Batches++
	c.stats.DecodeRows += uint64(f.decode)
	c.stats.PrefillRows += uint64(f.rows - f.decode)
	return Batch{ID: f.id, Lane: f.lane, After: f.after, Epoch: c.epoch, Rows: f.rows, Decode: f.decode, Wanted: f.wanted, Spans: f.spans}, true
}

// record finds the record of a batch, or with id 0 a free one.
func (c *Core) record(id uint64) *flight {
	for i := range c.flights {
		if c.flights[i].id == id {
			return &c.flights[i]
		}
	}
	return nil
}

// ordinary makes a batch for a lane that has none in flight: that of the stream that has
// waited longest, else the first for which there is something to do.
func (c *Core) ordinary() *flight {
	for _, s := range c.decoding.all() {
		if f := c.fresh(s.lane); f != nil {
			return f
		}
	}
	for lane := range c.cfg.Lanes {
		if f := c.fresh(lane); f != nil {
			return f
		}
	}
	return nil
}

// fresh makes a batch for a lane, nil where it has one in flight or there is no work.
func (c *Core) fresh(lane int) *flight {
	if c.first(lane) != nil {
		return nil
	}
	f := c.record(0)
	f.lane = lane
	c.takeDecode(f)
	c.takePrefill(f)
	if len(f.spans) == 0 {
		return nil
	}
	return f
}

// first is the batch of a lane that is in flight and not ahead of another, nil for none.
func (c *Core) first(lane int) *flight {
	for i := range c.flights {
		if f := &c.flights[i]; f.id != 0 && f.lane == lane && f.after == 0 {
			return f
		}
	}
	return nil
}

// share is an even part of n, rounded up.
func share(n, parts int) int { return (n + parts - 1) / parts }

// takeDecode gives a row to the lane's streams, and to those of others that have been
// passed by too often: they change to this lane. MaxBatchTokens >= MaxSeqs, so the
// budget holds them all.
func (c *Core) takeDecode(f *flight) {
	c.decoding.take(func(s *seq) bool {
		if s.lane != f.lane && !c.overdue(s) {
			return false
		}
		c.move(s, f.lane)
		c.put(f, s, 1)
		return true
	})
}

// takePrefill spends what is left of the budget on chunks of prompts, oldest
// first, admitting from the queue where it is its head's turn.
func (c *Core) takePrefill(f *flight) {
	if !c.fills(f.lane) {
		return
	}
	room := c.cfg.MaxBatchTokens - f.rows
	if c.count[decoding] > 0 {
		room = min(room, c.cfg.PrefillShare)
	}
	quota := share(c.count[filling]+min(c.waiting.len(), len(c.slots)), c.cfg.PrefillBatches)
	for blocked := false; room > 0 && quota > 0; quota-- {
		var s *seq
		for s == nil {
			fromQueue := !blocked && c.waiting.len() > 0
			if fromQueue && c.filling.len() > 0 {
				fromQueue = before(c.waiting.front(), c.filling.front())
			}
			switch {
			case fromQueue && c.admit(c.waiting.front()):
				s = c.waiting.pop()
			case fromQueue:
				blocked = true
			case c.filling.len() > 0:
				s = c.filling.pop()
			default:
				return
			}
		}
		n := min(s.known-s.computed, c.cfg.PrefillChunk, room)
		c.put(f, s, n)
		room -= n
	}
}

// admit gives the head of the queue its slot and all its blocks, or nothing. A
// head that does not fit holds up those behind it: they would starve it.
func (c *Core) admit(s *seq) bool {
	if len(c.slots) == 0 {
		return false
	}
	table, ok := c.blocks.Alloc(s.blocks, c.cfg.blocksFor(s.req.positions()))
	if !ok {
		return false
	}
	top := len(c.slots) - 1
	s.blocks, s.slot = table, c.slots[top]
	c.slots = c.slots[:top]
	c.setPhase(s, filling)
	c.emit(Started, s, None, nil)
	return true
}

// put adds the next n rows of s, which is in no list, to the batch.
func (c *Core) put(f *flight, s *seq, n int) {
	end := s.computed + n
	table := c.cfg.blocksFor(end)
	sp := Span{
		ID: s.req.ID, Slot: s.slot, Row: f.rows, Len: n, Pos: s.computed,
		Decode: s.phase == decoding, Last: end == s.known, From: -1,
		Blocks: s.blocks[:table:table],
	}
	f.rows += n
	if sp.Decode {
		f.decode += n
	}
	if sp.Last {
		f.wanted++
		c.join(s, f.lane)
	}
	s.flying++
	f.spans = append(f.spans, sp)
	f.seqs = append(f.seqs, s)
}
