package forecast

import (
	"math"
	"testing"

	"krater/scheduler/planner/rates"
)

// TestHeadsSee: the rows of a prompt see what adding them one by one gives.
func TestHeadsSee(t *testing.T) {
	for _, window := range []int{0, 1, 7, 100, 1000} {
		for _, pos := range []int{0, 1, 50, 99, 100, 400} {
			for _, rows := range []int{1, 6, 7, 100, 300} {
				want := 0
				for i := range rows {
					n := pos + i + 1
					if window > 0 {
						n = min(n, window)
					}
					want += n
				}
				if got := (&Heads{Window: window}).seen(float64(pos), float64(rows)); math.Abs(got-float64(want)) > 1e-6 {
					t.Errorf("%d rows behind %d, window %d: %g tokens, want %d", rows, pos, window, got, want)
				}
			}
		}
	}
}

// TestHeadsHaveRates: the time of attention is that of the kernel for its heads, of what its window leaves, and
// generated rows read the keys that it leaves too.
func TestHeadsHaveRates(t *testing.T) {
	of := func(h ...Heads) (prompt, step float64) {
		c := lite()
		c.Rates.Card.Heads256, c.Rates.Card.Heads512 = rates.Curve{Peak: 400}, rates.Curve{Peak: 100}
		c.Shape.Heads = h
		x := calc{s: &c.Shape, card: &c.Rates.Card, cpu: &c.Rates.CPU, w: &c.Work}
		return x.rest(0, 2048).Card, x.step(1, true).Card
	}
	prompt, step := of()
	const pairs = 2048 * 2049 / 2
	for _, x := range []struct {
		h            Heads
		prompt, keys float64
	}{
		{Heads{Size: 256, PairFLOP: 1e6, KVToken: 1000}, 1e6 * pairs / 400e12, 2048},
		{Heads{Size: 512, PairFLOP: 1e6, KVToken: 1000}, 1e6 * pairs / 100e12, 2048},
		{Heads{Size: 256, PairFLOP: 1e6, KVToken: 1000, Window: 1024}, 1e6 * (1024*1025/2 + 1024*1024) / 400e12, 1024},
	} {
		p, s := of(x.h)
		near(t, "a prompt", p-prompt, x.prompt, 1e-6)
		near(t, "a step", s-step, x.keys*1000/(1e9*3083*0.55), 1e-6)
	}
	if c := (&rates.Card{Heads64: rates.Curve{Peak: 300}}).Heads(80); c.Peak > 3 {
		t.Errorf("heads of 80, which have no kernel of their own: %+v", c)
	}
}

// TestSmallOperators: each takes its launch and a constant time.
func TestSmallOperators(t *testing.T) {
	c := lite()
	x := calc{s: &c.Shape, card: &c.Rates.Card, cpu: &c.Rates.CPU, w: &c.Work}
	before := x.step(1, true).Total
	c.Shape.Small = 100
	near(t, "100 small operators", x.step(1, true).Total-before, 100e-6*(1.6+smallUS), 1e-9)
}
