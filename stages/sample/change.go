package sample

import (
	"fmt"
	"math"
	"slices"
)

const maxFloat32 = math.MaxFloat32

var negInf = float32(math.Inf(-1))

// history is the tokens that the penalties need, in the order of first use.
type history struct {
	at   map[int32]int32 // token -> place in list
	list []used
}

type used struct {
	id     int32
	answer int32 // times in the answer; 0: in the prompt only
}

func (h *history) addPrompt(prompt []int32) {
	h.at = make(map[int32]int32)
	for _, id := range prompt {
		h.entry(id)
	}
}

func (h *history) add(id int32) { h.entry(id).answer++ }

func (h *history) entry(id int32) *used {
	i, ok := h.at[id]
	if !ok {
		i = int32(len(h.list))
		h.at[id] = i
		h.list = append(h.list, used{id: id})
	}
	return &h.list[i]
}

// changes reports whether the next row is changed before the choice.
func (q *Sequence) changes() bool { return q.change.Any(q.n) || q.p.Allow != nil }

// changed returns a changed copy of a row. The order is that of device.Change: masks before
// penalties. Every operation is rounded, as on a GPU.
func (q *Sequence) changed(logits []float32, s *scratch) ([]float32, error) {
	row := append(s.logits[:0], logits...)
	s.logits = row
	c := &q.change
	for _, b := range c.Bias {
		row[b.ID] += b.Add
	}
	if c.Bans(q.n) {
		for _, id := range c.Ends {
			row[id] = negInf
		}
	}
	if q.p.Allow != nil {
		mask := q.p.Allow(q.n, true)
		if len(mask) != (len(row)+31)/32 {
			return nil, fmt.Errorf("%w: a mask of %d words for a vocabulary of %d", ErrLogits, len(mask), len(row))
		}
		for i := range row {
			if mask[i/32]>>(i%32)&1 == 0 {
				row[i] = negInf
			}
		}
	}
	if !c.Penalises() {
		return row, nil
	}
	for _, u := range q.seen.list {
		x := row[u.id]
		if x > 0 {
			x /= c.Repetition
		} else {
			x *= c.Repetition
		}
		if u.answer > 0 {
			x -= c.Presence + float32(c.Frequency*float32(u.answer))
		}
		row[u.id] = x
	}
	return row, nil
}

// logprobs fills in log-probabilities under the row as it came from the model, with the given
// number of alternatives. largest is its largest logit.
func logprobs(r *Result, logits []float32, largest float32, alternatives int, s *scratch) {
	sum := 0.0
	for _, x := range logits {
		sum += exp(float64(x) - float64(largest))
	}
	norm := float64(largest) + math.Log(sum)
	r.Logprob = float32(float64(logits[r.ID]) - norm)
	if alternatives == 0 {
		return
	}
	best := s.topK(logits, alternatives)
	slices.SortFunc(best, func(a, b scored) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	r.Top = make([]Candidate, len(best))
	for i, b := range best {
		r.Top[i] = Candidate{b.id, float32(b.w - norm)}
	}
}
