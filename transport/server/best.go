package server

import (
	"cmp"
	"slices"
)

// score adds up how likely an answer's tokens were.
type score struct {
	logprob float64
	tokens  int
}

// mean returns the log-probability a token; an answer without tokens is as good as any.
func (s score) mean() float64 { return s.logprob / float64(max(1, s.tokens)) }

// rate asks for log-probabilities if more answers are generated than returned (best_of), whether or
// not the client asked for them.
func (r *run) rate() {
	if r.plan.Candidates == r.plan.Choices {
		return
	}
	r.scores = make([]score, len(r.plan.Requests))
	r.hide = r.plan.Requests[0].Logprobs < 0
	for _, req := range r.plan.Requests {
		req.Logprobs = max(0, req.Logprobs)
	}
}

// weigh counts an event's log-probabilities, and removes them if the client did not ask for them.
func (r *run) weigh(it *item) {
	if r.scores == nil {
		return
	}
	s := &r.scores[it.choice]
	for i := range it.event.Tokens {
		s.logprob += float64(it.event.Tokens[i].Logprob)
		s.tokens++
	}
	if r.hide {
		it.event.Tokens = nil
	}
}

// given returns the streams to send, in the order of the choices: all of a prompt, or with best_of
// the best ones first.
func (r *run) given() []int {
	var all []int
	for from := 0; from < len(r.streams); from += r.perPrompt {
		own := make([]int, r.perPrompt)
		for i := range own {
			own[i] = from + i
		}
		if r.scores != nil {
			slices.SortStableFunc(own, func(a, b int) int { return cmp.Compare(r.scores[b].mean(), r.scores[a].mean()) })
		}
		all = append(all, own[:r.plan.Choices]...)
	}
	return all
}
