package kvblocks

// Layers with a window see only the newest tokens. They keep their rows in window blocks, which are
// fewer than blocks. A window block belongs to the page with the same tokens, so sequences that share
// the page share its window block. It is pinned while a later row of a sequence may read it. After
// that it stays with its page until another page takes it. A sequence can continue at the end of a page
// only if all pages in the window before that end still have their window blocks.

// windowBlock is a block of the layers with a window.
type windowBlock struct {
	page int32 // the page that it belongs to; -1: none
	pins int32
}

// Window returns the window block of a page, -1 for none.
func (p *Pool) Window(page int32) int32 { return p.pages[page].window }

// TakeWindow gives a held block a window block and pins it once: a free one, else the first that is
// not pinned, which its page loses. It panics if all are pinned. That cannot happen if only held
// blocks have pinned window blocks and there are as many window blocks as blocks.
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

// PinWindow keeps a window block with its page until UnpinWindow.
func (p *Pool) PinWindow(w int32) {
	if p.windows[w].pins == 0 {
		p.idleWindows.remove(w)
	}
	p.windows[w].pins++
}

// UnpinWindow undoes one TakeWindow or PinWindow. TakeWindow hands out a window block without pins
// after all others if it is useful to other sequences, else before them.
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

// WindowsUsed returns the number of window blocks that are pinned.
func (p *Pool) WindowsUsed() int { return p.cfg.Windows - len(p.freeWindows) - p.idleWindows.n }

// WindowPins returns the number of pins of a window block.
func (p *Pool) WindowPins(w int32) int { return int(p.windows[w].pins) }

// dropWindow takes the window block from a page.
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
