package kvblocks

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
)

// table finds a page by its identity: the parent's and the tokens. Serials are never used twice, so
// a page whose parent was forgotten is not found again, and is evicted when it is the least
// recently used.
type table struct {
	bucket []int32 // the first page of each, -1 for none
	seed   maphash.Seed
	serial uint64 // the newest
	bytes  []byte // scratch
}

func (t *table) init(pages int) {
	n := 1
	for n < pages {
		n *= 2
	}
	t.bucket = make([]int32, n)
	for i := range t.bucket {
		t.bucket[i] = -1
	}
}

func (t *table) at(hash uint64) *int32 { return &t.bucket[hash&uint64(len(t.bucket)-1)] }

// hash is that of a parent's identity, which stands for everything before it, and tokens. Tokens
// that are alike have the same hash.
func (t *table) hash(parent uint64, tokens []int32) uint64 {
	t.bytes = binary.LittleEndian.AppendUint64(t.bytes[:0], parent)
	for _, id := range tokens {
		t.bytes = binary.LittleEndian.AppendUint32(t.bytes, uint32(id^id>>31))
	}
	return maphash.Bytes(t.seed, t.bytes)
}

// Find returns the page with these tokens after those of parent, -1 for none. A page
// below Total is a block; others are places in host memory.
func (p *Pool) Find(parent uint64, tokens []int32) int32 {
	return p.find(p.table.hash(parent, tokens), parent, tokens)
}

// FindAlike returns a page after parent whose tokens are each the wanted id or its complement, -1
// for none.
func (p *Pool) FindAlike(parent uint64, tokens []int32) int32 {
	hash := p.table.hash(parent, tokens)
	return p.search(hash, parent, func(have []int32) bool {
		return slices.EqualFunc(have, tokens, func(a, b int32) bool { return a^a>>31 == b^b>>31 })
	})
}

func (p *Pool) find(hash, parent uint64, tokens []int32) int32 {
	return p.search(hash, parent, func(have []int32) bool { return slices.Equal(have, tokens) })
}

func (p *Pool) search(hash, parent uint64, equal func([]int32) bool) int32 {
	for id := *p.table.at(hash); id >= 0; id = p.pages[id].next {
		if g := &p.pages[id]; g.hash == hash && g.parent == parent && equal(g.tokens) {
			return id
		}
	}
	return -1
}

// Tokens returns the tokens of a page with an identity. They belong to the pool.
func (p *Pool) Tokens(page int32) []int32 { return p.pages[page].tokens }

// Serial returns the identity of a page; 0 where it has none.
func (p *Pool) Serial(page int32) uint64 { return p.pages[page].serial }

// Put gives a block that is held its identity, BlockTokens tokens after those of parent, and
// returns it. With fewer tokens the block is a part: only these rows are of use, and a sequence that
// finds it copies it. Pages after a part are never found. If another block has it already, that one keeps it, and gets the window block if it
// has none.
func (p *Pool) Put(block int32, parent uint64, tokens []int32) uint64 {
	hash := p.table.hash(parent, tokens)
	if id := p.find(hash, parent, tokens); id >= 0 {
		serial := p.pages[id].serial
		if int(id) >= p.cfg.Blocks && p.pages[id].holds == 0 {
			p.resting.remove(id)
			p.pass(id, block)
			p.places = append(p.places, id)
		} else {
			p.moveWindow(block, id)
		}
		return serial
	}
	p.table.serial++
	g := p.block(block)
	g.serial, g.parent, g.hash, g.tokens = p.table.serial, parent, hash, append(g.tokens[:0], tokens...)
	g.prefix, p.named[g.serial] = p.follow(parent, tokens), block
	p.roots.count(parent, 1)
	p.countPart(g, 1)
	p.enter(block)
	return g.serial
}

// FindPart returns the part after parent with the most of the tokens, of those that ok takes, and how many it has; -1
// for none. Tokens may be their complements where alike is set, see FindAlike.
func (p *Pool) FindPart(parent uint64, tokens []int32, alike bool, ok func(page int32) bool) (page int32, n int) {
	if p.parts[parent] == 0 {
		return -1, 0
	}
	for n = min(len(tokens), p.cfg.BlockTokens-1); n > 0; n-- {
		page = p.Find(parent, tokens[:n])
		if page < 0 && alike {
			page = p.FindAlike(parent, tokens[:n])
		}
		if page >= 0 && ok(page) {
			return page, n
		}
	}
	return -1, 0
}

// countPart counts a page with an identity if it is a part.
func (p *Pool) countPart(g *page, by int) {
	if len(g.tokens) == p.cfg.BlockTokens {
		return
	}
	if p.parts[g.parent] += by; p.parts[g.parent] == 0 {
		delete(p.parts, g.parent)
	}
}

// enter puts a page into the table.
func (p *Pool) enter(id int32) {
	g := &p.pages[id]
	at := p.table.at(g.hash)
	g.next, *at, g.listed = *at, id, true
}

// leave takes a page out of the table.
func (p *Pool) leave(id int32) {
	g := &p.pages[id]
	if !g.listed {
		return
	}
	at := p.table.at(g.hash)
	for *at != id {
		at = &p.pages[*at].next
	}
	*at, g.listed = g.next, false
}

// forget removes a page's identity, with its snapshot and its window block.
func (p *Pool) forget(id int32) {
	g := &p.pages[id]
	p.leave(id)
	p.detach(id)
	p.dropWindow(id)
	p.roots.count(g.parent, -1)
	p.countPart(g, -1)
	delete(p.named, g.serial)
	g.serial, g.parent = 0, 0
}

// pass gives a page's identity and snapshot to another that has none, and its window block to one
// that has none of its own.
func (p *Pool) pass(from, to int32) {
	listed := p.pages[from].listed
	p.leave(from)
	a, b := &p.pages[from], &p.pages[to]
	b.serial, b.parent, b.hash, b.prefix, b.snap = a.serial, a.parent, a.hash, a.prefix, a.snap
	p.named[b.serial] = to
	a.tokens, b.tokens = b.tokens, a.tokens
	a.serial, a.parent, a.snap = 0, 0, -1
	p.moveWindow(from, to)
	p.dropWindow(from)
	if b.snap >= 0 {
		p.snapshot[b.snap].page = to
	}
	if listed {
		p.enter(to)
	}
}
