package scheduler

import (
	"errors"
	"fmt"
	"slices"
)

// monitor knows nothing of how the core decides. It plays the clients, who want
// every request answered once and in turn, and devices on which a batch's work shows.
type monitor struct {
	cfg     Config
	core    *Core
	ample   bool // memory is never short, and nothing is shared: an idle sequence has a reason
	flying  []Batch
	who     map[uint64][]*client // of a batch in flight, by span
	devices []*simulated
	tokens  *trie
	client  map[uint64]*client
	slot    map[int]*client // by its holder
	micro   map[uint64]int  // of a request's last batch
	past    []*client       // of ids that were used again
	waits   []*client       // accepted, not started, not ended, in order of arrival
	made    uint64          // batches
	heard   []Effect        // in this step
	void    uint64          // a batch that Voided has yet to name
	lost    map[uint64]bool // of those in flight: they may be worked on until they are gone
}

// client is one accepted request seen from outside.
type client struct {
	Request
	run                      uint64 // unique, unlike the id
	started, ended, released int
	why                      Reason
	slot                     int
	table                    []int32
	path                     []int  // of its tokens, as far as they were asked for
	found                    bool   // path has the forms of the rows with which it began
	answered                 []bool // of these rows: they have the form of generated tokens
	tokens                   int    // generated
	begins                   bool   // its first rows since it got its slot are to come
	cached                   int    // positions before those
	idleAt                   uint64 // batches made when it went idle in decode
	stream                   bool   // idle in decode
	anew                     bool   // to be computed anew once its batch is back
}

func newMonitor(cfg Config, core *Core) *monitor {
	m := &monitor{cfg: cfg, core: core, ample: true, who: map[uint64][]*client{}, tokens: newTrie(), client: map[uint64]*client{}, slot: map[int]*client{}, micro: map[uint64]int{}, lost: map[uint64]bool{}}
	for range 3 {
		m.devices = append(m.devices, newSimulated(cfg))
	}
	return m
}

func (m *monitor) accept(r Request) {
	c := &client{Request: r, slot: -1, run: uint64(len(m.client)+len(m.past)) + 1}
	if old := m.client[r.ID]; old != nil {
		m.past = append(m.past, old)
	}
	m.client[r.ID] = c
	delete(m.micro, r.ID)
	m.waits = append(m.waits, c)
}

func (m *monitor) inFlight(id uint64) bool {
	return slices.ContainsFunc(m.flying, func(b Batch) bool {
		return slices.ContainsFunc(b.Spans, func(sp Span) bool { return sp.ID == id })
	})
}

func (m *monitor) slotOf(sp *Span, pos int) int {
	return int(sp.Blocks[pos/m.cfg.BlockTokens])*m.cfg.BlockTokens + pos%m.cfg.BlockTokens
}

