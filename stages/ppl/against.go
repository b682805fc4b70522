package ppl

import (
	"fmt"
	"math"
)

// Comparison says how far a model is from a reference on the same text.
type Comparison struct {
	Reference Result `json:"reference"`
	Model     Result `json:"model"`
	// MeanKL is the mean over predictions of KL(reference || model) in nats: what believing the
	// model's distribution instead of the reference's costs.
	MeanKL float64 `json:"mean_kl"`
	MaxKL  float64 `json:"max_kl"`
	// Top1 is the share of predictions in which both have the same likeliest token.
	Top1 float64 `json:"top1"`
}

// Against measures reference and model as Measure does, and the distance of their distributions at
// every prediction. The reference's logits of one window are kept in memory: window * vocabulary *
// 4 bytes. done is called with the number of tokens scored by both.
func Against(reference, model Scorer, ids []int32, window int, done func(tokens int)) (Comparison, error) {
	c := Comparison{Reference: Result{Tokens: len(ids), Window: window}, Model: Result{Tokens: len(ids), Window: window}}
	if window < 2 || len(ids) < 2 {
		return c, ErrText
	}
	p := &pair{c: &c}
	for from := 0; from < len(ids); from += window {
		part := ids[from:min(from+window, len(ids))]
		if err := p.window(reference, model, part); err != nil {
			return c, err
		}
		if done != nil {
			done(from + len(part))
		}
	}
	n := float64(c.Model.Predictions)
	c.Model.Perplexity, c.Reference.Perplexity = math.Exp(c.Model.MeanNLL/n), math.Exp(c.Reference.MeanNLL/n)
	c.Model.MeanNLL /= n
	c.Reference.MeanNLL /= n
	c.MeanKL /= n
	c.Top1 /= n
	return c, nil
}

// pair sums over windows; the means of c hold sums until the end.
type pair struct {
	c    *Comparison
	kept []float32 // the reference's logits of a window [positions, V]
}

func (p *pair) window(reference, model Scorer, part []int32) error {
	p.kept = p.kept[:0]
	vocab, seen := 0, 0
	err := reference.Score(part, func(_ int, logits []float32) {
		seen++
		vocab = len(logits)
		p.kept = append(p.kept, logits...)
	})
	if err != nil {
		return fmt.Errorf("reference: %w", err)
	}
	if seen != len(part) || len(p.kept) != seen*vocab {
		return fmt.Errorf("ppl: the reference scored %d positions of %d", seen, len(part))
	}
	seen = 0
	other := 0
	err = model.Score(part, func(pos int, logits []float32) {
		seen++
		if other = len(logits); other == vocab && pos+1 < len(part) {
			p.add(p.kept[pos*vocab:(pos+1)*vocab], logits, part[pos+1])
		}
	})
	switch {
	case err != nil:
		return err
	case other != vocab:
		return fmt.Errorf("ppl: %d logits, the reference has %d", other, vocab)
	case seen != len(part):
		return fmt.Errorf("ppl: %d positions scored of %d", seen, len(part))
	}
	return nil
}

// add counts one prediction.
func (p *pair) add(reference, model []float32, next int32) {
	c := p.c
	c.Reference.MeanNLL += NLL(reference, next)
	c.Model.MeanNLL += NLL(model, next)
	c.Reference.Predictions++
	c.Model.Predictions++
	kl := KL(reference, model)
	c.MeanKL += kl
	c.MaxKL = max(c.MaxKL, kl)
	if likeliest(reference) == likeliest(model) {
		c.Top1++
	}
}

// KL returns the Kullback-Leibler divergence of softmax(model) from softmax(reference) in nats,
// summed in float64. Both have the same length.
func KL(reference, model []float32) float64 {
	p, q := logSum(reference), logSum(model)
	var sum float64
	for i, v := range reference {
		a := float64(v) - p
		sum += math.Exp(a) * (a - (float64(model[i]) - q))
	}
	return max(sum, 0) // rounding may leave -1e-17 between equal distributions
}

// logSum is log(sum(exp(logits))).
func logSum(logits []float32) float64 {
	top := logits[likeliest(logits)]
	var sum float64
	for _, v := range logits {
		sum += math.Exp(float64(v) - float64(top))
	}
	return math.Log(sum) + float64(top)
}

// likeliest returns the index of the largest logit, the lowest index of equal ones.
func likeliest(logits []float32) int {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	return best
}
