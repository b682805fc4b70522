package scheduler

import (
	"fmt"
	"slices"
)

// Check verifies the core's books and names the first contradiction. It costs
// time in the number of sequences and blocks; tests call it after every step.
func (c *Core) Check() error {
	a := &audit{core: c, block: map[int32]uint64{}, holds: map[int32]int{}, slot: map[int]uint64{}, flights: map[*seq]int{}, rows: make([]int, c.cfg.MicroBatches), last: map[*seq]bool{}}
	for _, l := range c.queue.lines {
		a.list("of a line", &l.list, waiting)
	}
	a.list("preempted", &c.queue.preempted, waiting)
	a.list("parked", &c.parked, waiting)
	a.list("filling", &c.filling, filling)
	a.list("decoding", &c.decoding, decoding)
	for i := range c.flights {
		a.flight(&c.flights[i])
	}
	if a.err == nil {
		a.totals()
	}
	return a.err
}

// audit collects what the lists and the batches in flight hold.
type audit struct {
	core    *Core
	err     error
	seqs    int
	count   [phases]int
	block   map[int32]uint64 // the request that writes a block
	holds   map[int32]int    // of a block, by sequences and moves
	slot    map[int]uint64   // holder of a slot
	flights map[*seq]int     // batches it is in
	rows    []int            // of each micro-batch
	last    map[*seq]bool    // it is in a batch that chooses its token
}

func (a *audit) want(ok bool, format string, args ...any) {
	if !ok && a.err == nil {
		a.err = fmt.Errorf("scheduler: "+format, args...)
	}
}

func (a *audit) list(name string, l *list, p phase) {
	c := a.core
	for i, s := range l.all() {
		a.want(s.phase == p, "request %d of phase %d is in list %s", s.req.ID, s.phase, name)
		a.want(s.inFlight == 0 && s.ended == None && !s.recompute, "request %d in list %s: in %d batches, ended %v, recompute %v", s.req.ID, name, s.inFlight, s.ended, s.recompute)
		switch {
		case i == 0 || l == &c.parked || l == &c.decoding:
		default:
			a.want(arrivedBefore(l.all()[i-1], s), "request %d is out of order in list %s", s.req.ID, name)
		}
		a.seq(s)
	}
}

func (a *audit) flight(f *flight) {
	a.want(len(f.Spans) == len(f.seqs), "batch %d has %d spans, %d sequences", f.ID, len(f.Spans), len(f.seqs))
	a.want((f.ID == 0) == (len(f.Spans) == 0), "batch %d has %d spans", f.ID, len(f.Spans))
	rows, wanted := 0, 0
	for i, s := range f.seqs {
		sp := &f.Spans[i]
		a.flights[s]++
		a.want(sp.ID == s.req.ID && sp.Slot == s.slot && sp.Row == rows && sp.Len > 0, "batch %d: span %+v contradicts its request", f.ID, *sp)
		a.want(f.lost || fits(f, sp, s), "batch %d: span %+v, %d of %d tokens computed", f.ID, *sp, s.computed, s.known)
		rows += sp.Len
		if sp.Last {
			wanted++
			a.last[s] = true
		}
		a.want(!sp.Last || !s.streaming || s.micro == f.MicroBatch, "batch %d of micro-batch %d has a row of micro-batch %d", f.ID, f.MicroBatch, s.micro)
		a.want(!f.lost || s.ended != None || s.recompute, "batch %d is lost, request %d goes on", f.ID, s.req.ID)
		if a.flights[s] == 1 { // once, if it is in several
			a.seq(s)
		}
	}
	a.ahead(f)
	a.want(rows == f.Rows && wanted == f.Wanted && rows <= a.core.cfg.MaxBatchTokens,
		"batch %d has %d rows, %d wanted, says %d and %d", f.ID, rows, wanted, f.Rows, f.Wanted)
}

// fits reports whether a span agrees with the progress of its sequence.
func fits(f *flight, sp *Span, s *seq) bool {
	switch {
	case f.After != 0:
		return sp.From >= 0 && sp.Len == 1 && sp.Decode && sp.Last && sp.Pos == s.known
	case sp.From >= 0 && s.ended != None: // its last token came, or did not
		return sp.Pos == s.known || sp.Pos == s.known-1
	default:
		return (sp.Pos == s.computed || f.Follows != 0 && sp.Pos > s.computed) && sp.Pos+sp.Len <= s.known && sp.Last == (sp.Pos+sp.Len == s.known)
	}
}

