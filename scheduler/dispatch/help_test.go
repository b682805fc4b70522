package dispatch

import (
	"math"
	"testing"
)

// TestHelpShare: a helper gets the share at which both devices end together, as far as sixteenths allow, and none that would not make a layer
// shorter.
func TestHelpShare(t *testing.T) {
	for _, c := range []struct {
		Help
		want float64
	}{
		{Help{Alone: 16, Held: 8, Part: 0.5}, 0.5},
		{Help{Alone: 16, Held: 16, Part: 0.5}, 5. / 16}, // half the speed
		{Help{Alone: 16, Held: 80, Part: 0.5}, 1. / 16}, // a tenth
		{Help{Alone: 16, Held: 80, Part: 0.5, Turn: 1}, 0},
		{Help{Alone: 16, Held: 10, Carry: 2, Part: 0.5}, 7. / 16},
		{Help{Alone: 16, Held: 24, Carry: 16, Part: 0.5}, 0}, // a slow link
		{Help{Alone: 16, Held: 2, Part: 0.25}, 0.25},         // it holds no more
		{Help{Alone: 16, Held: 2}, 0},
	} {
		got := c.Share()
		if got != c.want {
			t.Errorf("%+v: %v, want %v", c.Help, got, c.want)
		}
		if c.Helps(got) != (got > 0) {
			t.Errorf("%+v: helps %v with %v", c.Help, c.Helps(got), got)
		}
		if got > 0 && c.time(got) >= c.Alone {
			t.Errorf("%+v: %v is longer than alone", c.Help, got)
		}
	}
}

// TestDivide: a helper gets its share of the choices whatever the heat, hot experts and cold ones, and no others than it may have.
func TestDivide(t *testing.T) {
	heats := map[string]func(e int) uint32{
		"equal":  func(int) uint32 { return 7 },
		"rising": func(e int) uint32 { return uint32(10 * e) },
		"few":    func(e int) uint32 { return uint32(10000 / (1 + e*e)) },
	}
	for name, heat := range heats {
		const experts = 64
		list, all := make([]uint32, experts), 0.0
		for e := range list {
			list[e] = heat(e)
			all += float64(list[e]) + 1
		}
		for _, share := range []float64{0, 1. / 16, 0.25, 7. / 16, 0.5, 1} {
			takes, sum, most := Divide(experts, list, nil, share), 0.0, 0.0
			for e, takes := range takes {
				if most = max(most, float64(list[e])+1); takes {
					sum += float64(list[e]) + 1
				}
			}
			if math.Abs(sum-share*all) > most/2+1e-9 {
				t.Errorf("%s: %v of the choices, want %v", name, sum/all, share)
			}
			half := Divide(experts, list, nil, 0.5)
			got := 0
			for e, takes := range Divide(experts, list, half, share) {
				if takes && !half[e] {
					t.Fatalf("%s: expert %d may not be chosen", name, e)
				}
				if takes {
					got++
				}
			}
			if share >= 0.5 && got == 0 || share == 0 && got > 0 {
				t.Errorf("%s: %d experts for %v", name, got, share)
			}
		}
	}
	if n := len(Divide(3, nil, nil, 0.5)); n != 3 {
		t.Error(n)
	}
}
