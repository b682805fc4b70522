package dispatch

import (
	"cmp"
	"slices"
)

// weightedPin is static_pin with slots for each layer by itself: a layer whose router
// prefers few experts gets more, as pins save more there.
type weightedPin struct{}

func (weightedPin) Name() string { return "weighted_pin" }

func (w weightedPin) Start(s *Setup) (Start, error) {
	if err := s.check(); err != nil {
		return Start{}, err
	}
	return pinned(w.Name(), s, s.hottestByLayer)
}

func (weightedPin) Decide(out *Decision, in *Step) { cached(out, in) }

func (weightedPin) Smaller(*Setup) Strategy { return cpuOnly{} }

// hottestByLayer are n experts that are not kept already: of each layer the hottest, as
// many as its skew deserves.
func (s *Setup) hottestByLayer(n int) []Key {
	layers := make([][]Key, len(s.Layers))
	room := make([]int, len(s.Layers))
	skews := make([]float64, len(s.Layers))
	for _, k := range s.hottest(s.all()) {
		i, _ := slices.BinarySearch(s.Layers, k.Layer)
		layers[i] = append(layers[i], k)
		room[i]++
	}
	for i := range skews {
		skews[i] = s.skew(i)
	}
	keys := make([]Key, 0, n)
	for i, count := range apportion(n, skews, room) {
		keys = append(keys, layers[i][:count]...)
	}
	return keys
}

// skew is how much the router of a layer prefers some experts: E times the sum of the
// squares of their shares, 1 where all are alike and E where it chooses one alone.
func (s *Setup) skew(index int) float64 {
	if s.Heat == nil {
		return 1
	}
	sum, squares := 0.0, 0.0
	for _, c := range s.Heat[index] {
		sum += float64(c)
		squares += float64(c) * float64(c)
	}
	if sum == 0 {
		return 1
	}
	return float64(s.Experts) * squares / (sum * sum)
}

// apportion divides n by weights (all above 0), to none more than its room, whose sum
// is at least n: whole shares first, then one by one by the largest remainder.
func apportion(n int, weights []float64, room []int) []int {
	counts := make([]int, len(weights))
	for left := n; left > 0; {
		total := 0.0
		var open []int
		for i, w := range weights {
			if counts[i] < room[i] {
				open, total = append(open, i), total+w
			}
		}
		share := func(i int) float64 { return float64(left) * weights[i] / total }
		given := 0
		for _, i := range open {
			more := min(int(share(i)), room[i]-counts[i], left-given)
			counts[i] += more
			given += more
		}
		if given == 0 {
			slices.SortStableFunc(open, func(a, b int) int { return cmp.Compare(share(b), share(a)) })
			for _, i := range open[:min(left, len(open))] {
				counts[i]++
				given++
			}
		}
		left -= given
	}
	return counts
}
