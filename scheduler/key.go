package scheduler

import "math"

// account is what a key has been given: rows of prompts count one, decode rows
// decodeCost. Of those at the same level the one with the smaller sum goes first, so keys
// that compete get equal shares (virtual token counters, arXiv 2401.00588).
type account struct {
	served uint64
	live   int // requests
}

// decodeCost is what a decode row counts, which reads the weights for one token.
const decodeCost = 2

// keysMax is the number of accounts beyond which those that make no difference are dropped.
const keysMax = 1024

// open finds the account of a key for one more request. A key that had none begins with
// the smallest sum of those that have: time that it did not use gives it no credit.
func (c *Core) open(key uint64) *account {
	a := c.keys[key]
	if a == nil {
		if len(c.keys) >= keysMax {
			c.sweep()
		}
		a = &account{}
		c.keys[key] = a
	}
	if a.live == 0 {
		if least, ok := c.leastServed(); ok {
			a.served = max(a.served, least)
		}
	}
	a.live++
	return a
}

// leastServed is the smallest sum of a key that has requests.
func (c *Core) leastServed() (uint64, bool) {
	least, ok := uint64(math.MaxUint64), false
	for _, a := range c.keys {
		if a.live > 0 {
			least, ok = min(least, a.served), true
		}
	}
	return least, ok
}

// sweep drops the accounts without requests that would begin anew with no less.
func (c *Core) sweep() {
	least, ok := c.leastServed()
	for key, a := range c.keys {
		if a.live == 0 && (!ok || a.served <= least) {
			delete(c.keys, key)
		}
	}
}
