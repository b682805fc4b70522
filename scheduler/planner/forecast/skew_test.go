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

// TestHits compares the approximations with caches that are really kept.
func TestHits(t *testing.T) {
	for _, c := range []struct {
		skew           Skew
		topK, m, place int
	}{
		{Uniform(64), 6, 1, 16}, {Zipf(64), 6, 1, 13}, {Zipf(64), 6, 1, 32}, {Zipf(64), 6, 4, 40}, {Zipf(128), 8, 1, 24}, {Zipf(128), 8, 8, 96},
		{Zipf(64), 6, 1, 64}, {Zipf(64), 6, 8, 20}, {Zipf(64), 6, 2048, 40}, {Uniform(64), 6, 8, 10},
	} {
		q := c.skew.picks(c.topK)
		for name, x := range map[string]struct {
			layers int
			got    float64
		}{
			"own":    {1, ownHits(q, float64(c.m), float64(c.place))},
			"shared": {12, sharedHits(q, float64(c.m), float64(c.place))},
		} {
			if want := simulate(q, c.m, c.place, x.layers); math.Abs(x.got-want) > 0.04 {
				t.Errorf("%s, %s of %d, %d rows, %d places: %.3f, a real cache %.3f", name, c.skew.Name, len(q), c.m, c.place, x.got, want)
			}
		}
	}
	q := Zipf(64).picks(6)
	for name, hits := range map[string]func([]float64, float64, float64) float64{"own": ownHits, "shared": sharedHits} {
		for _, m := range []float64{1, 3, 20, 3000} {
			last := 0.0
			for places := range 65 {
				h := hits(q, m, float64(places))
				if h < last-1e-12 || h > 1 {
					t.Errorf("%s: %d places: %g, one less %g", name, places, h, last)
				}
				last = h
			}
			if last != 1 {
				t.Errorf("%s: all places hit %g", name, last)
			}
		}
	}
}

// simulate keeps the experts of several layers that were used last, over steps of m rows;
// experts are chosen independently of each other with their likelihoods. What is there
// is used before others come.
func simulate(q []float64, m, places, layers int) float64 {
	r := rand.New(rand.NewPCG(1, 2))
	var cache []int // the one used last at the end
	hit, all := 0, 0
	const steps, warm = 600, 100
	for step := range steps {
		for layer := range layers {
			var need []int
			for e, p := range q {
				if r.Float64() < chosen(p, float64(m)) {
					need = append(need, layer*len(q)+e)
				}
			}
			r.Shuffle(len(need), func(i, j int) { need[i], need[j] = need[j], need[i] })
			for _, e := range need {
				if at := slices.Index(cache, e); at >= 0 {
					cache = slices.Delete(cache, at, at+1)
					if step >= warm {
						hit++
					}
				}
			}
			if step >= warm {
				all += len(need)
			}
			cache = append(cache, need...)
			cache = cache[max(0, len(cache)-places*layers):]
		}
	}
	return float64(hit) / float64(all)
}

// TestSlotHits: places that layers overwrite for each other.
func TestSlotHits(t *testing.T) {
	for _, c := range []struct {
		skew            Skew
		topK, m, layers int
	}{{Uniform(64), 6, 1, 2}, {Zipf(64), 6, 1, 2}, {Zipf(64), 6, 1, 8}, {Zipf(64), 6, 8, 3}, {Zipf(64), 6, 1, 1}} {
		q := c.skew.picks(c.topK)
		r := rand.New(rand.NewPCG(3, 4))
		order := make([][]int, c.layers)
		for i := range order {
			order[i] = r.Perm(len(q))
		}
		holds := make([]int, len(q))
		hit, all := 0, 0
		for range 5000 {
			for layer := range c.layers {
				for e := range q {
					if r.Float64() >= chosen(q[order[layer][e]], float64(c.m)) {
						continue
					}
					all++
					if holds[e] == layer {
						hit++
					}
					holds[e] = layer
				}
			}
		}
		if got, want := slotHits(q, float64(c.m), float64(c.layers)), float64(hit)/float64(all); math.Abs(got-want) > 0.05 { // the other layers count as uniform
			t.Errorf("%s, %d rows, %d layers: %.3f, real places %.3f", c.skew.Name, c.m, c.layers, got, want)
		}
	}
}
