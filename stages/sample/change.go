package sample

import (
	"math"
	"slices"
)

const maxFloat32 = math.MaxFloat32

var negInf = float32(math.Inf(-1))

// history is what the penalties need to know, in the order of first use.
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

// penalises reports whether earlier tokens matter.
func (p *Params) penalises() bool {
	return p.RepetitionPenalty != 1 || p.PresencePenalty != 0 || p.FrequencyPenalty != 0
}

// masksEnds reports whether the answer is too short to end.
func (q *Sequence) masksEnds() bool { return q.n < q.p.MinTokens && len(q.ends) > 0 }

// changes reports whether the next row is changed before a choice.
func (q *Sequence) changes() bool {
	return len(q.bias) > 0 || q.masksEnds() || q.p.penalises()
}

// change returns a changed copy of a row: bias, mask, penalties, in this order.
func (q *Sequence) change(logits []float32, s *scratch) []float32 {
	row := append(s.logits[:0], logits...)
	s.logits = row
	for _, b := range q.bias {
		row[b.id] += b.add
	}
	if q.masksEnds() {
		for _, id := range q.ends {
			row[id] = negInf
		}
	}
	if !q.p.penalises() {
		return row
	}
	repetition := float32(q.p.RepetitionPenalty)
	presence, frequency := float32(q.p.PresencePenalty), float32(q.p.FrequencyPenalty)
	for _, u := range q.seen.list {
		x := row[u.id]
		if x > 0 {
			x /= repetition
		} else {
			x *= repetition
		}
		if u.answer > 0 {
			x -= presence + frequency*float32(u.answer)
		}
		row[u.id] = x
	}
	return row
}

// logprobs fills in the logarithms of probabilities under the row as it came from
// the model, with so many alternatives; largest is its largest logit.
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
