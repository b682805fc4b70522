package kvblocks

// Layers that see only the newest tokens (a window) keep their rows in blocks of their own, of
// which there are fewer. Such a block, a window block, belongs to the page whose tokens it has, so
// sequences that share the page share it too. While a row that may still be computed can see its
// tokens, it is pinned. Then it stays with its page until it is needed elsewhere, which makes the
// page one after which no sequence can go on.

// windowBlock is a block of the layers that have a window.
type windowBlock struct {
	page int32 // whose tokens it has; -1: none
	pins int32
}

// Window is the window block of a page, -1 for none.
func (p *Pool) Window(page int32) int32 { return p.pages[page].window }

// TakeWindow hands out a window block for a block that is held, pinned once: a free one, or the
// first one that is not pinned. There must be one: with as many as Blocks there always is,
// if only blocks that are held have pinned ones.
func (p *Pool) TakeWindow(block int32) int32 {
	var w int32
	if n := len(p.freeWindows); n > 0 {
		w = p.freeWindows[n-1]
		p.freeWindows = p.freeWindows[:n-1]
	} else {
		w = p.idleWindows.front()
		if w < 0 {
			panic("kvblocks: no window block is available")
		}
		p.idleWindows.remove(w)
		p.pages[p.windows[w].page].window = -1
	}
	p.windows[w] = windowBlock{page: block, pins: 1}
	p.block(block).window = w
	return w
}

// PinWindow keeps a window block as it is until UnpinWindow.
func (p *Pool) PinWindow(w int32) {
	if p.windows[w].pins == 0 {
		p.idleWindows.remove(w)
	}
	p.windows[w].pins++
}

// UnpinWindow ends what TakeWindow or PinWindow began. A window block that nobody pins is handed
// out again after all others if it is of use to the next sequence, else before them.
func (p *Pool) UnpinWindow(w int32, useful bool) {
	x := &p.windows[w]
	switch x.pins--; {
	case x.pins > 0:
	case x.page < 0:
		p.freeWindows = append(p.freeWindows, w)
	case useful:
		p.idleWindows.push(w)
	default:
		p.idleWindows.pushFront(w)
	}
}

// WindowsUsed is the number of window blocks that are pinned.
func (p *Pool) WindowsUsed() int { return p.cfg.Windows - len(p.freeWindows) - p.idleWindows.n }

// WindowPins is how often a window block is pinned.
func (p *Pool) WindowPins(w int32) int { return int(p.windows[w].pins) }

// dropWindow takes a page's window block away.
func (p *Pool) dropWindow(id int32) {
	w := p.pages[id].window
	if w < 0 {
		return
	}
	p.pages[id].window = -1
	x := &p.windows[w]
	x.page = -1
	if x.pins == 0 {
		p.idleWindows.remove(w)
		p.freeWindows = append(p.freeWindows, w)
	}
}

// moveWindow gives a page's window block to another page, unless that has one.
func (p *Pool) moveWindow(from, to int32) {
	w := p.pages[from].window
	if w < 0 || p.pages[to].window >= 0 {
		return
	}
	p.pages[from].window, p.pages[to].window, p.windows[w].page = -1, w, to
}
