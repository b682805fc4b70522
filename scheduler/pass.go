package scheduler

// A device that holds a part of a model's experts copies the others for a pass (Config.PassRows). That costs about the same for one prompt
// and for several, so prompts that come while streams are in decode collect until the share of time for passes allows the next. Streams are in the pass
// as well: each gets a token from it.

// notePass notes the time that a pass took, once it is back.
func (c *Core) notePass(now int64) {
	c.now = now
	if c.passed == 0 || c.record(c.pass) != nil {
		return
	}
	c.passAt = now + (now-c.passed)*int64(100-c.cfg.PassShare)/int64(c.cfg.PassShare)
	c.passed = 0
}

// passRoom returns the number of rows of prompts that the rules for passes allow a batch with the given number of rows while streams
// are in decode.
func (c *Core) passRoom(rows int) int {
	if c.cfg.PassRows == 0 {
		return rowsMax
	}
	if c.passed == 0 && c.now >= c.passAt {
		return rowsMax
	}
	mixed := max(0, min(c.cfg.PassMixed, c.cfg.PassRows-1-rows))
	if c.promptRows(mixed) > mixed {
		return 0
	}
	return mixed
}

// promptRows counts the rows of prompts that could be computed now, up to one above most. Of those that have not started, only the one whose
// turn it is counts.
func (c *Core) promptRows(most int) (n int) {
	for _, s := range c.filling.all() {
		if n += s.known - s.computed; n > most {
			return n
		}
	}
	if s := c.next(); s != nil {
		n += s.known - len(c.chain.pages)*c.cfg.BlockTokens
	}
	return n
}
