package scheduler

import (
	"fmt"
	"slices"
)

// trie gives every list of tokens a number, so that a position's keys and values can be held
// against all tokens up to there: what a row reads must have been written by a row with
// the same tokens before it.
type trie struct {
	next  map[edge]int
	nodes int
}

type edge struct{ node, token int }

func newTrie() *trie { return &trie{next: map[edge]int{}} }

// step is the number of a list with one more token.
func (t *trie) step(node, token int) int {
	e := edge{node, token}
	if t.next[e] == 0 {
		t.nodes++
		t.next[e] = t.nodes
	}
	return t.next[e]
}

// path returns the contents that the device must hold at the client's position p.
func (m *monitor) path(c *client, p int) int {
	for len(c.path) <= p {
		node := -int(c.run) - 1000 // shares with no other
		if c.Prompt != nil {
			node = -1 - int(c.Domain[0])
		}
		if n := len(c.path); n > 0 {
			node = c.path[n-1]
		}
		token := m.token(c, len(c.path), node)
		if m.cfg.Classes && len(c.path) >= c.PromptLen {
			token += 1 << 16 // computed otherwise than the same token of a prompt
		}
		c.path = append(c.path, m.tokens.step(node, token))
	}
	return c.path[p]
}

// adopt sets the expected path of a client's cached prompt rows: a row may be cached in the form of
// a prompt or of a generated token, and the client expects the same form.
func (m *monitor) adopt(d *simulated, sp *Span, c *client) {
	if c.found || !m.cfg.ReuseAnswers || c.Prompt == nil {
		return
	}
	c.found, c.path = true, nil
	node := -1 - int(c.Domain[0])
	for p := range min(sp.Pos, c.PromptLen) {
		made := *d.cell(m.cfg, sp, p) == m.tokens.step(node, int(c.Prompt[p])+1<<16)
		c.answered = append(c.answered, made)
		token := int(c.Prompt[p])
		if made {
			token += 1 << 16
		}
		node = m.tokens.step(node, token)
		c.path = append(c.path, node)
	}
}

// form reports whether the row of a position must be computed like the row of a generated token.
func (c *client) form(p int) bool {
	return p >= c.PromptLen || p < len(c.answered) && c.answered[p]
}

// token is the client's token at position p after those with a number: what is generated
// depends on what was there before, as with a model.
func (m *monitor) token(c *client, p, node int) int {
	switch {
	case p < c.PromptLen && c.Prompt != nil:
		return int(c.Prompt[p])
	case p < c.PromptLen:
		return p
	}
	return (node*7 + int(c.run)%2) % 3
}

// generated are the ids of the client's next n tokens.
func (m *monitor) generated(c *client, n int) (ids []int32) {
	for p := c.PromptLen + c.tokens; len(ids) < n; p++ {
		ids = append(ids, int32(m.token(c, p, m.path(c, p-1))))
	}
	return ids
}

// simulated is the KV cache of a layer group that runs batches at times of its own: micro-batch by
// micro-batch in order, at any time between their making and their return.
type simulated struct {
	blocks, ram      [][]int // numbers of lists of tokens; 0: garbage
	windows          [][]int // of layers with a window
	states, snapshot []int
	ran              map[uint64]bool // batches in flight
}

const early, late, whenever = 0, 1, 2

func newSimulated(cfg Config) *simulated {
	d := &simulated{blocks: make([][]int, cfg.Blocks), ram: make([][]int, cfg.RAMBlocks), states: make([]int, cfg.MaxSeqs), snapshot: make([]int, cfg.Snapshots), windows: make([][]int, cfg.WindowBlocks), ran: map[uint64]bool{}}
	for _, list := range [][][]int{d.blocks, d.ram, d.windows} {
		for i := range list {
			list[i] = make([]int, cfg.BlockTokens)
		}
	}
	return d
}

func (d *simulated) move(m Move) {
	switch m.Kind {
	case Copy:
		copy(d.blocks[m.To], d.blocks[m.From])
	case Save:
		copy(d.ram[m.To], d.blocks[m.From])
	case Load:
		copy(d.blocks[m.To], d.ram[m.From])
	case SaveState:
		d.snapshot[m.To] = d.states[m.From]
	case LoadState:
		d.states[m.To] = d.snapshot[m.From]
	case CopyWindow:
		copy(d.windows[m.To], d.windows[m.From])
	}
}

// lose makes garbage of what a move writes.
func (d *simulated) lose(m Move) {
	switch m.Kind {
	case Copy, Load:
		clear(d.blocks[m.To])
	case Save:
		clear(d.ram[m.To])
	case SaveState:
		d.snapshot[m.To] = 0
	case LoadState:
		d.states[m.To] = 0
	case CopyWindow:
		clear(d.windows[m.To])
	}
}

