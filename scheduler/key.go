package scheduler

import "slices"

// payer identifies an account: a key, and apart from it what that key runs in the background. So
// work done in idle time costs the key nothing in its other requests.
type payer struct {
	key        uint64
	background bool
}

// account holds a key's requests and the service that the key has received. Keys share the rows by
// start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996): served is the virtual time at which the
// key's next rows of prompts start, and the key with the earliest time goes first. A row of a prompt
// counts 1, a decode row decodeCost.
type account struct {
	payer
	live    int         // requests, those that have ended and are in flight too
	count   [phases]int // live requests in each phase
	served  uint64
	turn    uint64 // when it last came to have rows of prompts to compute; unique
	running []*seq // that have a slot and have not ended, in the order in which they keep it
	blocks  int    // that those hold, when rank was called last
}

// decodeCost is the cost of a decode row in rows of prompts. A decode row reads the weights for one
// token, so it costs more.
const decodeCost = 2

// debt is the number of batches' worth of prompts by which a key can be behind others, or ahead of
// them, when it has rows of prompts to compute.
const debt = 4

// keysMax is the number of accounts beyond which those that make no difference are dropped.
const keysMax = 1024

// open returns the account for one more request.
func (c *Core) open(r *Request) *account {
	p := payer{r.Key, r.Background}
	a := c.keys[p]
	if a == nil {
		if len(c.keys) >= keysMax {
			c.sweep()
		}
		a = &account{payer: p}
		c.keys[p] = a
	}
	a.live++
	return a
}

// sweep drops the accounts without requests that would start again with no less.
func (c *Core) sweep() {
	for p, a := range c.keys {
		if a.live == 0 && a.served <= *c.clock(a) {
			delete(c.keys, p)
		}
	}
}

// clock returns the virtual time of the accounts that an account competes with: the start of the rows of
// prompts that were handed out last.
func (c *Core) clock(a *account) *uint64 {
	if a.background {
		return &c.clocks[1]
	}
	return &c.clocks[0]
}

// waits returns the number of requests that have rows of prompts to compute.
func (a *account) waits() int { return a.count[waiting] + a.count[filling] }

// tally counts a live request into a phase or out of it. A key that had nothing to compute starts
// at the current virtual time: what it did not use gives it no credit.
func (c *Core) tally(s *seq, p phase, by int) {
	a := s.key
	if by > 0 && p != decoding && a.waits() == 0 {
		c.turns++
		a.turn, a.served = c.turns, max(a.served, *c.clock(a))
	}
	c.count[p] += by
	was := a.waits() + a.count[decoding]
	a.count[p] += by
	switch now := a.waits() + a.count[decoding]; {
	case a.background:
	case was == 0:
		c.active++
	case now == 0:
		c.active--
	}
}

// slack returns the number of rows by which a waiting key may be behind virtual time, or a key with
// running answers ahead of it.
func (c *Core) slack() uint64 { return uint64(debt * c.cfg.PrefillShare) }

// catchUp forgets what a key was owed beyond slack while it waited for slots or memory. It would
// delay others at once by all of it.
func (c *Core) catchUp(a *account) {
	if now := *c.clock(a); now > c.slack() {
		a.served = max(a.served, now-c.slack())
	}
}

// billPrompt charges rows of a prompt to a key, and advances virtual time.
func (c *Core) billPrompt(a *account, rows int) {
	now := c.clock(a)
	*now = max(*now, a.served)
	a.served += uint64(rows)
}

// billDecode charges a decode row to a key. Decode rows wait for no turn, so a key may have had
// more than its share of them; that delays its prompts for a bounded time.
func (c *Core) billDecode(a *account) {
	if most := *c.clock(a) + c.slack(); a.served < most {
		a.served = min(a.served+decodeCost, most)
	}
}

// before is the order of keys: the background last, then the key that was served less, then the one
// that has waited longer. It is total.
func (a *account) before(b *account) bool {
	switch {
	case a.background != b.background:
		return b.background
	case a.served != b.served:
		return a.served < b.served
	}
	return a.turn < b.turn
}

// enters is the order in which keys are admitted: the background last, then the key that has less
// of slots and memory, then before.
func (c *Core) enters(a, b *account) bool {
	if a.background == b.background {
		if pa, pb := c.portion(len(a.running), a.blocks), c.portion(len(b.running), b.blocks); pa != pb {
			return pa < pb
		}
	}
	return a.before(b)
}

// above is the order of the requests of one key: level, then arrival.
func above(a, b *seq) bool {
	if a.level != b.level {
		return a.level > b.level
	}
	return a.arrival < b.arrival
}

// addRunning counts a sequence among the running ones of its key.
func (c *Core) addRunning(s *seq) {
	a := s.key
	at := len(a.running)
	for at > 0 && above(s, a.running[at-1]) {
		at--
	}
	if len(a.running) == 0 {
		c.busyKeys = append(c.busyKeys, a)
	}
	a.running = slices.Insert(a.running, at, s)
	c.rank(a)
}

// removeRunning takes a sequence off the running ones of its key.
func (c *Core) removeRunning(s *seq) {
	a := s.key
	at := slices.Index(a.running, s)
	if at < 0 {
		return
	}
	a.running = slices.Delete(a.running, at, at+1)
	if c.rank(a); len(a.running) > 0 {
		return
	}
	at = slices.Index(c.busyKeys, a)
	c.busyKeys = slices.Delete(c.busyKeys, at, at+1)
}

// rank sets the tiers of the sequences that run for a key. A sequence's tier is how much of the
// machine those of its key that come before it have.
func (c *Core) rank(a *account) {
	tier := -1
	a.blocks = 0
	for i, s := range a.running {
		tier = max(tier+1, c.portion(i, a.blocks))
		s.tier = tier
		a.blocks += s.own()
	}
}

// portion returns the larger of the shares that these slots and blocks are of all there are (dominant
// resource fairness, Ghodsi et al., NSDI 2011). All of either is MaxSeqs*Blocks.
func (c *Core) portion(slots, blocks int) int {
	return max(slots*c.cfg.Blocks, blocks*c.cfg.MaxSeqs)
}

// own returns the number of blocks that a sequence holds and that others did not hold when it began.
func (s *seq) own() int { return max(0, len(s.blocks)-s.borrowed) }