// send checks a new batch, after the effects that came with it, and lets devices begin.
func (m *monitor) send(b Batch) error {
	m.made++
	rows, prefill, wanted := 0, 0, 0
	for i := range b.Spans {
		sp := &b.Spans[i]
		if err := m.span(b, sp, rows); err != nil {
			return err
		}
		rows += sp.Len
		if !sp.Decode {
			prefill += sp.Len
		}
		if sp.Last {
			wanted++
		}
		m.client[sp.ID].stream = false
	}
	streams := 0
	for _, c := range m.client {
		if c.ended > 0 || c.tokens == 0 {
			continue
		}
		if m.ample && c.stream && m.made > c.idleAt+m.cfg.maxPasses() {
			return fmt.Errorf("batch %d passes by stream %d, idle since batch %d", b.ID, c.ID, c.idleAt)
		}
		if c.stream || slices.ContainsFunc(b.Spans, func(sp Span) bool { return sp.Decode && sp.ID == c.ID }) {
			streams++
		}
	}
	switch {
	case rows == 0 || rows != b.Rows || wanted != b.Wanted || rows-prefill != b.Decode:
		return fmt.Errorf("batch %d says %d rows, %d decode, %d wanted: has %d, %d, %d", b.ID, b.Rows, b.Decode, b.Wanted, rows, rows-prefill, wanted)
	case rows > m.cfg.MaxBatchTokens:
		return fmt.Errorf("batch %d has %d rows", b.ID, rows)
	case streams > 0 && prefill > m.cfg.PrefillShare:
		return fmt.Errorf("batch %d has %d prefill rows beside %d streams", b.ID, prefill, streams)
	case m.cfg.LoadRate > 0 && streams > 0 && m.loads(b) > max(1, (m.cfg.PrefillShare-1)*m.cfg.LoadRate/m.cfg.BlockTokens):
		return fmt.Errorf("batch %d has %d loads beside %d streams", b.ID, m.loads(b), streams)
	case m.cfg.LoadRate > 0 && streams > 0 && m.loads(b) > 1 && (m.loads(b)*m.cfg.BlockTokens > (m.cfg.PrefillShare-prefill)*m.cfg.LoadRate):
		return fmt.Errorf("batch %d has %d loads beside %d rows of prompts and %d streams", b.ID, m.loads(b), prefill, streams)
	case len(m.flying) >= m.cfg.Depth():
		return fmt.Errorf("batch %d is one too many in flight", b.ID)
	}
	if err := errors.Join(m.places(b), m.ahead(b), m.apart(b)); err != nil {
		return err
	}
	for _, sp := range b.Spans {
		m.micro[sp.ID] = b.MicroBatch
	}
	b.Spans, b.Moves = slices.Clone(b.Spans), slices.Clone(b.Moves)
	m.flying = append(m.flying, b)
	for _, sp := range b.Spans {
		m.who[b.ID] = append(m.who[b.ID], m.client[sp.ID])
	}
	return m.run(early, b)
}

// loads counts the blocks that a batch loads from host memory.
func (m *monitor) loads(b Batch) (n int) {
	for _, mv := range b.Moves {
		if mv.Kind == Load {
			n++
		}
	}
	return n
}

// span checks one span of a new batch, which must begin after these rows.
func (m *monitor) span(b Batch, sp *Span, rows int) error {
	c := m.client[sp.ID]
	if c == nil || c.ended > 0 {
		return fmt.Errorf("batch %d works for request %d, which is over", b.ID, sp.ID)
	}
	known := c.PromptLen + c.tokens
	if b.After != 0 {
		known++
	}
	switch {
	case b.After == 0 && (m.inFlight(sp.ID) || sp.From != -1):
		return fmt.Errorf("request %d is in two batches, or span %+v takes a token", sp.ID, *sp)
	case sp.Row != rows || sp.Len < 1:
		return fmt.Errorf("batch %d: span %+v begins at row %d", b.ID, *sp, rows)
	case sp.Last != (sp.Pos+sp.Len == known):
		return fmt.Errorf("batch %d: span %+v with %d known tokens", b.ID, *sp, known)
	case sp.Decode && (known == c.PromptLen || sp.Len != 1 || !sp.Last):
		return fmt.Errorf("batch %d: decode span %+v", b.ID, *sp)
	case !sp.Decode && sp.Len > m.cfg.PrefillChunk:
		return fmt.Errorf("batch %d: chunk of %d rows", b.ID, sp.Len)
	case len(sp.Blocks) != m.cfg.blocksFor(sp.Pos+sp.Len) || cap(sp.Blocks) != len(sp.Blocks):
		return fmt.Errorf("batch %d: span %+v has %d blocks", b.ID, *sp, len(sp.Blocks))
	}
	if n := min(len(c.table), len(sp.Blocks)); !slices.Equal(c.table[:n], sp.Blocks[:n]) {
		return fmt.Errorf("request %d: block table changed from %v to %v", sp.ID, c.table, sp.Blocks)
	}
	if len(sp.Blocks) > len(c.table) {
		c.table = slices.Clone(sp.Blocks)
	}
	if m.slot[sp.Slot] != c || c.slot != sp.Slot {
		return fmt.Errorf("batch %d: request %d has slot %d, not %d", b.ID, sp.ID, c.slot, sp.Slot)
	}
	if c.begins && sp.Pos != c.cached {
		return fmt.Errorf("batch %d: request %d begins at %d, %d are cached", b.ID, sp.ID, sp.Pos, c.cached)
	}
	c.begins = false
	return nil
}

