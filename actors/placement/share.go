package placement

import (
	"math"
	"math/bits"
	"time"
)

// share finds out, by times of steps, what part of a layer's missing experts is best copied over the link while
// the host computes the others. The best part depends on the number of rows, so each class of numbers has its own trial.
type share struct {
	trials map[int]*trial
	class  int // of the last step; 0: its time says nothing
}

// classOf returns the class of a number of rows: they are within a factor of two.
func classOf(rows int) int { return bits.Len(uint(rows)) }

// next takes the time of the last step, 0 if it is not known, and returns the part for a step with the given number of rows, in
// shareLevels, and the largest part that is tried for such steps now.
func (s *share) next(rows int, last time.Duration) (level, most int) {
	c := classOf(rows)
	if c != s.class {
		last = 0
	}
	s.class = c
	t := s.of(c)
	level = t.next(last.Seconds())
	return level, t.most()
}

// of returns the trial of a class.
func (s *share) of(class int) *trial {
	t := s.trials[class]
	if t == nil {
		if s.trials == nil {
			s.trials = map[int]*trial{}
		}
		t = &trial{at: firstLevel, to: firstLevel - 1, down: true, rest: settling, pause: pauseLeast}
		s.trials[class] = t
	}
	return t
}

// trial compares two parts: the one in use, and another. They take turns, a block of steps each.
type trial struct {
	at, to int  // the part in use, and the one that is tried
	other  bool // this block's part is to
	step   int  // of the block
	sum    [2]float64
	n      [2]int
	diffs  []float64 // of pairs of blocks: how much longer the steps of to take, as a part
	usual  float64   // time of a step, about
	rest   int       // steps until another part is tried
	pause  int       // the next rest
	down   bool      // the next part that is tried is the smaller one
}

const (
	// shareLevels is the number of steps from none of the missing experts to all.
	shareLevels = 8
	// firstLevel is the part in use at first. It makes a step shortest where the link has some 0.6 of the bandwidth that
	// processors have, and nearly so for 0.3 to 1. To begin with none would lose more where a disturbed trial does not find that copies pay.
	firstLevel = 3
	// settling is the number of steps before the first trial: first steps get shorter by themselves.
	settling = 16
	// blockSteps take the same part. The first blockSkip are not counted: a step may be enqueued before the one before it has ended, and
	// the first one with a part is captured.
	blockSteps = 5
	blockSkip  = 2
	// pairsMost is the pairs of blocks after which a part that has not been better is given up.
	pairsMost = 8
	// pairNoise is the deviation of a pair's difference that is assumed at least.
	pairNoise = 0.02
	// worthwhile is how much shorter steps have to be.
	worthwhile = 0.01
	// hopeless ends a trial after the first pair. It is large: the routers may have changed their habits within the pair.
	hopeless = 0.2
	// A part that is kept is left in peace for a while, longer each time that the other was worse beyond doubt.
	pauseLeast, pauseMost = 64, 512
	// strange is how many times the usual time a step has to take not to be counted.
	strange = 3
)

// level returns the part of the present block.
func (t *trial) level() int {
	if t.other {
		return t.to
	}
	return t.at
}

// most returns the largest part that is in use or tried.
func (t *trial) most() int {
	if t.rest > 0 {
		return t.at
	}
	return max(t.at, t.to)
}

// next takes the time of the last step in seconds, 0 if it is not known, and returns the next one's part.
func (t *trial) next(last float64) int {
	if last > 0 && t.usual > 0 && last > strange*t.usual {
		t.usual *= 1.1 // it may have become usual
		last = 0
	}
	if last > 0 {
		t.usual += (last - t.usual) / float64(min(blockSteps, 1+t.n[0]+t.n[1]))
	}
	if t.rest > 0 {
		t.rest--
		return t.at
	}
	side := 0
	if t.other {
		side = 1
	}
	if last > 0 && t.step > blockSkip {
		t.sum[side] += last
		t.n[side]++
	}
	if t.step == blockSteps {
		t.step = 0
		if t.other = !t.other; !t.other {
			t.pair()
		}
	}
	t.step++
	return t.level()
}

// pair looks at a pair of blocks that has ended.
func (t *trial) pair() {
	if t.n[0] == 0 || t.n[1] == 0 {
		return
	}
	diff := t.sum[1]/float64(t.n[1])/(t.sum[0]/float64(t.n[0])) - 1
	t.sum, t.n = [2]float64{}, [2]int{}
	t.diffs = append(t.diffs, diff)
	k, mean, spread := float64(len(t.diffs)), 0.0, 0.0
	for _, d := range t.diffs {
		mean += d / k
	}
	for _, d := range t.diffs {
		spread += (d - mean) * (d - mean)
	}
	doubt := 2 * max(pairNoise, math.Sqrt(spread/max(1, k-1))) / math.Sqrt(k)
	switch {
	case k >= 2 && mean+doubt < -worthwhile/2 && mean < -worthwhile:
		t.keep(true, false)
	case mean > hopeless || k >= 2 && mean-doubt > -worthwhile || k >= pairsMost:
		t.keep(false, mean > hopeless || mean-doubt > 0)
	}
}

// keep ends a trial. A part that was better is in use from now on, and the one beyond it is tried at once. If it was not better, the one
// on the other side is tried later, and much later if it was worse beyond doubt.
func (t *trial) keep(better, worse bool) {
	t.diffs = t.diffs[:0]
	if better {
		t.at, t.pause = t.to, pauseLeast
	} else {
		if worse {
			t.pause = min(2*t.pause, pauseMost)
		}
		t.rest, t.down = t.pause, !t.down
	}
	if t.at == 0 {
		t.down = false
	}
	if t.at == shareLevels {
		t.down = true
	}
	if t.to = t.at + 1; t.down {
		t.to = t.at - 1
	}
}
