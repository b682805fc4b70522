package scheduler

import (
	"fmt"
	"slices"
)

// monitor knows nothing of how the core decides. It plays the clients, who want
// every request answered once and in turn, and a device whose cache rows hold
// the token they were written for, so that a wrong or shared block shows.
type monitor struct {
	cfg    Config
	core   *Core
	flying []Batch
	cache  []row // by KV slot
	client map[uint64]*client
	past   []*client // of ids that were used again
	waits  []*client // accepted, not started, not ended, in order of arrival
	made   uint64    // batches
}

// row is the content of a KV slot; run 0 is garbage.
type row struct {
	run uint64 // of the client that wrote it
	pos int
}

// client is one accepted request seen from outside.
type client struct {
	Request
	run                      uint64 // unique, unlike the id
	started, ended, released int
	why                      Reason
	slot                     int
	table                    []int32
	tokens                   int    // generated
	idleAt                   uint64 // batches made when it went idle in decode
	stream                   bool   // idle in decode
}

func newMonitor(cfg Config, core *Core) *monitor {
	return &monitor{cfg: cfg, core: core, cache: make([]row, cfg.Blocks*cfg.BlockTokens), client: map[uint64]*client{}}
}

func (m *monitor) accept(r Request) {
	c := &client{Request: r, run: uint64(len(m.client)+len(m.past)) + 1}
	if old := m.client[r.ID]; old != nil {
		m.past = append(m.past, old)
	}
	m.client[r.ID] = c
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

// send checks a new batch and lets the device begin to write. Started effects
// come with it, so they are read only afterwards.
func (m *monitor) send(b Batch) error {
	m.made++
	rows, prefill, wanted := 0, 0, 0
	for i := range b.Spans {
		sp := &b.Spans[i]
		c := m.client[sp.ID]
		switch {
		case c == nil || c.ended > 0:
			return fmt.Errorf("batch %d works for request %d, which is over", b.ID, sp.ID)
		case m.inFlight(sp.ID):
			return fmt.Errorf("request %d is in two batches", sp.ID)
		case sp.Row != rows || sp.Len < 1:
			return fmt.Errorf("batch %d: span %+v begins at row %d", b.ID, *sp, rows)
		case sp.Last != (sp.Pos+sp.Len == c.PromptLen+c.tokens):
			return fmt.Errorf("batch %d: span %+v with %d known tokens", b.ID, *sp, c.PromptLen+c.tokens)
		case sp.Decode && (c.tokens == 0 || sp.Len != 1 || !sp.Last):
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
		for p := range sp.Pos {
			if got := m.cache[m.slotOf(sp, p)]; got != (row{c.run, p}) {
				return fmt.Errorf("batch %d, request %d: position %d holds %+v", b.ID, sp.ID, p, got)
			}
		}
		rows += sp.Len
		if !sp.Decode {
			prefill += sp.Len
		}
		if sp.Last {
			wanted++
		}
		c.stream = false
	}
	streams := 0
	for _, c := range m.client {
		if c.ended > 0 || c.tokens == 0 {
			continue
		}
		if c.stream && m.made >= c.idleAt+uint64(m.cfg.Depth) {
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
	case len(m.flying) >= m.cfg.Depth:
		return fmt.Errorf("batch %d is one too many in flight", b.ID)
	}
	b.Spans = slices.Clone(b.Spans)
	m.flying = append(m.flying, b)
	m.write(b)
	return nil
}

// write stores a batch's rows: it happens when the batch is sent and once more
// as late as can be, just before it returns.
func (m *monitor) write(b Batch) {
	for i := range b.Spans {
		sp := &b.Spans[i]
		for p := sp.Pos; p < sp.Pos+sp.Len; p++ {
			m.cache[m.slotOf(sp, p)] = row{m.client[sp.ID].run, p}
		}
	}
}

func (m *monitor) remove(b Batch) {
	m.flying = slices.DeleteFunc(m.flying, func(x Batch) bool { return x.ID == b.ID })
}

// land is the return of a whole batch.
func (m *monitor) land(b Batch, outcomes map[uint64]Outcome) {
	m.write(b)
	m.remove(b)
	for _, sp := range b.Spans {
		if c := m.client[sp.ID]; sp.Last && c.ended == 0 {
			c.tokens += outcomes[sp.ID].NewTokens
			c.stream, c.idleAt = true, m.made
		}
	}
}

// spoil is the loss of a batch: any row of its sequences may be garbage.
func (m *monitor) spoil(b Batch) {
	m.remove(b)
	for i := range b.Spans {
		sp := &b.Spans[i]
		for p := range sp.Pos + sp.Len {
			m.cache[m.slotOf(sp, p)] = row{}
		}
	}
}

// wipe is the loss of the cache and of all that is in flight.
func (m *monitor) wipe() {
	clear(m.cache)
	m.flying = nil
	for _, c := range m.client {
		c.stream = false
	}
}

// hear takes the effects as the clients see them.
func (m *monitor) hear(effects []Effect) error {
	for _, e := range effects {
		c := m.client[e.ID]
		if c == nil {
			return fmt.Errorf("%v for %d, which nobody asked for", e.Kind, e.ID)
		}
		switch e.Kind {
		case Started:
			c.started++
			c.slot = e.Slot
			for _, other := range m.waits[:slices.Index(m.waits, c)] {
				if other.Priority >= c.Priority {
					return fmt.Errorf("%d started before %d", c.ID, other.ID)
				}
			}
		case Ended:
			c.ended++
			c.why, c.stream = e.Reason, false
			if e.Reason == Length && c.tokens != c.MaxNew {
				return fmt.Errorf("%d ended by length after %d of %d tokens", c.ID, c.tokens, c.MaxNew)
			}
		case Released:
			c.released++
			if m.inFlight(e.ID) || c.ended != 1 || e.Slot != c.slot {
				return fmt.Errorf("%d released: in flight %v, ended %d, slot %d of %d", c.ID, m.inFlight(e.ID), c.ended, e.Slot, c.slot)
			}
		}
		if i := slices.Index(m.waits, c); i >= 0 {
			m.waits = slices.Delete(m.waits, i, i+1)
		}
	}
	return nil
}

// audit is the end of the script: everyone was served once, nothing is held.
func (m *monitor) audit() error {
	for _, c := range m.client {
		m.past = append(m.past, c)
	}
	for _, c := range m.past {
		if c.ended != 1 || c.started > 1 || c.released != c.started || c.why == None {
			return fmt.Errorf("request %d (run %d): started %d, ended %d with %v, released %d", c.ID, c.run, c.started, c.ended, c.why, c.released)
		}
	}
	st := m.core.Stats()
	if st.BlocksUsed != 0 || st.Running() != 0 || st.Waiting != 0 || st.Ending != 0 || st.InFlight != 0 || int(st.Accepted) != len(m.past) {
		return fmt.Errorf("left over: %+v, %d accepted", st, len(m.past))
	}
	return nil
}