// places checks that a batch has a place of its micro-batch, beside what is in flight of it,
// and that no more batches than may have prompts.
func (m *monitor) places(b Batch) error {
	prompts := 0
	if b.Rows > b.Decode {
		prompts++
	}
	for _, x := range m.flying {
		if x.Rows > x.Decode {
			prompts++
		}
		if x.MicroBatch == b.MicroBatch && x.ID != b.After {
			return fmt.Errorf("batch %d is beside %d in micro-batch %d", b.ID, x.ID, b.MicroBatch)
		}
	}
	if b.MicroBatch < 0 || b.MicroBatch >= m.cfg.MicroBatches || prompts > m.cfg.PrefillBatches {
		return fmt.Errorf("batch %d of micro-batch %d, %d with prompts", b.ID, b.MicroBatch, prompts)
	}
	return nil
}

// goOn is the number of sequences in a batch that go on for sure.
func (m *monitor) goOn(b Batch) (n int) {
	for _, sp := range b.Spans {
		if c := m.client[sp.ID]; sp.Last && c.ended == 0 && c.tokens+1 < c.MaxNew {
			n++
		}
	}
	return n
}

// streamsBeside is the number of streams, idle or at a token, that are not of a micro-batch.
func (m *monitor) streamsBeside(micro int) (n int) {
	for _, c := range m.client {
		if c.stream { // of another micro-batch, or there would be no batch ahead
			n++
		}
	}
	for _, x := range m.flying {
		for _, sp := range x.Spans {
			if x.MicroBatch != micro && !m.before(x) && sp.Last && m.client[sp.ID].ended == 0 {
				n++
			}
		}
	}
	return n
}

// newest is the batch of a micro-batch that was made last, of those in flight.
func (m *monitor) newest(micro int) (id uint64) {
	for _, x := range m.flying {
		if x.MicroBatch == micro {
			id = max(id, x.ID)
		}
	}
	return id
}

// ahead checks that a batch follows the only one of its micro-batch in flight, takes the tokens
// of its own sequences, leaves out none that goes on for sure but what is more than the
// micro-batch's share, and that no sequence is idle that could have a row.
func (m *monitor) ahead(b Batch) error {
	if b.After == 0 {
		return nil
	}
	at := slices.IndexFunc(m.flying, func(x Batch) bool { return x.ID == b.After })
	if !m.cfg.Ahead || at < 0 || m.flying[at].MicroBatch != b.MicroBatch || m.lost[b.After] {
		return fmt.Errorf("batch %d of micro-batch %d is ahead of %d", b.ID, b.MicroBatch, b.After)
	}
	var wanted []Span
	for _, sp := range m.flying[at].Spans {
		if c := m.client[sp.ID]; sp.Last {
			wanted = append(wanted, sp)
		} else if c.ended == 0 {
			return fmt.Errorf("batch %d is ahead of a part of prompt %d", b.ID, sp.ID)
		}
	}
	on := m.goOn(m.flying[at])
	all := on + m.streamsBeside(b.MicroBatch)
	if n := len(b.Spans); n > share(all, m.cfg.MicroBatches) || m.ample && n < min(on, all/m.cfg.MicroBatches) {
		return fmt.Errorf("batch %d has %d of %d rows, beside %d of other micro-batches", b.ID, len(b.Spans), on, m.streamsBeside(b.MicroBatch))
	}
	spans := b.Spans
	for from, sp := range wanted {
		if c := m.client[sp.ID]; c.ended > 0 || c.tokens+1 >= c.MaxNew {
			continue
		}
		if len(spans) == 0 {
			break // the rest is another micro-batch's
		}
		if !m.ample && spans[0].ID != sp.ID {
			continue // there was no memory for it
		}
		if spans[0].ID != sp.ID || spans[0].From != from || spans[0].Pos != sp.Pos+sp.Len {
			return fmt.Errorf("batch %d: %+v, want the token of %+v from row %d", b.ID, spans, sp, from)
		}
		spans = spans[1:]
	}
	if len(spans) > 0 {
		return fmt.Errorf("batch %d: %+v will not be needed", b.ID, spans)
	}
	if m.ample {
		return m.nobodyIdle(b)
	}
	return nil
}

