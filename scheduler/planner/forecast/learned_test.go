package forecast

import (
	"math"
	"testing"
)

// TestReplayed: a skew has the curve that it was made of, and its line passes over a point that bends inward.
func TestReplayed(t *testing.T) {
	s, err := Replayed([]Hit{{0.125, 0.4}, {0.25, 0.5}, {0.5, 0.8}}, 64)
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]float64{0: 0, 4: 0.2, 8: 0.4, 16: 0.4 + 0.4/3, 32: 0.8, 48: 0.9, 64: 1} {
		if got := s.Hot(n); math.Abs(got-want) > 1e-9 {
			t.Errorf("%d experts have %g of the work, want %g", n, got, want)
		}
	}
	for i := 1; i < len(s.share); i++ {
		if s.share[i] > s.share[i-1]+1e-12 {
			t.Errorf("expert %d has more than the one before: %v", i, s.share)
		}
	}
	if s, err := Replayed([]Hit{{1, 1}}, 4); err != nil || math.Abs(s.Hot(1)-0.25) > 1e-12 {
		t.Errorf("%v, %v", s, err)
	}
	for _, curve := range [][]Hit{{{0, 0.5}}, {{0.5, 0.5}, {0.5, 0.6}}, {{0.5, math.NaN()}}, {{0.5, 1.1}}, {{1.5, 1}}} {
		if s, err := Replayed(curve, 8); err == nil {
			t.Errorf("%v is taken: %v", curve, s)
		}
	}
}

// TestCorrect: what was served with one part of the experts in memory is predicted for it, and for another part and another
// number of streams as on a machine that is so much slower and has such routers.
func TestCorrect(t *testing.T) {
	wrong := lite()
	wrong.Skew = Uniform(wrong.Shape.Experts)
	right := wrong
	right.Learned.Hits = Zipf(right.Shape.Experts).sharper(1.7)
	const slow = 1.6
	all := float64(right.Shape.all())
	token := func(c Case, places, rows float64) Time {
		x, err := c.chooser()
		if err != nil {
			t.Fatal(err)
		}
		stay := int(math.Round(places * all))
		return x.tokens(&strategies[learnedNumber], layout{kept: stay / c.Shape.MoE, more: stay % c.Shape.MoE}, rows)
	}
	served := token(right, 0.3, 2)
	v := Served{Tokens: 200, Places: 0.3, Rows: 2, Seconds: slow * served.Total, HitRate: served.Found / served.Wanted}
	c := wrong
	if done, err := c.Correct(v); err != nil || !done {
		t.Fatal(done, err)
	}
	far := false
	for _, x := range [][2]float64{{0.3, 2}, {0.3, 1}, {0.15, 1}, {0.6, 8}} {
		want := slow * token(right, x[0], x[1]).Total
		got, before := c.Learned.Slow*token(c, x[0], x[1]).Total, token(wrong, x[0], x[1]).Total
		far = far || math.Abs(before/want-1) > 0.25
		if math.Abs(got/want-1) > 0.02 {
			t.Errorf("%g of the experts, %g streams: %g s, want %g", x[0], x[1], got, want)
		}
	}
	if !far {
		t.Error("nothing had to be corrected")
	}
	if done, err := c.Correct(Served{Tokens: ServedLeast - 1}); done || err != nil {
		t.Errorf("too few tokens: %v, %v", done, err)
	}
	for _, bad := range []Served{{Tokens: 100, Rows: 1}, {Tokens: 100, Rows: 1, Seconds: math.NaN()}, {Tokens: 100, Rows: 1, Seconds: 1, HitRate: 2}, {Tokens: 100, Rows: 0.5, Seconds: 1}} {
		if _, err := c.Correct(bad); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	for _, places := range []float64{0, 1} { // whatever the skew
		if done, err := c.Correct(Served{Tokens: 100, Places: places, Rows: 1, Seconds: 1, HitRate: places}); err != nil || !done {
			t.Errorf("%v, %v", done, err)
		}
	}
}
