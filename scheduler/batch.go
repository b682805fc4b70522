package scheduler

import "slices"

// Span is the part of a batch that belongs to one sequence: Len rows of the batch from Row on, for
// the sequence's tokens Pos to Pos+Len-1 (the prompt, then what was generated).
type Span struct {
	ID         uint64
	Slot       int // the sequence's own from Started or Resumed to Preempted or Released, below MaxSeqs
	Row        int
	Len        int // 1 in decode; more once a step verifies drafted tokens
	Pos        int
	Decode     bool // the row of the newest generated token; all before it are in the cache when the batch runs
	Recomputed bool // with Config.Forms: rows that are computed once more, in the form of generated tokens
	Last       bool // the span reaches the last known token: its last row is to be sampled
	// From is -1 if the driver knows the span's tokens. In a batch ahead of another, From is the index
	// of one of that batch's Wanted rows: the span's row takes the token that is chosen for that row. A
	// Span made by hand must set From to -1.
	From int
	// Blocks is the block table up to the span's end: position p is in slot
	// Blocks[p/BlockTokens]*BlockTokens + p%BlockTokens of every layer's cache.
	Blocks []int32
	// Windows is the block table of the layers with a window (Config.Window). It has window blocks below
	// WindowBlocks, and is nil if the model has no such layers. Entries before the window of the span's
	// first row must not be read.
	Windows []int32
}

// MoveKind selects the source and the destination of a Move.
type MoveKind uint8

const (
	Copy       MoveKind = iota // block From to block To
	Save                       // block From to place To in host memory, below RAMBlocks
	Load                       // place From in host memory to block To
	SaveState                  // the state of the sequence in slot From to snapshot To, below Snapshots
	LoadState                  // snapshot From to the state of the sequence in slot To
	CopyWindow                 // window block From to window block To
)

var moveNames = [...]string{"copy", "save", "load", "save state", "load state", "copy window"}

func (k MoveKind) String() string {
	if int(k) < len(moveNames) {
		return moveNames[k]
	}
	return "invalid"
}

// Move is work on the KV cache that comes with a batch. Every layer group does it on its own cache:
// all moves of a batch in their order, before it reads or writes a row of the batch. Rows of other
// batches may come before or after. No order between micro-batches is needed, because this holds
// from the making of a batch until Done or Gone:
//
//   - What a move reads was written by a batch whose Done was reported, and no batch
//     in flight writes it. (Copy reads a block whose later positions another sequence may be
//     writing. What is copied of those is overwritten before it is read.)
//   - What a move writes, and what a Save empties, no other batch in flight reads
//     or writes, except the one ahead of this one in its micro-batch.
//
// After a lost batch the destinations of its moves are undefined, and nothing else is.
type Move struct {
	Kind     MoveKind
	From, To int32
}

// Batch is one step for the pipeline. Spans are in row order: decode first, then, with
// Config.RecomputeSingly, those that are Recomputed.
//
// The core owns Spans and the block tables. They are read-only, may be shared between actors, and do
// not change until Done or Gone is called for the batch.
type Batch struct {
	ID         uint64 // rises by one from 1
	MicroBatch int    // below Config.MicroBatches
	After      uint64 // the batch in flight, of the same micro-batch, that this one is ahead of; 0: none
	Follows    uint64 // with Config.Follow: the newest batch in flight that has earlier rows of a prompt of this one; 0: none
	Rows       int    // sum of Len
	Decode     int    // rows of decode spans
	Wanted     int    // spans with Last: rows that need logits, and outcomes for Done; Request.Scored asks for more
	Spans      []Span
	Moves      []Move // to be done before the rows; owned like Spans
}

// flight is the core's record of a batch in flight; ID 0 means free.
type flight struct {
	Batch
	held      bool    // see Hold
	lost      bool    // see Fail; its place is taken until Gone
	seqs      []*seq  // of Spans
	states    []state // of the SaveStates among Moves, in order
	loads     int     // of Moves
	preloaded []int32 // blocks that are loaded for no sequence yet
}

// Next returns the next batch, and false if there is no work or no place in flight. With Config.Ahead,
// if there is no other work, it makes a batch ahead of a micro-batch's only one. Next first ends expired
// requests and admits waiting ones within the limits of slots, blocks and the prefill budget, so the
// driver must carry out Effects before it sends the batch. The driver calls Next until it returns false.
func (c *Core) Next(now int64) (Batch, bool) {
	c.Tick(now)
	c.notePass(now)
	c.overtake()
	c.makeRoom()
	c.balance()
	f := c.nextOrdinary()
	if f == nil && c.cfg.Ahead {
		f = c.nextAhead()
	}
	if f == nil {
		return Batch{}, false
	}
	c.batches++
	c.noteUse()
	f.ID = c.batches
	if c.cfg.PassRows > 0 && f.Rows >= c.cfg.PassRows {
		c.pass, c.passed = f.ID, max(1, now)
	}
	c.stats.Batches++
	c.stats.DecodeRows += uint64(f.Decode)
	c.stats.PrefillRows += uint64(f.Rows - f.Decode)
	return f.Batch, true
}