// nobodyIdle checks that a batch ahead leaves out no sequence that could be in its
// micro-batch: a stream of it, or a prompt for which no other micro-batch has room sooner.
func (m *monitor) nobodyIdle(b Batch) error {
	full, sooner := 0, false
	for _, x := range m.flying {
		if x.MicroBatch != b.MicroBatch && x.Rows > x.Decode {
			full++
		}
		sooner = sooner || m.newest(x.MicroBatch) < m.newest(b.MicroBatch)
	}
	for _, c := range m.client {
		switch {
		case c.started == 0 || c.ended > 0 || m.inFlight(c.ID):
		case c.stream && m.cfg.MicroBatches == 1:
			return fmt.Errorf("batch %d is ahead while stream %d is idle", b.ID, c.ID)
		case !c.stream && full < m.cfg.PrefillBatches && !sooner:
			return fmt.Errorf("batch %d is ahead while prompt %d is idle", b.ID, c.ID)
		}
	}
	return nil
}

// follower is the batch ahead of this one, or nil.
func (m *monitor) follower(id uint64) *Batch {
	for i := range m.flying {
		if m.flying[i].After == id {
			return &m.flying[i]
		}
	}
	return nil
}

// before is the batch in flight that this one is ahead of, if there is one.
func (m *monitor) before(b Batch) bool {
	return slices.ContainsFunc(m.flying, func(x Batch) bool { return x.ID == b.After })
}

func (m *monitor) remove(b Batch) {
	m.flying = slices.DeleteFunc(m.flying, func(x Batch) bool { return x.ID == b.ID })
	delete(m.who, b.ID)
	delete(m.lost, b.ID)
}

// land is the return of a whole batch, which every device has run by now.
func (m *monitor) land(b Batch, outcomes map[uint64]Outcome) error {
	for d := range m.devices {
		if err := m.run(d, b); err != nil {
			return err
		}
	}
	m.remove(b)
	for _, sp := range b.Spans {
		if c := m.client[sp.ID]; sp.Last && c.ended == 0 {
			c.tokens += outcomes[sp.ID].NewTokens
			c.stream, c.idleAt = !c.anew && !m.inFlight(sp.ID), m.made
			if c.anew && !m.inFlight(sp.ID) {
				c.table, c.anew = nil, false
			}
		}
	}
	return nil
}

// spoil is the loss of a batch: whatever it writes may be garbage, at once or later. The one
// ahead of it goes with it; the one before it does not.
func (m *monitor) spoil(b Batch) {
	if a := m.follower(b.ID); a != nil && !m.lost[a.ID] {
		m.void = a.ID
		m.lost[a.ID] = true
		m.garble(early, *a)
	}
	for _, sp := range b.Spans {
		m.client[sp.ID].anew = true
	}
	m.lost[b.ID] = true
	m.garble(early, b)
}

// gone is the end of all work on a lost batch. Until now devices may have written for it,
// whatever has become of its sequences.
func (m *monitor) gone(b Batch) error {
	for d := range m.devices {
		if i := slices.IndexFunc(m.flying, func(x Batch) bool { return x.ID == b.After && !m.lost[x.ID] }); i >= 0 {
			if err := m.run(d, m.flying[i]); err != nil { // in order
				return err
			}
		}
		m.garble(d, b)
	}
	m.remove(b)
	for _, sp := range b.Spans {
		if c := m.client[sp.ID]; c.anew && !m.inFlight(sp.ID) {
			c.table, c.anew = nil, false
		}
	}
	return m.core.Gone(b.ID)
}

// wipe is the loss of the cache, while nothing is in flight.
func (m *monitor) wipe() {
	for d := range m.devices {
		m.devices[d] = newSimulated(m.cfg)
	}
}

// listen hears what the core has to say, also while a step is not over.
func (m *monitor) listen() error {
	got := m.core.Effects()
	m.heard = append(m.heard, got...)
	return m.hear(got)
}

