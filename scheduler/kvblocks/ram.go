package kvblocks

// retire moves an evicted block's identity to a place in host memory and returns that place; the
// place is searchable after Saved. It returns -1 if there is none, and for a part, which is not worth a copy.
func (p *Pool) retire(block int32) int32 {
	id := int32(-1)
	if len(p.pages[block].tokens) == p.cfg.BlockTokens {
		id = p.place()
	}
	if id < 0 {
		p.forget(block)
		return -1
	}
	p.leave(block)
	p.pass(block, id)
	p.pages[id].holds = 1
	return id - int32(p.cfg.Blocks)
}

// place takes a free place, or evicts the least recently used one; -1 for none.
func (p *Pool) place() int32 {
	if n := len(p.places); n > 0 {
		id := p.places[n-1]
		p.places = p.places[:n-1]
		return id
	}
	id := p.resting.front()
	if id >= 0 {
		p.resting.remove(id)
		p.forget(id)
	}
	return id
}

// Saved reports whether the contents that Alloc evicted are in their place. If not, they are lost.
func (p *Pool) Saved(place int32, ok bool) {
	id := place + int32(p.cfg.Blocks)
	g := &p.pages[id]
	g.holds--
	if ok && p.find(g.hash, g.parent, g.tokens) < 0 {
		p.enter(id)
		p.resting.push(id)
		return
	}
	p.forget(id)
	p.places = append(p.places, id)
}

// Place returns the place in host memory that a page from Find is; -1 for a block.
func (p *Pool) Place(page int32) int32 { return max(-1, page-int32(p.cfg.Blocks)) }

// Pin keeps a place as it is until Loaded: its contents are being copied to a block.
func (p *Pool) Pin(place int32) {
	id := place + int32(p.cfg.Blocks)
	if p.pages[id].holds == 0 {
		p.resting.remove(id)
	}
	p.pages[id].holds++
}

// Pinned reports whether the contents of a place are being copied.
func (p *Pool) Pinned(place int32) bool { return p.pages[place+int32(p.cfg.Blocks)].holds > 0 }

// Unpin ends what Pin began without a copy.
func (p *Pool) Unpin(place int32) { p.Loaded(place, -1, false) }

// Loaded reports whether a block that is held has the contents of a place. It takes over their
// identity, unless another block has done so, and the place is free when no other move loads from
// it.
func (p *Pool) Loaded(place, block int32, ok bool) {
	id := place + int32(p.cfg.Blocks)
	g := &p.pages[id]
	g.holds--
	if ok && g.serial != 0 {
		p.pass(id, block)
	}
	switch {
	case g.holds > 0:
	case g.serial != 0:
		p.resting.push(id)
	default:
		p.places = append(p.places, id)
	}
}
