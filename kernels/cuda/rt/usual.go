package rt

import "time"

// usual is how long waits for a stream take. A step of generated rows takes as long as the
// one before it, so who waits sleeps most of that and looks closely near the end: it is
// there when the GPU is done, and its core is free meanwhile. A wait that is unlike the
// last ones is looked at every maxNap.
type usual struct{ d time.Duration }

const (
	// maxNap is the longest sleep between two looks: what a wait that ends early loses.
	maxNap = 100 * time.Microsecond
	// wakeUp is what a sleep takes longer than asked, at most times.
	wakeUp = 80 * time.Microsecond
	// minNap is not worth a sleep below.
	minNap = 20 * time.Microsecond
)

// next is what to do after a wait has taken so long: to sleep for nap, then to look for
// look at the most.
func (u *usual) next(passed time.Duration) (nap, look time.Duration) {
	near := u.d/8 + wakeUp // so near the usual time, on either side, a core looks on
	switch {
	case passed < u.d-near-minNap:
		return min(maxNap, u.d-near-passed), 0
	case passed < u.d+near:
		return 0, u.d + near - passed
	}
	return maxNap, 0
}

// took notes a wait. Short ones count at once, long ones by and by: looking too early
// costs a part of a core, too late costs time.
func (u *usual) took(d time.Duration) {
	if d < u.d || u.d == 0 {
		u.d = d
		return
	}
	u.d += (d - u.d) / 8
}
