package kvblocks

import "fmt"

// Check verifies the pool's books and names the first contradiction. It costs time in the
// number of pages and is meant for tests and idle moments.
func (p *Pool) Check() error {
	free, vacant := make([]bool, len(p.pages)), make([]bool, len(p.snapshot))
	for _, list := range [][]int32{p.free, p.places} {
		for _, id := range list {
			if free[id] {
				return fmt.Errorf("kvblocks: page %d is twice free", id)
			}
			free[id] = true
		}
	}
	for _, s := range p.vacant {
		if vacant[s] || p.snapshot[s].page >= 0 || p.snapshot[s].pins > 0 {
			return fmt.Errorf("kvblocks: snapshot %d is free and %+v", s, p.snapshot[s])
		}
		vacant[s] = true
	}
	shut := 0
	for i := range p.pages {
		closed := i >= p.open && i < p.cfg.Blocks && p.pages[i].holds == 0
		if closed {
			shut++
		}
		if closed && free[i] {
			return fmt.Errorf("kvblocks: block %d is free, handed out are %d", i, p.open)
		}
		if err := p.checkPage(int32(i), free[i] || closed); err != nil {
			return err
		}
	}
	if shut != p.shut {
		return fmt.Errorf("kvblocks: %d blocks from %d on are not held, the books say %d", shut, p.open, p.shut)
	}
	for i, s := range p.snapshot {
		id := int32(i)
		if s.page >= 0 && p.pages[s.page].snap != id || vacant[id] != (s.page < 0 && s.pins == 0) || p.kept.has(id) != (s.page >= 0 && s.pins == 0) {
			return fmt.Errorf("kvblocks: snapshot %d: %+v, free %v, kept %v", id, s, vacant[id], p.kept.has(id))
		}
	}
	if err := p.checkWindows(); err != nil {
		return err
	}
	named := 0
	for i := range p.pages {
		if g := &p.pages[i]; g.serial != 0 {
			named++
			if at, ok := p.named[g.serial]; !ok || at != int32(i) {
				return fmt.Errorf("kvblocks: the identity of page %d is found at %d, %t", i, at, ok)
			}
		}
	}
	if named != len(p.named) {
		return fmt.Errorf("kvblocks: %d pages with an identity, %d are found", named, len(p.named))
	}
	for domain, r := range p.roots.byDomain {
		if r.uses <= 0 || p.roots.bySerial[r.serial] != r {
			return fmt.Errorf("kvblocks: root %x has %d uses", domain[:4], r.uses)
		}
	}
	return nil
}

func (p *Pool) checkPage(id int32, free bool) error {
	g := &p.pages[id]
	list := &p.idle
	if int(id) >= p.cfg.Blocks {
		list = &p.resting
	}
	rests := g.holds == 0 && g.serial != 0
	switch {
	case g.holds < 0, free != (g.holds == 0 && g.serial == 0), list.has(id) != rests:
		return fmt.Errorf("kvblocks: page %d: free %v, idle %v, held %d, identity %d", id, free, list.has(id), g.holds, g.serial)
	case g.serial == 0 && (g.snap >= 0 || g.listed || g.holds == 0 && g.window >= 0):
		return fmt.Errorf("kvblocks: page %d has no identity: %+v", id, *g)
	case g.serial != 0 && (len(g.tokens) == 0 || len(g.tokens) > p.cfg.BlockTokens):
		return fmt.Errorf("kvblocks: page %d has %d tokens", id, len(g.tokens))
	case g.listed && p.find(g.hash, g.parent, g.tokens) != id:
		return fmt.Errorf("kvblocks: page %d is found as %d", id, p.find(g.hash, g.parent, g.tokens))
	case g.snap >= 0 && p.snapshot[g.snap].page != id:
		return fmt.Errorf("kvblocks: snapshot %d of page %d is that of %d", g.snap, id, p.snapshot[g.snap].page)
	}
	return nil
}

func (p *Pool) checkWindows() error {
	free := make([]bool, len(p.windows))
	for _, w := range p.freeWindows {
		free[w] = true
	}
	for i, x := range p.windows {
		w := int32(i)
		if x.pins < 0 || x.page >= 0 && p.pages[x.page].window != w || free[w] != (x.page < 0 && x.pins == 0) || p.idleWindows.has(w) != (x.page >= 0 && x.pins == 0) {
			return fmt.Errorf("kvblocks: window block %d: %+v, free %v, idle %v", w, x, free[w], p.idleWindows.has(w))
		}
	}
	for i := range p.pages {
		if w := p.pages[i].window; w >= 0 && p.windows[w].page != int32(i) {
			return fmt.Errorf("kvblocks: window block %d of page %d is that of %d", w, i, p.windows[w].page)
		}
	}
	return nil
}
