// Package learn decides which experts a small fast memory should hold, by what the routers chose
// recently. It is plain data: scheduler/dispatch and scheduler/routing carry out what it decides. A
// Learner is not safe for concurrent use.
//
// What is worth a place depends on how long the routers keep to their habits. A learner therefore
// counts over several horizons at once, each an average in which a choice counts half as much after
// that number of tokens. For each it notes how often the best set by that average, chosen beforehand,
// had what the routers chose next. The horizon whose set was right most often recently, leads: a short one soon
// after a change of topic, a long one while nothing changes. Nothing has to detect changes.
package learn

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Options of a Learner. The zero value of a field means its default, which was chosen by replays of
// recorded choices: docs/heatmap.md.
type Options struct {
	Horizons []float64 // tokens after which a choice counts half as much; rising
	Memory   float64   // tokens after which a horizon's success counts half as much
	// Doubt is how many standard deviations a missing expert has to be chosen more often than the one
	// that it replaces.
	Doubt float64
	// Lead is how many standard deviations a shorter horizon has to be right more often than a longer one
	// to lead.
	Lead  float64
	Every int // tokens between two choices of the best sets
}

func (o *Options) fill() {
	if len(o.Horizons) == 0 {
		o.Horizons = []float64{12, 48, 192, 768, 3072}
	}
	if o.Memory == 0 {
		o.Memory = 16
	}
	if o.Doubt == 0 {
		o.Doubt = 0.5
	}
	if o.Lead == 0 {
		o.Lead = 1.5
	}
	if o.Every == 0 {
		o.Every = 4
	}
}

// Learner ranks the experts of a model. An expert is its index, layer*experts + expert, where layers
// counts those with experts.
type Learner struct {
	slots    int
	options  Options
	horizons []horizon
	leader   *horizon
	tokens   float64 // since the best sets were chosen

	order []float64 // scratch
	found []worth
	least []worth
}

// horizon is an average of choices.
type horizon struct {
	growth float64   // of weight, a token
	weight float64   // of a choice now
	score  []float64 // [experts of all layers] sums of weights
	best   []bool    // [experts of all layers] the set of as many as there are slots, by score
	hits   float64   // choices that were in best, recently
	now    float64   // of them, since the last Pass
}

// worth is an expert and the weight of its choices.
type worth struct {
	expert int32
	score  float64
}

// New makes a learner of all experts of a model for a memory of slots of them.
func New(experts, slots int, o Options) (*Learner, error) {
	if experts < 1 || slots < 0 {
		return nil, fmt.Errorf("learn: %d slots for %d experts", slots, experts)
	}
	o.fill()
	l := &Learner{slots: min(slots, experts), options: o, order: make([]float64, experts)}
	for _, half := range o.Horizons {
		if !(half > 0) {
			return nil, fmt.Errorf("learn: a horizon of %v tokens", half)
		}
		l.horizons = append(l.horizons, horizon{
			growth: math.Exp2(1 / half), weight: 1, score: make([]float64, experts), best: make([]bool, experts),
		})
	}
	l.leader = &l.horizons[len(l.horizons)-1]
	return l, nil
}

// Resize changes how many experts the memory holds.
func (l *Learner) Resize(slots int) { l.slots = max(0, min(slots, len(l.order))) }

// Expect begins with what is known before anything was counted: how often a token chooses each expert. It
// counts as much as if that had been so for a long time. An empty list says nothing.
func (l *Learner) Expect(choices []float64) {
	for i := range l.horizons {
		h := &l.horizons[i]
		for e, n := range choices {
			h.score[e] += n * l.options.Horizons[i] / math.Ln2 * h.weight
		}
	}
	l.choose()
}

// Note counts the experts that the routers of all layers chose for some tokens.
func (l *Learner) Note(tokens int, chosen []int32) {
	for _, e := range chosen {
		l.Count(e, 1)
	}
	l.Pass(float64(tokens))
}

// Count counts n choices of an expert.
func (l *Learner) Count(expert int32, n float64) {
	for i := range l.horizons {
		h := &l.horizons[i]
		if h.best[expert] {
			h.now += n
		}
		h.score[expert] += n * h.weight
	}
}