// ahead holds a batch that is ahead of another against that one.
func (a *audit) ahead(f *flight) {
	if f.After == 0 {
		return
	}
	before := a.core.record(f.After)
	if a.want(before != nil && before.After == 0 && before.ID < f.ID && before.MicroBatch == f.MicroBatch, "batch %d is ahead of %d", f.ID, f.After); a.err != nil {
		return
	}
	var wanted []uint64
	for _, sp := range before.Spans {
		if sp.Last {
			wanted = append(wanted, sp.ID)
		}
	}
	for i, s := range f.seqs {
		from := f.Spans[i].From
		a.want(from < len(wanted) && wanted[from] == s.req.ID, "batch %d: request %d takes the token of row %d of %v", f.ID, s.req.ID, from, wanted)
		a.want(s.generated()+1 < s.req.MaxNew, "batch %d: request %d ends in the batch before", f.ID, s.req.ID)
	}
}

func (a *audit) seq(s *seq) {
	c, id := a.core, s.req.ID
	a.seqs++
	if s.ended == None {
		a.count[s.phase]++
		a.want(s.req.Deadline == 0 || s.req.Deadline >= c.wake, "request %d: its deadline is before the next", id)
	}
	if s.streaming {
		a.rows[s.micro]++
	}
	a.want(c.byID[id] == s, "request %d is not known by its id", id)
	if s.phase == waiting {
		a.want(s.slot == -1 && len(s.blocks) == 0 && s.computed == 0, "request %d waits and holds slot %d, %d blocks", id, s.slot, len(s.blocks))
		return
	}
	end := s.computed
	if s.inFlight > 0 {
		end = s.known // at least what is in flight of it
	}
	a.want(len(s.blocks) >= c.cfg.blocksFor(s.computed) && len(s.blocks) <= c.cfg.blocksFor(end+s.inFlight)+1, "request %d holds %d blocks, %d of %d computed", id, len(s.blocks), s.computed, s.known)
	a.want((s.ended != None || s.linked*c.cfg.BlockTokens <= s.computed) && s.empty == (len(s.blocks) == 0), "request %d: %d blocks linked, %d computed, fresh %v", id, s.linked, s.computed, s.empty)
	a.want(s.generated() >= 0 && s.generated() < s.req.MaxNew, "request %d made %d of %d tokens", id, s.generated(), s.req.MaxNew)
	a.want(s.computed >= 0 && s.computed < s.known, "request %d: %d of %d tokens computed", id, s.computed, s.known)
	a.want(s.phase != decoding || s.known-s.computed == 1, "request %d in decode lacks %d rows", id, s.known-s.computed)
	other, taken := a.slot[s.slot]
	a.want(!taken && s.slot >= 0 && s.slot < c.cfg.MaxSeqs, "requests %d and %d share slot %d", id, other, s.slot)
	a.slot[s.slot] = id
	for i, b := range s.blocks {
		a.hold(b, id, i < s.linked)
	}
}

// hold notes that a sequence holds a block; only one may hold it that still writes it.
func (a *audit) hold(block int32, id uint64, shared bool) {
	a.holds[block]++
	if shared {
		return
	}
	other, taken := a.block[block]
	a.want(!taken, "requests %d and %d write block %d", id, other, block)
	a.block[block] = id
}

func (a *audit) totals() {
	c := a.core
	promised, background := 0, 0
	for _, s := range c.byID {
		promised += s.promised
		if s.req.Background && s.slot >= 0 && s.ended == None {
			background++
		}
	}
	a.keys()
	a.want(promised == c.promised && background == c.background, "%d blocks promised, %d in the background, says %d and %d", promised, background, c.promised, c.background)
	a.want(c.short == nil || c.short.inFlight == 0 && c.short.ended == None && c.short.slot >= 0, "a sequence that is not idle waits for memory")
	for i := range c.flights {
		for _, m := range c.flights[i].Moves {
			if m.Kind == Copy {
				a.holds[m.From]++
			}
		}
		for _, block := range c.flights[i].preloaded {
			a.holds[block]++
		}
	}
	a.want(a.seqs == len(c.byID), "%d sequences, %d ids", a.seqs, len(c.byID))
	a.want(a.count == c.count, "phases count %v, say %v", a.count, c.count)
	for _, s := range c.byID {
		a.want(s.inFlight == a.flights[s], "request %d is in %d batches, says %d", s.req.ID, a.flights[s], s.inFlight)
		stream := s.ended == None && (a.last[s] || s.inFlight == 0 && s.phase == decoding)
		a.want(s.streaming == stream, "request %d is a row of a micro-batch: %v, says %v", s.req.ID, stream, s.streaming)
	}
	a.want(slices.Equal(a.rows, c.streams), "micro-batches have %v rows, say %v", a.rows, c.streams)
	a.microBatches()
	a.windows()
	a.want(len(a.holds) == c.pool.Used(), "%d blocks held, %d used", len(a.holds), c.pool.Used())
	for block, n := range a.holds {
		a.want(c.pool.Holds(block) == n, "block %d is held %d times, says %d", block, n, c.pool.Holds(block))
	}
	a.want(len(a.slot)+len(c.slots) == c.cfg.MaxSeqs, "%d slots held, %d free of %d", len(a.slot), len(c.slots), c.cfg.MaxSeqs)
	a.want(c.queue.n+c.parked.len() == c.count[waiting], "%d in the queue, %d parked, %d wait", c.queue.n, c.parked.len(), c.count[waiting])
	if a.err == nil {
		a.err = c.pool.Check()
	}
}

