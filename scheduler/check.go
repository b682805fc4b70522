package scheduler

import (
	"fmt"
	"slices"
)

// Check verifies the core's books and names the first contradiction. It costs
// time in the number of sequences and blocks; tests call it after every step.
func (c *Core) Check() error {
	a := &audit{core: c, block: map[int32]uint64{}, slot: map[int]uint64{}, flights: map[*seq]int{}, rows: make([]int, c.cfg.Lanes), last: map[*seq]bool{}}
	a.list("waiting", &c.waiting, waiting)
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

// audit collects what the lists and flights hold.
type audit struct {
	core    *Core
	err     error
	seqs    int
	count   [phases]int
	block   map[int32]uint64 // holder of a block
	slot    map[int]uint64   // holder of a slot
	flights map[*seq]int     // batches it is in
	rows    []int            // of each lane
	last    map[*seq]bool    // it is in a batch that chooses its token
}

func (a *audit) want(ok bool, format string, args ...any) {
	if !ok && a.err == nil {
		a.err = fmt.Errorf("scheduler: "+format, args...)
	}
}

func (a *audit) list(name string, l *list, p phase) {
	for i, s := range l.all() {
		a.want(s.phase == p, "request %d of phase %d is in list %s", s.req.ID, s.phase, name)
		a.want(s.flying == 0 && s.ended == None && !s.anew, "request %d in list %s: in %d batches, ended %v, anew %v", s.req.ID, name, s.flying, s.ended, s.anew)
		if p != decoding && i > 0 {
			a.want(before(l.all()[i-1], s), "request %d is out of order in list %s", s.req.ID, name)
		}
		a.seq(s)
	}
}

func (a *audit) flight(f *flight) {
	a.want(len(f.spans) == len(f.seqs), "batch %d has %d spans, %d sequences", f.id, len(f.spans), len(f.seqs))
	a.want((f.id == 0) == (len(f.spans) == 0), "batch %d has %d spans", f.id, len(f.spans))
	rows, wanted := 0, 0
	for i, s := range f.seqs {
		sp := &f.spans[i]
		a.flights[s]++
		a.want(sp.ID == s.req.ID && sp.Slot == s.slot && sp.Row == rows && sp.Len > 0, "batch %d: span %+v contradicts its request", f.id, *sp)
		a.want(fits(f, sp, s), "batch %d: span %+v, %d of %d tokens computed", f.id, *sp, s.computed, s.known)
		rows += sp.Len
		if sp.Last {
			wanted++
			a.last[s] = true
		}
		a.want(!sp.Last || !s.stream || s.lane == f.lane, "batch %d of lane %d has a row of lane %d", f.id, f.lane, s.lane)
		if f.after == 0 { // else it is in the batch before, too
			a.seq(s)
		}
	}
	a.ahead(f)
	a.want(rows == f.rows && wanted == f.wanted && rows <= a.core.cfg.MaxBatchTokens,
		"batch %d has %d rows, %d wanted, says %d and %d", f.id, rows, wanted, f.rows, f.wanted)
}

// fits tells whether a span agrees with the progress of its sequence.
func fits(f *flight, sp *Span, s *seq) bool {
	switch {
	case f.after != 0:
		return sp.From >= 0 && sp.Len == 1 && sp.Decode && sp.Last && sp.Pos == s.known
	case sp.From >= 0 && s.ended != None: // its last token came, or did not
		return sp.Pos == s.known || sp.Pos == s.known-1
	default:
		return sp.Pos == s.computed && sp.Pos+sp.Len <= s.known && sp.Last == (sp.Pos+sp.Len == s.known)
	}
}

// ahead holds a batch that is ahead of another against that one.
func (a *audit) ahead(f *flight) {
	if f.after == 0 {
		return
	}
	before := a.core.flight(f.after)
	if a.want(before != nil && before.after == 0 && before.id < f.id && before.lane == f.lane, "batch %d is ahead of %d", f.id, f.after); a.err != nil {
		return
	}
	var wanted []uint64
	for _, sp := range before.spans {
		if sp.Last {
			wanted = append(wanted, sp.ID)
		}
	}
	for i, s := range f.seqs {
		from := f.spans[i].From
		a.want(from < len(wanted) && wanted[from] == s.req.ID, "batch %d: request %d takes the token of row %d of %v", f.id, s.req.ID, from, wanted)
		a.want(s.generated()+1 < s.req.MaxNew, "batch %d: request %d ends in the batch before", f.id, s.req.ID)
	}
}

func (a *audit) seq(s *seq) {
	c, id := a.core, s.req.ID
	a.seqs++
	if s.ended == None {
		a.count[s.phase]++
		a.want(s.req.Deadline == 0 || s.req.Deadline >= c.wake, "request %d: its deadline is before the next", id)
	}
	if s.stream {
		a.rows[s.lane]++
	}
	a.want(c.byID[id] == s, "request %d is not known by its id", id)
	if s.phase == waiting {
		a.want(s.slot == -1 && len(s.blocks) == 0 && s.computed == 0, "request %d waits and holds slot %d, %d blocks", id, s.slot, len(s.blocks))
		return
	}
	a.want(len(s.blocks) == c.cfg.blocksFor(s.req.positions()), "request %d holds %d blocks", id, len(s.blocks))
	a.want(s.generated() >= 0 && s.generated() < s.req.MaxNew, "request %d made %d of %d tokens", id, s.generated(), s.req.MaxNew)
	a.want(s.computed >= 0 && s.computed < s.known, "request %d: %d of %d tokens computed", id, s.computed, s.known)
	a.want(s.phase != decoding || s.known-s.computed == 1, "request %d in decode lacks %d rows", id, s.known-s.computed)
	other, taken := a.slot[s.slot]
	a.want(!taken && s.slot >= 0 && s.slot < c.cfg.MaxSeqs, "requests %d and %d share slot %d", id, other, s.slot)
	a.slot[s.slot] = id
	for _, b := range s.blocks {
		other, taken := a.block[b]
		a.want(!taken, "requests %d and %d share block %d", id, other, b)
		a.block[b] = id
	}
}

func (a *audit) totals() {
	c := a.core
	a.want(a.seqs == len(c.byID), "%d sequences, %d ids", a.seqs, len(c.byID))
	a.want(a.count == c.count, "phases count %v, say %v", a.count, c.count)
	for _, s := range c.byID {
		a.want(s.flying == a.flights[s], "request %d is in %d batches, says %d", s.req.ID, a.flights[s], s.flying)
		stream := s.ended == None && (a.last[s] || s.flying == 0 && s.phase == decoding)
		a.want(s.stream == stream, "request %d is a row of a lane: %v, says %v", s.req.ID, stream, s.stream)
	}
	a.want(slices.Equal(a.rows, c.rows), "lanes have %v rows, say %v", a.rows, c.rows)
	a.lanes()
	a.want(len(a.block) == c.blocks.Used(), "%d blocks held, %d used", len(a.block), c.blocks.Used())
	a.want(len(a.slot)+len(c.slots) == c.cfg.MaxSeqs, "%d slots held, %d free of %d", len(a.slot), len(c.slots), c.cfg.MaxSeqs)
	a.want(c.waiting.len() <= c.cfg.MaxQueue, "%d wait, at most %d may", c.waiting.len(), c.cfg.MaxQueue)
	if a.err == nil {
		a.err = c.blocks.Check()
	}
}

// lanes holds what is in flight against the places there are.
func (a *audit) lanes() {
	c := a.core
	first, after, prompts := make([]int, c.cfg.Lanes), make([]int, c.cfg.Lanes), 0
	for i := range c.flights {
		switch f := &c.flights[i]; {
		case f.id == 0:
			continue
		case f.after == 0:
			first[f.lane]++
		default:
			after[f.lane]++
		}
		if f := &c.flights[i]; f.rows > f.decode {
			prompts++
		}
	}
	a.want(slices.Max(first) <= 1 && slices.Max(after) <= 1, "lanes have %v batches in flight and %v ahead", first, after)
	a.want(prompts <= c.cfg.PrefillBatches, "%d batches have prompts, of %d", prompts, c.cfg.PrefillBatches)
}
