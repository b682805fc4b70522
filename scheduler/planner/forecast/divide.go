package forecast

import (
	"fmt"

	"krater/scheduler/planner"
)

// A division whose prefill has nearlyAsFast of the fastest speed is chosen if its decode is
// muchFaster times as fast.
const (
	nearlyAsFast = 0.9
	muchFaster   = 1.2
)

// divisions is how many parts of the room for experts prefill may have some of.
const divisions = 8

// answerTokens is the length of the answer by which divisions are compared, behind a prompt of the
// middle length.
const answerTokens = 256

// exchange returns the time of a prompt and its answer.
func exchange(prefill, decode *Side) float64 {
	return prefill.Decides.Seconds + answerTokens*decode.Decides.Seconds
}

// division is a prefill that leaves more to decode with than the fastest does.
type division struct {
	p, d   int
	side   Side // of prefill
	decode []Side
}

// divide looks for a prefill that is nearly as fast as candidate p in a part of the room, or another
// one, beside which some strategy decodes much faster than d: the one with which a prompt and its
// answer take least time. nil: there is none, or flags say what prefill has.
func (x *chooser) divide(list []Candidate, p, d int, decode []Side) *division {
	fastest, beside := list[p].Prefill, decode[d]
	if x.b.Prefill > 0 || fastest.layout.whole(x.s) {
		return nil
	}
	var best *division
	least := exchange(&fastest, &beside)
	for i := range list {
		if s := &list[i].Prefill; !s.Fits || s.Score < nearlyAsFast*fastest.Score || !x.wanted[0].is(&list[i]) {
			continue
		}
		last := -1
		for part := 1; part <= divisions; part++ {
			side := x.prefillIn(&x.of[i], list[i].Groups, x.room(0)*part/divisions)
			n := side.layout.experts(x.s)
			if !side.Fits || n == last || side.Score < nearlyAsFast*fastest.Score {
				continue
			}
			last = n
			sides := x.beside(list, i, side.layout)
			at := x.best(list, sides)
			if at < 0 || at == i && part < divisions || sides[at].Score < muchFaster*beside.Score {
				continue // one strategy for both phases has all the room
			}
			if t := exchange(&side, &sides[at]); t < least {
				least, best = t, &division{i, at, side, sides}
			}
		}
	}
	return best
}

// why says what a division gives up, and for what.
func (v *division) why(s *Shape, fastest *Candidate, before Side, than *Side) string {
	return fmt.Sprintf("in %s, %.2g of %s, so that decode is %.3g times as fast", planner.Size(s.expertBytes(v.side.layout.experts(s))), v.side.Score/before.Score, fastest.Name(), v.decode[v.d].Score/than.Score)
}
