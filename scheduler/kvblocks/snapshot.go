package kvblocks

// snapshot is a place for the state of a sequence at the end of a block.
type snapshot struct {
	page int32 // whose tokens end there; -1: none
	pins int32 // by moves that read or write it
}

// Snapshot returns the snapshot at the end of a page, -1 for none.
func (p *Pool) Snapshot(page int32) int32 { return p.pages[page].snap }

// TakeSnapshot hands out a snapshot to be written, the least recently used if none is free, or -1.
// Kept has to follow.
func (p *Pool) TakeSnapshot() int32 {
	if n := len(p.vacant); n > 0 {
		s := p.vacant[n-1]
		p.vacant = p.vacant[:n-1]
		p.snapshot[s].pins = 1
		return s
	}
	s := p.kept.front()
	if s < 0 {
		return -1
	}
	p.kept.remove(s)
	p.pages[p.snapshot[s].page].snap = -1
	p.snapshot[s] = snapshot{page: -1, pins: 1}
	return s
}

// Kept reports whether a snapshot was written, and at the end of which block, which is held. The
// snapshot belongs to the block if that has an identity and no snapshot yet, and then Kept returns
// true; otherwise it is free again.
func (p *Pool) Kept(snap, block int32, ok bool) bool {
	g := p.block(block)
	p.snapshot[snap].pins = 0
	if !ok || g.serial == 0 || g.snap >= 0 {
		p.vacant = append(p.vacant, snap)
		return false
	}
	g.snap, p.snapshot[snap].page = snap, block
	p.kept.push(snap)
	return true
}

// PinSnapshot keeps a snapshot as it is until UnpinSnapshot.
func (p *Pool) PinSnapshot(snap int32) {
	if p.snapshot[snap].pins == 0 {
		p.kept.remove(snap)
	}
	p.snapshot[snap].pins++
}

// UnpinSnapshot ends what PinSnapshot began.
func (p *Pool) UnpinSnapshot(snap int32) {
	s := &p.snapshot[snap]
	switch s.pins--; {
	case s.pins > 0:
	case s.page >= 0:
		p.kept.push(snap)
	default:
		p.vacant = append(p.vacant, snap)
	}
}

// DropSnapshot frees the snapshot of a block, if it has one.
func (p *Pool) DropSnapshot(block int32) { p.detach(block) }

// detach takes a page's snapshot away.
func (p *Pool) detach(id int32) {
	snap := p.pages[id].snap
	if snap < 0 {
		return
	}
	p.pages[id].snap = -1
	s := &p.snapshot[snap]
	s.page = -1
	if s.pins == 0 {
		p.kept.remove(snap)
		p.vacant = append(p.vacant, snap)
	}
}
