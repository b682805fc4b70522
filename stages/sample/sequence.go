package sample

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"krater/kernels/device"
)

// Sequence is the state of one request's choices. It belongs to one goroutine at a time.
type Sequence struct {
	p     Params
	vocab int
	n     int // tokens chosen so far
	// change describes how logits change before a choice. Ends are all tokens that end the answer;
	// Bias is LogitBias by rising id. encoded is the form for a device; nil if the device has no
	// room for it.
	change  device.Change
	encoded device.Encoded
	seen    history
}

// Result is one choice.
type Result struct {
	ID   int32
	Stop bool // the token is an end token of the request
	// Logprob and Top are natural logarithms of the probabilities in the model's own distribution
	// (temperature 1, nothing masked); set when asked for.
	Logprob float32
	Top     []Candidate // by falling probability, then rising id; the caller's own
	Rank    int         // set by Score: 1 for the most likely token
}

// Candidate is a token that could have been chosen.
type Candidate struct {
	ID      int32
	Logprob float32
}

// New starts a sequence after prompt, which is not kept. p's maps and slices are copied. It fails
// with ErrParams.
func New(p Params, prompt []int32, vocab int) (*Sequence, error) {
	if err := p.check(vocab); err != nil {
		return nil, err
	}
	q := &Sequence{p: p, vocab: vocab}
	c := &q.change
	*c = device.Change{Least: p.MinTokens, Repetition: float32(p.RepetitionPenalty), Presence: float32(p.PresencePenalty),
		Frequency: float32(p.FrequencyPenalty), Prompt: len(prompt)}
	ends := slices.Clone(p.StopIDs)
	if !p.IgnoreEOS {
		ends = append(ends, p.EOS...)
	}
	slices.Sort(ends)
	c.Ends = slices.Compact(ends)
	for _, id := range slices.Sorted(maps.Keys(p.LogitBias)) {
		c.Bias = append(c.Bias, device.Bias{ID: id, Add: p.LogitBias[id]})
	}
	if c.Any(0) {
		q.encoded = c.Encode()
	}
	q.p.LogitBias, q.p.StopIDs, q.p.EOS = nil, nil, nil
	if p.Temperature < minTemperature {
		q.p.Temperature = 0
	}
	if c.Penalises() {
		for _, id := range prompt {
			if id < 0 || int(id) >= vocab {
				return nil, fmt.Errorf("%w: prompt token %d is not in a vocabulary of %d", ErrParams, id, vocab)
			}
		}
		q.seen.addPrompt(prompt)
	}
	return q, nil
}

// After makes q, a new sequence, go on after these choices, which another made for the same request. Took is not
// told of them.
func (q *Sequence) After(choices []int32) {
	q.n = len(choices)
	if q.change.Penalises() {
		for _, id := range choices {
			q.seen.add(id)
		}
	}
}

// scratch is the memory of one choice. It is pooled: there is one per concurrent choice, not one
// per request.
type scratch struct {
	logits []float32 // the row after bias, mask and penalties
	best   []scored
	pool   []scored  // every token that may be drawn, by rising id
	sums   []float64 // sums of the weights in pool, one per block
	part   []scored  // candidates of top_p during selection
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// Next chooses a token from a row of logits [vocab], which it does not change. If it returns
// ErrLogits, no choice was made.
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
		return r, q.note(&r)
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	row := logits
	if q.changes() {
		if row, err = q.changed(logits, s); err != nil {
			return Result{}, err
		}
		if r.ID, err = argmax(row); err != nil {
			return Result{}, q.barred(err)
		}
	}
	if q.p.Temperature > 0 {
		r.ID = q.p.draw(row, row[r.ID], uniform(q.p.Seed, uint64(q.n)), s)
	}
	if q.p.Logprobs >= 0 {
		logprobs(&r, logits, logits[best], q.p.Logprobs, s)
	}
	return r, q.note(&r)
}

// Score reports how likely a given token was in a row of logits [vocab], with the given number of
// alternatives. It can return ErrLogits.
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

// DrawAt returns how a device makes the choice after n tokens instead of Next. ok is false if only
// the host can make it: with log-probabilities, or with more biased tokens than a device has room for.
// Where Allow does not know its mask yet, the draw has it Later: see Mask. If logits are changed, the caller has to say where the device
// keeps the sequence's history. DrawAt reads nothing that a choice changes, since another goroutine
// may be making an earlier choice.
func (q *Sequence) DrawAt(n int) (d device.Draw, ok bool) {
	p := &q.p
	if p.Logprobs >= 0 {
		return device.Draw{}, false
	}
	d = device.Draw{Temperature: p.Temperature, TopK: p.TopK, TopP: p.TopP, MinP: p.MinP, Seed: p.Seed, N: uint64(n)}
	if q.change.Any(n) {
		if d.Change = q.encoded; d.Change == nil {
			return device.Draw{}, false
		}
	}
	if p.Allow != nil {
		d.Mask = p.Allow(n, false)
		d.Later = d.Mask == nil
	}
	return d, true
}

// Mask waits for the mask of a draw that has it Later, after all choices before that. It is nil if
// one of these was not taken: nothing comes of the draw then.
func (q *Sequence) Mask(n int) []uint32 {
	if n != q.n {
		return nil
	}
	return q.p.Allow(n, true)
}

// Take is Next with the choice that a device made by DrawAt(n). A choice behind one that was not
// taken, of a step that was given up, is ErrLogits and changes nothing.
func (q *Sequence) Take(n int, id int32) (Result, error) {
	switch {
	case n != q.n:
		return Result{}, fmt.Errorf("%w: a choice after %d tokens, the sequence has %d", ErrLogits, n, q.n)
	case id == device.DrawNaN:
		return Result{}, fmt.Errorf("%w: a logit is NaN", ErrNotFinite)
	case id == device.DrawInfinite:
		return Result{}, fmt.Errorf("%w: a logit is +Inf", ErrNotFinite)
	case id < 0 || int(id) >= q.vocab:
		return Result{}, q.barred(fmt.Errorf("%w: all are -Inf or masked", ErrLogits))
	}
	r := Result{ID: id}
	return r, q.note(&r)
}

// barred returns why no token may come, where that is known, and else err.
func (q *Sequence) barred(err error) error {
	if q.p.Barred == nil {
		return err
	}
	if why := q.p.Barred(); why != nil {
		return fmt.Errorf("%w: %w", ErrLogits, why)
	}
	return err
}

// plain reports that the choice is the largest logit and nothing else is asked.
func (q *Sequence) plain() bool {
	return q.p.Temperature == 0 && q.p.Logprobs < 0 && !q.changes()
}

// note counts a chosen token.
func (q *Sequence) note(r *Result) error {
	r.Stop = slices.Contains(q.change.Ends, r.ID)
	q.n++
	if q.change.Penalises() {
		q.seen.add(r.ID)
	}
	if q.p.Took != nil {
		return q.p.Took(r.ID)
	}
	return nil
}

// argmax returns the smallest id with the largest logit.
func argmax(x []float32) (int32, error) {
	at, best := -1, float32(negInf)
	i := 0
	// The comparison is also true for NaN, and is rarely true: the running maximum changes about
	// log(n) times. Four elements per round save loop overhead.
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
