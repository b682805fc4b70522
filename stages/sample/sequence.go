package sample

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"krater/kernels/device"
)

// Sequence is the state of one request's choices. It belongs to one goroutine at
// a time.
type Sequence struct {
	p     Params
	vocab int
	n     int     // tokens chosen so far
	ends  []int32 // every token that ends the answer
	bias  []bias  // LogitBias by rising id
	seen  history
}

type bias struct {
	id  int32
	add float32
}

// Result is one choice.
type Result struct {
	ID   int32
	Stop bool // the token is an end token of the request
	// Logprob and Top are natural logarithms of the probabilities in the model's
	// own distribution (temperature 1, nothing masked); set when asked for.
	Logprob float32
	Top     []Candidate // by falling probability, then rising id; the caller's own
	Rank    int         // set by Score: 1 for the most likely token
}

// Candidate is a token that could have been chosen.
type Candidate struct {
	ID      int32
	Logprob float32
}

// New starts a sequence after prompt, which is not kept. p's maps and slices are
// copied. It fails with ErrParams.
func New(p Params, prompt []int32, vocab int) (*Sequence, error) {
	if err := p.check(vocab); err != nil {
		return nil, err
	}
	q := &Sequence{p: p, vocab: vocab, ends: slices.Clone(p.StopIDs)}
	if !p.IgnoreEOS {
		q.ends = append(q.ends, p.EOS...)
	}
	for _, id := range slices.Sorted(maps.Keys(p.LogitBias)) {
		q.bias = append(q.bias, bias{id, p.LogitBias[id]})
	}
	q.p.LogitBias, q.p.StopIDs, q.p.EOS = nil, nil, nil
	if p.Temperature < minTemperature {
		q.p.Temperature = 0
	}
	if p.penalises() {
		for _, id := range prompt {
			if id < 0 || int(id) >= vocab {
				return nil, fmt.Errorf("%w: prompt token %d is not in a vocabulary of %d", ErrParams, id, vocab)
			}
		}
		q.seen.addPrompt(prompt)
	}
	return q, nil
}

// scratch is the memory of one choice. It is pooled: as many exist as choices are
// made at once, not one a request.
type scratch struct {
	logits []float32 // the row after bias, mask and penalties
	best   []scored
	pool   []scored  // every token that may be drawn, by rising id
	sums   []float64 // of the weights in pool, a block each
	part   []scored  // those of them that top_p may keep, in the course of selection
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// Next chooses a token from a row of logits [vocab], which it does not change. It
// fails with ErrLogits, without a choice made.
func (q *Sequence) Next(logits []float32) (Result, error) {
	if len(logits) != q.vocab {
		return Result{}, fmt.Errorf("%w: %d of them for a vocabulary of %d", ErrLogits, len(logits), q.vocab)
	}
	best, err := argmax(logits)
	if err != nil {
		return Result{}, err
	}
	r := Result{ID: best}
	if q.plain() {
		q.note(&r)
		return r, nil
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	row := logits
	if q.changes() {
		row = q.change(logits, s)
		if r.ID, err = argmax(row); err != nil {
			return Result{}, err
		}
	}
	if q.p.Temperature > 0 {
		r.ID = q.p.draw(row, row[r.ID], uniform(q.p.Seed, uint64(q.n)), s)
	}
	if q.p.Logprobs >= 0 {
		logprobs(&r, logits, logits[best], q.p.Logprobs, s)
	}
	q.note(&r)
	return r, nil
}

// Score tells how likely a token that is given was in a row of logits [vocab], with so many
// alternatives. It fails with ErrLogits.
func Score(logits []float32, id int32, alternatives int) (Result, error) {
	if id < 0 || int(id) >= len(logits) {
		return Result{}, fmt.Errorf("%w: %d of them, none of token %d", ErrLogits, len(logits), id)
	}
	best, err := argmax(logits)
	if err != nil {
		return Result{}, err
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	r := Result{ID: id, Rank: 1}
	for i, x := range logits {
		if x > logits[id] || x == logits[id] && i < int(id) {
			r.Rank++
		}
	}
	logprobs(&r, logits, logits[best], alternatives, s)
	return r, nil
}

// Draw is how a device may make the next choice in Next's place; ok is false where only
// the host can: what changes logits, and log-probabilities.
func (q *Sequence) Draw() (d device.Draw, ok bool) { return q.DrawAt(q.n) }

// DrawAt is Draw for the choice after n tokens. It reads nothing that a choice changes:
// another goroutine may be about to take an earlier one.
func (q *Sequence) DrawAt(n int) (d device.Draw, ok bool) {
	p := &q.p
	if p.Logprobs >= 0 || len(q.bias) > 0 || p.penalises() || n < p.MinTokens && len(q.ends) > 0 {
		return device.Draw{}, false
	}
	return device.Draw{Temperature: p.Temperature, TopK: p.TopK, TopP: p.TopP, MinP: p.MinP, Seed: p.Seed, N: uint64(n)}, true
}

// Take is Next with the choice that a device made by Draw.
func (q *Sequence) Take(id int32) (Result, error) {
	switch {
	case id == device.DrawNaN:
		return Result{}, fmt.Errorf("%w: a logit is NaN", ErrNotFinite)
	case id == device.DrawInfinite:
		return Result{}, fmt.Errorf("%w: a logit is +Inf", ErrNotFinite)
	case id < 0 || int(id) >= q.vocab:
		return Result{}, fmt.Errorf("%w: all are -Inf or masked", ErrLogits)
	}
	r := Result{ID: id}
	q.note(&r)
	return r, nil
}

// plain reports that the choice is the largest logit and nothing else is asked.
func (q *Sequence) plain() bool {
	return q.p.Temperature == 0 && q.p.Logprobs < 0 && !q.changes()
}

// note counts a chosen token.
func (q *Sequence) note(r *Result) {
	r.Stop = slices.Contains(q.ends, r.ID)
	q.n++
	if q.p.penalises() {
		q.seen.add(r.ID)
	}
}

// argmax is the smallest id with the largest logit.
func argmax(x []float32) (int32, error) {
	at, best := -1, float32(negInf)
	i := 0
	// The comparison is also true for NaN, and rarely true: the running maximum
	// changes about log(n) times. Four to a round saves loop overhead.
	for ; i+4 <= len(x); i += 4 {
		b := x[i : i+4 : i+4]
		if b[0] <= best && b[1] <= best && b[2] <= best && b[3] <= best {
			continue
		}
		for j, v := range b {
			if v != v {
				return 0, fmt.Errorf("%w: the logit of token %d is NaN", ErrNotFinite, i+j)
			}
			if v > best {
				at, best = i+j, v
			}
		}
	}
	for ; i < len(x); i++ {
		if v := x[i]; v != v {
			return 0, fmt.Errorf("%w: the logit of token %d is NaN", ErrNotFinite, i)
		} else if v > best {
			at, best = i, v
		}
	}
	switch {
	case at < 0:
		return 0, fmt.Errorf("%w: all are -Inf or masked", ErrLogits)
	case best > maxFloat32:
		return 0, fmt.Errorf("%w: the logit of token %d is +Inf", ErrNotFinite, at)
	}
	return int32(at), nil
}
