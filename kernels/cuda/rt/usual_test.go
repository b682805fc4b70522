package rt

import (
	"testing"
	"time"
)

// waited simulates a wait that ends after d, with sleeps that take late longer than requested. It
// returns when the end is noticed and how long a core has polled.
func waited(u *usual, d, late time.Duration) (seen, looked time.Duration) {
	for {
		nap, look := u.next(seen)
		if nap == 0 && look == 0 {
			panic("neither sleeps nor looks")
		}
		if nap > 0 {
			seen += nap + late
		}
		if seen >= d {
			break
		}
		if end := min(seen+look, d); end > seen {
			looked += end - seen
			seen = end
		}
		if seen >= d {
			break
		}
	}
	u.took(seen)
	return seen, looked
}

// TestUsual: waits notice the end at once when steps repeat, with most of the core's time free,
// and soon when a step is unlike the earlier ones.
func TestUsual(t *testing.T) {
	const late = 60 * time.Microsecond
	for _, step := range []time.Duration{300 * time.Microsecond, 1250 * time.Microsecond, 5400 * time.Microsecond, 40 * time.Millisecond} {
		var u usual
		for range 60 {
			waited(&u, step, late)
		}
		for i := range 20 {
			d := step + time.Duration(i%5-2)*step/100
			seen, looked := waited(&u, d, late)
			if seen-d > 5*time.Microsecond {
				t.Errorf("a step of %v is seen after %v", d, seen)
			}
			if most := d/6 + 2*wakeUp + maxNap; looked > most {
				t.Errorf("a step of %v: a core looked for %v, at most %v wanted", d, looked, most)
			}
		}
		for _, d := range []time.Duration{50 * time.Microsecond, step / 3, 7 * step, time.Second} {
			v := u
			if seen, _ := waited(&v, d, late); seen-d > maxNap+late {
				t.Errorf("after steps of %v, one of %v is seen after %v", step, d, seen)
			}
		}
	}
}