// record returns the record of a batch, or with id 0 a free one.
func (c *Core) record(id uint64) *flight {
	for i := range c.flights {
		if c.flights[i].ID == id {
			return &c.flights[i]
		}
	}
	return nil
}

// nextOrdinary makes a batch for a micro-batch that has none in flight: that of the stream that has
// waited longest, else the first for which there is work.
func (c *Core) nextOrdinary() *flight {
	tried := uint64(0)
	for i := 0; i < c.decoding.len(); i++ { // newBatch may preempt some of them
		micro := c.decoding.all()[i].micro
		if tried&(1<<micro) != 0 {
			continue
		}
		tried |= 1 << micro
		if f := c.newBatch(micro); f != nil {
			return f
		}
	}
	for micro := range c.cfg.MicroBatches {
		if tried&(1<<micro) != 0 {
			continue
		}
		if f := c.newBatch(micro); f != nil {
			return f
		}
	}
	return nil
}

// newBatch makes a batch for a micro-batch; nil where it has one in flight or there is no work.
func (c *Core) newBatch(micro int) *flight {
	if c.first(micro) != nil {
		return nil
	}
	f := c.record(0)
	f.MicroBatch = micro
	c.takeDecode(f)
	c.takePrefill(f)
	if len(f.Spans) == 0 {
		return nil
	}
	if c.cfg.RecomputeSingly {
		f.sort()
	}
	return f
}

// sort puts the spans that are Recomputed before those of prompts.
func (f *flight) sort() {
	at, row := 0, 0
	for i := range f.Spans {
		if !f.Spans[i].Decode && !f.Spans[i].Recomputed {
			continue
		}
		for j := i; j > at; j-- {
			f.Spans[j], f.Spans[j-1] = f.Spans[j-1], f.Spans[j]
			f.seqs[j], f.seqs[j-1] = f.seqs[j-1], f.seqs[j]
		}
		at++
	}
	for i := range f.Spans {
		f.Spans[i].Row = row
		row += f.Spans[i].Len
	}
}

// first returns the batch of a micro-batch that is in flight and not ahead of another, nil for
// none.
func (c *Core) first(micro int) *flight {
	for i := range c.flights {
		if f := &c.flights[i]; f.ID != 0 && f.MicroBatch == micro && f.After == 0 {
			return f
		}
	}
	return nil
}

// share returns n/parts, rounded up.
func share(n, parts int) int { return (n + parts - 1) / parts }

// takeDecode gives a row to the streams of the micro-batch, and to those of others that have been
// passed by too often: they change to this micro-batch. MaxBatchTokens >= MaxSeqs, so the budget
// holds them all. Streams without memory have to wait.
func (c *Core) takeDecode(f *flight) {
	c.growStreams(f)
	c.decoding.take(func(s *seq) bool {
		if !c.inNextBatch(s, f.MicroBatch) || !c.covered(s, s.known) {
			return false
		}
		c.moveMicro(s, f.MicroBatch)
		c.addSpan(f, s, 1)
		return true
	})
}

// inNextBatch reports whether an idle stream's next row is in the next batch of a micro-batch.
func (c *Core) inNextBatch(s *seq, micro int) bool { return s.micro == micro || c.overdue(s) }

// growStreams gives a block to the streams of a micro-batch that come to a border, first to those
// that may take it from others.
func (c *Core) growStreams(f *flight) {
	c.needy = c.needy[:0]
	for _, s := range c.decoding.all() {
		if c.inNextBatch(s, f.MicroBatch) && !c.covered(s, s.known) {
			c.needy = append(c.needy, s)
		}
	}
	slices.SortFunc(c.needy, func(a, b *seq) int {
		switch {
		case a == b:
			return 0
		case outranks(a, b):
			return -1
		}
		return 1
	})
	for _, s := range c.needy {
		if s.phase == decoding { // not preempted for an earlier one
			c.reach(f, s, s.known)
		}
	}
	clear(c.needy)
}

