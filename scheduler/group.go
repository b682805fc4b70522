package scheduler

import "slices"

// group holds the state of siblings while one of them is live: which block has the end of their
// prompt. It does not keep the block, so the block may be gone when a late sibling looks for it.
type group struct {
	members int
	there   bool // the rest is filled in
	block   int32
	gen     uint32 // of the block
	link    uint64 // identity of the block before it
	prompt  int    // tokens
	end     []int32
}

// joinGroup counts a sequence among its siblings.
func (c *Core) joinGroup(s *seq) {
	if s.req.Group == 0 || !s.reuses {
		return
	}
	g := c.groups[s.req.Group]
	if g == nil {
		g = &group{}
		c.groups[s.req.Group] = g
	}
	g.members++
	s.siblings = g
}

// leaveGroup takes a sequence off its siblings, and forgets the group with its last member.
func (c *Core) leaveGroup(s *seq) {
	g := s.siblings
	if g == nil {
		return
	}
	s.siblings = nil
	if g.members--; g.members == 0 {
		delete(c.groups, s.req.Group)
	}
}

// notePromptEnd notes for the siblings of a sequence, whose prompt was computed just now, where
// that prompt ends.
func (c *Core) notePromptEnd(s *seq) {
	g, n := s.siblings, s.req.PromptLen/c.cfg.BlockTokens
	if g == nil || g.members == 1 || s.linked != n || s.req.PromptLen%c.cfg.BlockTokens == 0 {
		return
	}
	g.there, g.block, g.gen, g.link, g.prompt = true, s.blocks[n], c.pool.Generation(s.blocks[n]), s.link, s.req.PromptLen
	g.end = append(g.end[:0], s.req.Prompt[n*c.cfg.BlockTokens:]...)
}

// tail returns the block with the end of a sibling's prompt, if that is the end of the sequence's
// and comes after the chain, and the positions that are in it and before.
func (g *group) tail(c *Core, s *seq) (block int32, upto int, ok bool) {
	if g == nil || !g.there || g.prompt != s.req.PromptLen || g.link != c.chain.link || g.gen != c.pool.Generation(g.block) || !c.pool.Useful(g.block) {
		return 0, 0, false
	}
	return g.block, g.prompt, slices.Equal(g.end, s.req.Prompt[len(c.chain.pages)*c.cfg.BlockTokens:])
}
