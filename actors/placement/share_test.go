package placement

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// TestShare: from times of steps that are noisy, the part of the missing experts that makes steps shortest is found
// soon, whatever it is, and finding it costs little. Classes of steps have parts of their own.
func TestShare(t *testing.T) {
	for best := 0; best <= shareLevels; best++ {
		r := rand.New(rand.NewPCG(1, uint64(best)))
		var s share
		level, sum, late := 0, 0.0, 0
		took := func(rows, level, best int) float64 {
			return float64(rows) * (1 + 0.06*math.Abs(float64(level-best))) * (1 + 0.03*r.NormFloat64())
		}
		last := 0.0
		const steps = 1500
		for i := range steps {
			level, _ = s.next(1, time.Duration(last*float64(time.Second)))
			last = took(1, level, best)
			sum += 1 + 0.06*math.Abs(float64(level-best))
			if i >= 600 && level != best {
				late++
			}
		}
		t.Logf("best %d: %.4f of the shortest steps, %d late ones with another part", best, sum/steps, late)
		if sum/steps > 1.01+0.01*float64(best) || late > 90 {
			t.Errorf("best %d: %.4f of the shortest steps, %d late ones with another part", best, sum/steps, late)
		}
		if other, _ := s.next(16, time.Second); other != firstLevel {
			t.Errorf("the first step of 16 rows has level %d", other)
		}
	}
}

// TestShareOutliers: steps that take strangely long say nothing, unless they have become usual.
func TestShareOutliers(t *testing.T) {
	var a, b share
	last, other := 0.0, 0.0
	for i := range 400 {
		x, _ := a.next(1, time.Duration(last*float64(time.Second)))
		y, _ := b.next(1, time.Duration(other*float64(time.Second)))
		if x != y {
			t.Fatalf("step %d: level %d, with outliers %d", i, x, y)
		}
		last = 1 + 0.05*float64(x)
		other = last
		if i%7 == 5 {
			last, other = 0, 50
		}
	}
}
