package forecast

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestSkew(t *testing.T) {
	for _, experts := range []int{4, 8, 64, 128, 512} {
		z, u := Zipf(experts), Uniform(experts)
		if h := z.Hot(experts / 4); math.Abs(h-0.5) > 1e-6 {
			t.Errorf("%d: the hottest quarter has %g of the work", experts, h)
		}
		if h := u.Hot(experts / 4); math.Abs(h-0.25) > 1e-9 {
			t.Errorf("%d: a quarter has %g of the work", experts, h)
		}
		if z.Hot(-1) != 0 || math.Abs(z.Hot(experts+1)-1) > 1e-9 {
			t.Errorf("%d: none has %g, all have %g", experts, z.Hot(-1), z.Hot(experts+1))
		}
	}
	// Two layers, hottest 0.6 and 0.8; one that nobody counted.
	s, err := Counted([][]uint32{{1, 6, 3}, {0, 0, 0}, {math.MaxUint32 / 8 * 8, math.MaxUint32 / 8, math.MaxUint32 / 8}}, 3)
	if err != nil || math.Abs(s.Hot(1)-0.7) > 1e-6 || math.Abs(s.Hot(2)-0.9) > 1e-6 || math.Abs(s.Hot(3)-1) > 1e-12 {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := Counted(nil, 5); err != nil || s.Hot(1) != 0.2 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := Counted([][]uint32{{1, 2}}, 3); err == nil {
		t.Error("counts of too few experts are accepted")
	}
}

// TestPicks: a row takes k experts, none more than once, hotter ones more likely.
func TestPicks(t *testing.T) {
	all, _ := Counted([][]uint32{{1000, 1000, 5, 3, 2}}, 5)
	one, _ := Counted([][]uint32{{7, 0, 0, 0}}, 4)
	for _, s := range []Skew{Uniform(8), Zipf(8), Zipf(64), all, one} {
		for k := 1; k <= min(8, len(s.share)); k++ {
			q := s.picks(k)
			sum := taken(q, 1)
			if s.Hot(1) < 1 && math.Abs(sum-float64(k)) > 1e-9 {
				t.Errorf("%v: %d are taken, want %d: %v", s.Name, k, k, q)
			}
			for i := range q {
				if !(q[i] >= 0 && q[i] <= 1) || i > 0 && q[i] > q[i-1] {
					t.Errorf("%s, %d: %v", s.Name, k, q)
					break
				}
			}
		}
	}
	if q := all.picks(3); q[0] != 1 || q[1] != 1 || math.Abs(q[2]-0.5) > 1e-12 {
		t.Errorf("%v", q)
	}
}

// TestActive is by hand: of 64 experts of which a row takes 6, 32 rows take 61.3.
func TestActive(t *testing.T) {
	q := Uniform(64).picks(6)
	for m, want := range map[float64]float64{0: 0, 1: 6, 2: 11.4375, 32: 61.2577} {
		if got := active(q, m); math.Abs(got-want) > 1e-3 {
			t.Errorf("%g rows take %g experts, want %g", m, got, want)
		}
	}
}

// TestHits compares the approximation with a cache that is really kept.
func TestHits(t *testing.T) {
	for _, c := range []struct {
		skew          Skew
		topK, m, slot int
	}{{Uniform(64), 6, 1, 16}, {Zipf(64), 6, 1, 13}, {Zipf(64), 6, 1, 32}, {Zipf(64), 6, 4, 40}, {Zipf(128), 8, 1, 24}, {Zipf(128), 8, 8, 96}, {Zipf(64), 6, 1, 64}} {
		q := c.skew.picks(c.topK)
		got := hits(q, float64(c.m), float64(c.slot))
		want := simulate(q, c.m, c.slot)
		if math.Abs(got-want) > 0.03 {
			t.Errorf("%s of %d, %d rows, %d places: %.3f, a real cache %.3f", c.skew.Name, len(q), c.m, c.slot, got, want)
		}
	}
	q := Zipf(64).picks(6)
	last := 0.0
	for slots := range 65 {
		h := hits(q, 1, float64(slots))
		if h < last || h > 1 {
			t.Errorf("%d places: %g, one less %g", slots, h, last)
		}
		last = h
	}
	if last != 1 {
		t.Errorf("all places hit %g", last)
	}
}

// simulate keeps the experts used last, over steps of m rows; experts are chosen
// independently of each other with their likelihoods.
func simulate(q []float64, m, slots int) float64 {
	r := rand.New(rand.NewPCG(1, 2))
	var cache []int // the one used last at the end
	hit, all := 0, 0
	for step := range 3000 {
		var need []int
		for e, p := range q {
			if r.Float64() < chosen(p, float64(m)) {
				need = append(need, e)
			}
		}
		r.Shuffle(len(need), func(i, j int) { need[i], need[j] = need[j], need[i] })
		for _, e := range need {
			if at := slices.Index(cache, e); at >= 0 { // what is there is used before others come
				cache = slices.Delete(cache, at, at+1)
				if step > 500 {
					hit++
				}
			}
		}
		if step > 500 {
			all += len(need)
		}
		cache = append(cache, need...)
		cache = cache[max(0, len(cache)-slots):]
	}
	return float64(hit) / float64(all)
}