// takePrefill spends the rest of the budget on chunks of prompts in the order of sooner, and admits
// from the queue when it is the turn of its head. Background requests share one chunk.
func (c *Core) takePrefill(f *flight) {
	if !c.takesPrompts(f.MicroBatch) {
		return
	}
	if c.cfg.Snapshots > 0 {
		c.next() // parks what waits for another's state before that one's rows are cut
	}
	room := c.cfg.MaxBatchTokens - f.Rows
	if c.count[decoding] > 0 {
		room = min(room, c.cfg.PrefillShare)
		if room = min(room, c.passRoom(f.Rows)); room == 0 {
			return
		}
	}
	gap := c.cfg.PrefillChunk
	c.rounds++
	quota := share(c.count[filling]+min(c.queue.n, len(c.slots)), c.cfg.PrefillBatches)
	for ; room > 0 && quota > 0; quota-- {
		loads := f.loads
		s := c.prompt(f, gap > 0, room)
		if s == nil {
			s = c.trailing()
		}
		if s == nil {
			return
		}
		room = c.charge(room, f.loads-loads)
		n := min(s.known-s.next(), c.cfg.PrefillChunk, room)
		if s.scored() {
			n = min(n, c.cfg.logitRows()-f.Wanted)
		}
		if s.req.Background {
			n = min(n, gap)
			gap -= n
		}
		scored := s.scored()
		if room -= c.addPrompt(f, s, n); scored {
			c.billPrompt(s.key, max(0, room))
			return // more logits may not fit: the batch gets no more prompts
		}
	}
}

// prompt takes the prompt whose turn it is off its list, or admits it; nil for none. room is how
// many rows the batch has left.
func (c *Core) prompt(f *flight, gap bool, room int) *seq {
	for {
		s := c.prefilled(gap)
		w := c.head()
		if w != nil && (s == nil || c.sooner(w, s)) && (gap || !w.req.Background) {
			if w = c.next(); w != nil && (s == nil || c.sooner(w, s)) && (gap || !w.req.Background) && c.stage(f, w, room) {
				c.admit(f, w)
				return w
			}
		}
		if s == nil {
			return nil
		}
		s.round = c.rounds
		if c.ready(f, s, room) {
			c.filling.remove(s)
			return s
		}
	}
}

// prefilled returns the idle prompt whose turn it is, of those not yet looked at for this batch.
func (c *Core) prefilled(gap bool) *seq {
	var best *seq
	for _, s := range c.filling.all() {
		if s.round != c.rounds && (gap || !s.req.Background) && (best == nil || c.sooner(s, best)) {
			best = s
		}
	}
	return best
}

// ready gives an idle prompt memory for a row, and reports whether there is any.
func (c *Core) ready(f *flight, s *seq, room int) bool {
	if s.empty {
		return c.begin(f, s, c.loadable(f, room))
	}
	return c.covered(s, s.computed+1) || c.room(s) > 0 || c.reclaim(s, 1)
}

// addPrompt adds up to n rows of a prompt to the batch, as many as there is memory for without
// taking it from others, and returns how many.
func (c *Core) addPrompt(f *flight, s *seq, n int) int {
	room := len(s.blocks) + max(0, c.room(s))
	end := min(s.next()+n, room*c.cfg.BlockTokens)
	end = c.endAtBorder(s, c.sameClass(s, end))
	c.extend(f, s, max(0, c.cfg.blocksFor(end)-len(s.blocks)))
	n = end - s.next()
	c.addSpan(f, s, n)
	return n
}

// addSpan adds the next n rows of s, which is in no list and holds the blocks, to the batch.
func (c *Core) addSpan(f *flight, s *seq, n int) {
	c.saveState(f, s, s.computed)
	end := s.next() + n
	table := c.cfg.blocksFor(end)
	f.Spans = append(f.Spans, Span{})
	sp := &f.Spans[len(f.Spans)-1] // filled in place: a copy of a Span costs as much as the rest
	sp.ID, sp.Slot, sp.Row, sp.Len, sp.Pos, sp.From = s.req.ID, s.slot, f.Rows, n, s.next(), -1
	sp.Decode, sp.Last = s.phase == decoding, end == s.known
	sp.Recomputed = c.cfg.Classes && s.phase == filling && s.decodeClass(s.computed)
	sp.Blocks, sp.Windows = s.blocks[:table:table], c.windowTable(s, table)
	f.Rows += n
	if sp.Decode {
		f.Decode += n
		c.billDecode(s.key)
	} else {
		c.billPrompt(s.key, n)
	}
	if c.short == s {
		c.short = nil
	}
	if sp.Last {
		f.Wanted++
		c.joinMicro(s, f.MicroBatch)
	}
	if s.flying > 0 {
		f.Follows = max(f.Follows, c.newestWith(s))
	}
	if s.phase == filling {
		s.flying += n
	}
	s.inFlight++
	f.seqs = append(f.seqs, s)
}
