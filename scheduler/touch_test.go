package scheduler

import "fmt"

// memory is a piece of a layer group's memory: a block, a place on the host, a snapshot or
// the state of a slot.
type memory struct {
	kind string
	id   int32
}

// touches lists the memory that a batch reads and writes, whenever a device executes it.
type touches struct{ reads, writes map[memory]bool }

// touch lists what a batch reads and what it writes. What a Save empties counts as
// written. What a Copy reads does not count: no batch writes the positions that matter.
func (m *monitor) touch(b Batch) touches {
	t := touches{map[memory]bool{}, map[memory]bool{}}
	for _, mv := range b.Moves {
		switch mv.Kind {
		case Copy:
			t.writes[memory{"block", mv.To}] = true
		case Save:
			t.writes[memory{"block", mv.From}] = true
			t.writes[memory{"place", mv.To}] = true
		case Load:
			t.reads[memory{"place", mv.From}] = true
			t.writes[memory{"block", mv.To}] = true
		case SaveState:
			t.reads[memory{"state", mv.From}] = true
			t.writes[memory{"snapshot", mv.To}] = true
		case LoadState:
			t.reads[memory{"snapshot", mv.From}] = true
			t.writes[memory{"state", mv.To}] = true
		case CopyWindow:
			t.writes[memory{"window block", mv.To}] = true
		}
	}
	for i := range b.Spans {
		sp := &b.Spans[i]
		for _, block := range sp.Blocks {
			t.reads[memory{"block", block}] = true
		}
		for p := sp.Pos; p < sp.Pos+sp.Len; p++ {
			t.writes[memory{"block", sp.Blocks[p/m.cfg.BlockTokens]}] = true
			if m.cfg.Window > 0 {
				t.writes[memory{"window block", sp.Windows[p/m.cfg.BlockTokens]}] = true
			}
		}
		for i := m.cfg.windowStart(sp.Pos); i < len(sp.Windows); i++ {
			t.reads[memory{"window block", sp.Windows[i]}] = true
		}
		t.writes[memory{"state", int32(sp.Slot)}] = true
	}
	return t
}

// apart checks that a new batch does not write what a batch in flight touches, lost or not, and
// does not touch what that batch writes, unless it follows that batch in its micro-batch.
func (m *monitor) apart(b Batch) error {
	mine := m.touch(b)
	for _, x := range m.flying {
		if x.ID == b.After {
			continue
		}
		theirs := m.touch(x)
		for _, pair := range [][2]touches{{mine, theirs}, {theirs, mine}} {
			for at := range pair[0].writes {
				if pair[1].writes[at] || pair[1].reads[at] {
					return fmt.Errorf("batches %d and %d are in flight (lost %v) and share %s %d", b.ID, x.ID, m.lost[x.ID], at.kind, at.id)
				}
			}
		}
	}
	return nil
}