// hear takes the effects as the clients see them.
func (m *monitor) hear(effects []Effect) error {
	for i, e := range effects {
		if e.Kind == Voided {
			if i > 0 || e.Batch != m.void {
				return fmt.Errorf("effect %d is %+v, want batch %d voided", i, e, m.void)
			}
			m.void = 0
			continue
		}
		c := m.client[e.ID]
		if c == nil {
			return fmt.Errorf("%v for %d, which was not asked for", e.Kind, e.ID)
		}
		switch e.Kind {
		case Started:
			c.started++
			if err := m.settles(c, e); err != nil {
				return err
			}
			for _, other := range m.waits[:slices.Index(m.waits, c)] {
				if m.ample && other.Priority >= c.Priority {
					return fmt.Errorf("%d started before %d", c.ID, other.ID)
				}
			}
		case Resumed:
			if err := m.settles(c, e); err != nil {
				return err
			}
		case Preempted:
			if m.inFlight(e.ID) || c.ended > 0 || e.Slot != c.slot || m.slot[c.slot] != c {
				return fmt.Errorf("%d preempted: in flight %v, ended %d, slot %d of %d", c.ID, m.inFlight(e.ID), c.ended, e.Slot, c.slot)
			}
			delete(m.slot, c.slot)
			c.slot, c.table, c.stream = -1, nil, false
		case Ended:
			c.ended++
			if e.Slot != c.slot {
				return fmt.Errorf("%d ended in slot %d of %d", c.ID, e.Slot, c.slot)
			}
			c.why, c.stream = e.Reason, false
			if e.Reason == Length && c.tokens != c.MaxNew {
				return fmt.Errorf("%d ended by length after %d of %d tokens", c.ID, c.tokens, c.MaxNew)
			}
		case Released:
			c.released++
			if m.inFlight(e.ID) || c.ended != 1 || e.Slot != c.slot {
				return fmt.Errorf("%d released: in flight %v, ended %d, slot %d of %d", c.ID, m.inFlight(e.ID), c.ended, e.Slot, c.slot)
			}
			delete(m.slot, c.slot)
		}
		if i := slices.Index(m.waits, c); i >= 0 {
			m.waits = slices.Delete(m.waits, i, i+1)
		}
	}
	if m.void != 0 {
		return fmt.Errorf("batch %d was not voided", m.void)
	}
	return nil
}

// settles gives a client its slot, with the batch that has its first rows.
func (m *monitor) settles(c *client, e Effect) error {
	if c.slot >= 0 || m.slot[e.Slot] != nil || e.Cached >= c.PromptLen+c.tokens {
		return fmt.Errorf("%v: slot %d, %v", e, c.slot, m.slot[e.Slot])
	}
	c.slot, c.cached, c.begins = e.Slot, e.Cached, true
	m.slot[e.Slot] = c
	return nil
}

// audit is the end of the script: everyone was served once, nothing is held.
func (m *monitor) audit() error {
	for _, c := range m.client {
		m.past = append(m.past, c)
	}
	for _, c := range m.past {
		if c.ended != 1 || c.started > 1 || (c.released == 1) != (c.slot >= 0) || c.released > 1 || c.why == None {
			return fmt.Errorf("request %d (run %d): started %d, ended %d with %v, released %d", c.ID, c.run, c.started, c.ended, c.why, c.released)
		}
	}
	if c := m.core; c.promised != 0 || c.background != 0 || c.short != nil || len(c.groups) > 0 || c.parked.len() > 0 || c.queue.n > 0 || len(c.slots) != c.cfg.MaxSeqs {
		return fmt.Errorf("left over: %d promised, %d in the background, %d groups, %d parked, %d in the queue", c.promised, c.background, len(c.groups), c.parked.len(), c.queue.n)
	}
	st := m.core.Stats()
	if st.BlocksUsed != 0 || st.Running() != 0 || st.Waiting != 0 || st.Ending != 0 || st.InFlight != 0 || int(st.Accepted) != len(m.past) {
		return fmt.Errorf("left over: %+v, %d accepted", st, len(m.past))
	}
	return nil
}