// microBatches holds what is in flight against the places there are.
func (a *audit) microBatches() {
	c := a.core
	first, after, prompts := make([]int, c.cfg.MicroBatches), make([]int, c.cfg.MicroBatches), 0
	for i := range c.flights {
		switch f := &c.flights[i]; {
		case f.ID == 0:
			continue
		case f.After == 0:
			first[f.MicroBatch]++
		default:
			after[f.MicroBatch]++
		}
		if f := &c.flights[i]; f.Rows > f.Decode {
			prompts++
		}
	}
	a.want(slices.Max(first) <= 1 && slices.Max(after) <= 1, "micro-batches have %v batches in flight and %v ahead", first, after)
	a.want(prompts <= c.cfg.PrefillBatches, "%d batches have prompts, of %d", prompts, c.cfg.PrefillBatches)
}

// windows holds the pins of window blocks against the sequences and the moves.
func (a *audit) windows() {
	c, pins := a.core, map[int32]int{}
	for _, s := range c.byID {
		if c.cfg.Window == 0 {
			a.want(len(s.windows) == 0, "request %d holds %d window blocks", s.req.ID, len(s.windows))
			continue
		}
		a.want(len(s.windows) == len(s.blocks) && s.passed <= len(s.windows) && s.passed <= c.cfg.windowStart(s.computed),
			"request %d, %d computed: %d blocks, %d window blocks from %d on", s.req.ID, s.computed, len(s.blocks), len(s.windows), s.passed)
		for _, w := range s.windows[min(s.passed, len(s.windows)):] {
			pins[w]++
		}
	}
	for i := range c.flights {
		for _, m := range c.flights[i].Moves {
			if m.Kind == CopyWindow {
				pins[m.From]++
			}
		}
	}
	for w, n := range pins {
		a.want(c.pool.WindowPins(w) == n, "window block %d is pinned %d times, says %d", w, n, c.pool.WindowPins(w))
	}
	a.want(len(pins) == c.pool.WindowsUsed() && len(pins) <= c.pool.Used(), "%d window blocks of %d blocks are pinned, says %d", len(pins), c.pool.Used(), c.pool.WindowsUsed())
}

// keys holds the accounts against the sequences.
func (a *audit) keys() {
	c := a.core
	count, running, seated := map[*account][phases]int{}, map[*account]int{}, 0
	for _, s := range c.byID {
		if s.ended != None {
			continue
		}
		n := count[s.key]
		n[s.phase]++
		count[s.key] = n
		if s.slot >= 0 {
			running[s.key]++
			a.want(slices.Contains(s.key.running, s), "request %d runs and is not among those of its key", s.req.ID)
		}
	}
	for _, x := range c.keys {
		a.want(x.count == count[x] && len(x.running) == running[x], "key %v counts %v and %d that run, has %v and %d", x.payer, x.count, len(x.running), count[x], running[x])
		a.want(slices.Contains(c.busyKeys, x) == (len(x.running) > 0), "key %v runs %d", x.payer, len(x.running))
		if len(x.running) > 0 {
			seated++
		}
		for i := 1; i < len(x.running); i++ {
			a.want(above(x.running[i-1], x.running[i]) && x.running[i-1].tier < x.running[i].tier, "key %v has its requests out of order", x.payer)
		}
	}
	active := 0
	for x := range count {
		if !x.background {
			active++
		}
	}
	a.want(active == c.active, "%d keys have requests, says %d", active, c.active)
	a.want(seated == len(c.busyKeys), "%d keys run something, says %d", seated, len(c.busyKeys))
}