// run has a device carry out a batch, if it has not: every row's context must be
// that of its sequence, and where state is not in blocks that, too (CASES 17).
func (m *monitor) run(device int, b Batch) error {
	d := m.devices[device]
	if d.ran[b.ID] {
		return nil
	}
	d.ran[b.ID] = true
	for _, mv := range b.Moves {
		d.move(mv)
	}
	if !slices.ContainsFunc(m.who[b.ID], func(c *client) bool { return c.ended == 0 }) {
		d.spoil(m.cfg, b) // no client waits for it: it is passed on without being computed
		return nil
	}
	for i := range b.Spans {
		sp, c := &b.Spans[i], m.who[b.ID][i]
		if m.cfg.RecomputeSingly && sp.Recomputed && (sp.Len != 1 || i > 0 && !b.Spans[i-1].Decode && !b.Spans[i-1].Recomputed) {
			return fmt.Errorf("batch %d, request %d: %d generated rows at once, or behind a prompt's", b.ID, sp.ID, sp.Len)
		}
		m.adopt(d, sp, c)
		for p := range sp.Pos {
			if got, want := *d.cell(m.cfg, sp, p), m.path(c, p); got != want {
				return fmt.Errorf("device %d, batch %d, request %d: position %d of block %d holds %d, want %d", device, b.ID, sp.ID, p, sp.Blocks[p/m.cfg.BlockTokens], got, want)
			}
		}
		for p := max(0, sp.Pos+1-m.cfg.Window); m.cfg.Window > 0 && p < sp.Pos; p++ {
			if got, want := *d.window(m.cfg, sp, p), m.path(c, p); got != want {
				return fmt.Errorf("device %d, batch %d, request %d: position %d of window block %d holds %d, want %d", device, b.ID, sp.ID, p, sp.Windows[p/m.cfg.BlockTokens], got, want)
			}
		}
		if m.cfg.Snapshots > 0 && sp.Pos > 0 && d.states[sp.Slot] != m.path(c, sp.Pos-1) {
			return fmt.Errorf("device %d, batch %d, request %d: its state is not that of position %d", device, b.ID, sp.ID, sp.Pos)
		}
		for p := sp.Pos; p < sp.Pos+sp.Len; p++ {
			if made := sp.Decode || sp.Recomputed; m.cfg.Classes && made != c.form(p) {
				return fmt.Errorf("batch %d, request %d: position %d of a prompt of %d is computed as generated: %v, it had %d such rows", b.ID, sp.ID, p, c.PromptLen, made, len(c.answered))
			}
			*d.cell(m.cfg, sp, p) = m.path(c, p)
			if m.cfg.Window > 0 {
				*d.window(m.cfg, sp, p) = m.path(c, p)
			}
		}
		d.states[sp.Slot] = m.path(c, sp.Pos+sp.Len-1)
	}
	return nil
}

func (d *simulated) cell(cfg Config, sp *Span, p int) *int {
	return &d.blocks[sp.Blocks[p/cfg.BlockTokens]][p%cfg.BlockTokens]
}

func (d *simulated) window(cfg Config, sp *Span, p int) *int {
	return &d.windows[sp.Windows[p/cfg.BlockTokens]][p%cfg.BlockTokens]
}

// garble makes garbage of all that a lost batch writes.
func (m *monitor) garble(device int, b Batch) {
	d := m.devices[device]
	d.ran[b.ID] = true
	for _, mv := range b.Moves {
		d.lose(mv)
	}
	d.spoil(m.cfg, b)
}

// spoil makes garbage of what a batch's rows write.
func (d *simulated) spoil(cfg Config, b Batch) {
	for i := range b.Spans {
		sp := &b.Spans[i]
		for p := sp.Pos; p < sp.Pos+sp.Len; p++ {
			*d.cell(cfg, sp, p) = 0
			if cfg.Window > 0 {
				*d.window(cfg, sp, p) = 0
			}
		}
		d.states[sp.Slot] = 0
	}
}

// whenever has a device carry out some of the batches in flight that are next in their micro-batches.
func (m *monitor) whenever(now func(Batch) bool) error {
	var micros []int
	for _, b := range m.flying {
		if m.devices[whenever].ran[b.ID] || slices.Contains(micros, b.MicroBatch) {
			continue
		}
		if !now(b) {
			micros = append(micros, b.MicroBatch)
			continue
		}
		if m.lost[b.ID] {
			m.garble(whenever, b)
			continue
		}
		if err := m.run(whenever, b); err != nil {
			return err
		}
	}
	return nil
}
