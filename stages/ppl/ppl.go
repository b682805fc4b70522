// Package ppl measures perplexity: how well a model predicts a text.
package ppl

import (
	"errors"
	"fmt"
	"math"
)

// Scorer computes the logits of a text that starts at position 0.
type Scorer interface {
	// Score calls see once for every position of ids, rising, with the logits [V] that predict the
	// next token; they are valid during the call.
	Score(ids []int32, see func(pos int, logits []float32)) error
}

// Result of a measurement.
type Result struct {
	Tokens      int     `json:"tokens"`
	Window      int     `json:"window"`
	Predictions int     `json:"predictions"`
	MeanNLL     float64 `json:"mean_nll"` // nats
	Perplexity  float64 `json:"perplexity"`
}

// ErrText: nothing to predict.
var ErrText = errors.New("ppl: a window needs two tokens or more")

// Measure cuts ids into consecutive windows (the last may be shorter), runs each on its own and
// predicts every token but the first of its window. done, if set, is called with the number of tokens
// scored so far.
func Measure(s Scorer, ids []int32, window int, done func(tokens int)) (Result, error) {
	r := Result{Tokens: len(ids), Window: window}
	if window < 2 || len(ids) < 2 {
		return r, ErrText
	}
	var nll float64
	for from := 0; from < len(ids); from += window {
		part := ids[from:min(from+window, len(ids))]
		seen := 0
		err := s.Score(part, func(pos int, logits []float32) {
			seen++
			if pos+1 < len(part) {
				nll += NLL(logits, part[pos+1])
				r.Predictions++
			}
		})
		if err != nil {
			return r, err
		}
		if seen != len(part) {
			return r, fmt.Errorf("ppl: %d positions scored of %d", seen, len(part))
		}
		if done != nil {
			done(from + len(part))
		}
	}
	r.MeanNLL = nll / float64(r.Predictions)
	r.Perplexity = math.Exp(r.MeanNLL)
	return r, nil
}

// NLL returns the negative natural log-likelihood of id under softmax(logits), summed in float64.
// An id outside the logits has none: +Inf.
func NLL(logits []float32, id int32) float64 {
	if id < 0 || int(id) >= len(logits) {
		return math.Inf(1)
	}
	top := logits[0]
	for _, v := range logits {
		top = max(top, v)
	}
	var sum float64
	for _, v := range logits {
		sum += math.Exp(float64(v) - float64(top))
	}
	return math.Log(sum) - (float64(logits[id]) - float64(top))
}