// Pass makes what was counted so far older by some tokens.
func (l *Learner) Pass(tokens float64) {
	if !(tokens > 0) {
		return
	}
	keep := math.Exp2(-tokens / l.options.Memory)
	for i := range l.horizons {
		h := &l.horizons[i]
		h.hits, h.now = h.hits*keep+h.now, 0
		if h.weight *= math.Pow(h.growth, tokens); h.weight > 1e100 {
			for e := range h.score {
				h.score[e] /= h.weight
			}
			h.weight = 1
		}
	}
	if l.tokens += tokens; l.tokens >= float64(l.options.Every) {
		l.tokens = 0
		l.choose()
	}
}

// choose finds the best set of each horizon, and the horizon that leads.
func (l *Learner) choose() {
	for i := range l.horizons {
		h := &l.horizons[i]
		least := l.nth(h.score)
		left := l.slots
		for e, s := range h.score {
			h.best[e] = s > least
			if h.best[e] {
				left--
			}
		}
		for e, s := range h.score {
			if left > 0 && s == least && s > 0 {
				h.best[e] = true
				left--
			}
		}
	}
	l.leader = &l.horizons[len(l.horizons)-1]
	for i := len(l.horizons) - 2; i >= 0; i-- {
		if h := &l.horizons[i]; h.hits-l.leader.hits > l.options.Lead*math.Sqrt(l.leader.hits) {
			l.leader = h
		}
	}
}

// nth returns the lowest score of the best set.
func (l *Learner) nth(score []float64) float64 {
	if l.slots == 0 {
		return math.Inf(1)
	}
	copy(l.order, score)
	return nthLargest(l.order, l.slots)
}

// nthLargest returns the nth largest of list, which it reorders (Hoare's quickselect).
func nthLargest(list []float64, n int) float64 {
	from, to, k := 0, len(list)-1, n-1
	for from < to {
		pivot := list[(from+to)/2]
		i, j := from, to
		for i <= j {
			for list[i] > pivot {
				i++
			}
			for list[j] < pivot {
				j--
			}
			if i <= j {
				list[i], list[j] = list[j], list[i]
				i, j = i+1, j-1
			}
		}
		switch {
		case k <= j:
			to = j
		case k >= i:
			from = i
		default:
			return list[k]
		}
	}
	return list[k]
}

// Move puts an expert in the place of another, -1: in a free slot.
type Move struct{ Load, Evict int32 }

// Moves appends at most most moves to list, the most useful first: missing experts that were chosen more often than
// resident ones. free is the number of free slots; resident says whether an expert is in the memory, and movable whether its slot may
// be overwritten now.
func (l *Learner) Moves(list []Move, most, free int, resident, movable func(expert int32) bool) []Move {
	if most < 1 {
		return list
	}
	h := l.leader
	l.found, l.least = l.found[:0], l.least[:0]
	for e, s := range h.score {
		switch e := int32(e); {
		case !resident(e):
			if s > 0 {
				l.found = insert(l.found, worth{e, -s}, most)
			}
		case movable(e):
			l.least = insert(l.least, worth{e, s}, most)
		}
	}
	for i, w := range l.found {
		if i < free {
			list = append(list, Move{w.expert, -1})
			continue
		}
		if i-free >= len(l.least) {
			break
		}
		old := l.least[i-free]
		more, less := -w.score/h.weight, old.score/h.weight
		if more-less <= l.options.Doubt*math.Sqrt(more+less) {
			break
		}
		list = append(list, Move{w.expert, old.expert})
	}
	return list
}

// Least lists n experts that can be moved, at most: those chosen least, the least first.
func (l *Learner) Least(n int, movable func(expert int32) bool) (list []int32) {
	if n < 1 {
		return nil
	}
	l.least = l.least[:0]
	for e, s := range l.leader.score {
		if movable(int32(e)) {
			l.least = insert(l.least, worth{int32(e), s}, n)
		}
	}
	for _, w := range l.least {
		list = append(list, w.expert)
	}
	return list
}

// insert keeps the least of what is inserted, at most most, in order.
func insert(list []worth, w worth, most int) []worth {
	if len(list) == most {
		if w.score >= list[most-1].score {
			return list
		}
		list = list[:most-1]
	}
	at, _ := slices.BinarySearchFunc(list, w, func(a, b worth) int { return cmp.Compare(a.score, b.score) })
	return slices.Insert(list, at, w)
}
