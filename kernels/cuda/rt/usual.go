package rt

import "time"

// usual estimates how long waits for a stream take. A step of generated rows takes as long as the
// one before it. So a waiter sleeps for most of that time and polls near the end: it notices the
// end at once, and its core is free meanwhile. A wait unlike the earlier ones is checked every
// maxNap.
type usual struct{ d time.Duration }

const (
	// maxNap is the longest sleep between two checks, and so the most that an early end is
	// noticed late.
	maxNap = 100 * time.Microsecond
	// wakeUp is how much longer than requested a sleep usually takes.
	wakeUp = 80 * time.Microsecond
	// minNap is the shortest useful sleep.
	minNap = 20 * time.Microsecond
)

// next returns what to do after a wait of that length: sleep for nap, then poll for at most look.
func (u *usual) next(passed time.Duration) (nap, look time.Duration) {
	near := u.d/8 + wakeUp // this near the usual time, on either side, a core polls
	switch {
	case passed < u.d-near-minNap:
		return min(maxNap, u.d-near-passed), 0
	case passed < u.d+near:
		return 0, u.d + near - passed
	}
	return maxNap, 0
}

// took records a wait. Short ones count at once, long ones gradually: polling too early costs a
// part of a core, too late costs time.
func (u *usual) took(d time.Duration) {
	if d < u.d || u.d == 0 {
		u.d = d
		return
	}
	u.d += (d - u.d) / 8
}
