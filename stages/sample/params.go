// Package sample chooses the next token of a sequence from a row of logits, on the host. A choice
// depends on the row, the request's own parameters and its own history only: never on the other
// sequences of a batch, nor on how a prompt was cut into chunks.
//
// Order of operations, as in vLLM: log-probabilities are taken from the logits as they come; then
// logit_bias, min_tokens (end tokens masked), Allow, repetition, presence and frequency penalties;
// greedy choice at temperature 0; else temperature, top_k, top_p, min_p, and a draw.
package sample

import (
	"errors"
	"fmt"
	"math"
)

// Errors of New and Next.
var (
	// ErrParams: a parameter is out of range; the message names it.
	ErrParams = errors.New("sample: bad parameter")
	// ErrLogits: no token can be chosen: a logit is NaN or +Inf, or all are masked.
	ErrLogits = errors.New("sample: unusable logits")
	// ErrNotFinite is the ErrLogits of a logit that is NaN or +Inf.
	ErrNotFinite = fmt.Errorf("%w", ErrLogits)
)

// Params is one request's way to choose tokens.
type Params struct {
	Temperature float64 // 0 = greedy
	TopK        int     // keep the k best, 0 = all
	TopP        float64 // keep the fewest best that have this probability, in (0, 1]; 1 = all
	MinP        float64 // keep those with this share of the best one's probability, in [0, 1]; 0 = all

	RepetitionPenalty float64 // 1e-6 or more: divides positive logits of tokens in prompt or answer, multiplies negative ones; 1 = off
	PresencePenalty   float64 // subtracted from tokens in the answer
	FrequencyPenalty  float64 // subtracted from them once for each time
	LogitBias         map[int32]float32

	Seed uint64

	// Logprobs: -1 none; n >= 0: the chosen token's, and of the n most likely.
	Logprobs int

	StopIDs   []int32 // end the answer
	EOS       []int32 // end the answer too, unless IgnoreEOS
	IgnoreEOS bool
	MinTokens int // tokens before which no end token may come

	// Allow, if set, returns the tokens that may follow n tokens of the answer: bit i%32 of word
	// i/32 is 1 for token i. It returns nil while the text that decides is not known. With wait it finds
	// the mask, which may take milliseconds; without, it returns nil unless the mask was found before. It must be
	// safe for concurrent use.
	Allow func(n int, wait bool) []uint32
	// Took, if set, is called with each chosen token. If it returns an error, the choice fails with it.
	Took func(id int32) error
	// Barred, if set, returns why Allow lets no token come; nil where it does.
	Barred func() error
}

// minTemperature: below it the choice is greedy, as in vLLM: dividing by less would only lose
// precision.
const minTemperature = 1e-5

// check returns an ErrParams that names the first field out of range.
func (p *Params) check(vocab int) error {
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("%w: %s %v is not %s", ErrParams, field, value, want)
	}
	// Each condition is written so that NaN fails it.
	switch {
	case vocab < 1:
		return bad("vocabulary", vocab, "at least 1")
	case !(p.Temperature >= 0 && p.Temperature <= 1e6):
		return bad("temperature", p.Temperature, "between 0 and 1e6")
	case p.TopK < 0:
		return bad("top_k", p.TopK, "0 or more")
	case !(p.TopP > 0 && p.TopP <= 1):
		return bad("top_p", p.TopP, "above 0 and at most 1")
	case !(p.MinP >= 0 && p.MinP <= 1):
		return bad("min_p", p.MinP, "between 0 and 1")
	case !(p.RepetitionPenalty >= 1e-6 && p.RepetitionPenalty <= 1e6): // beyond it logits overflow
		return bad("repetition_penalty", p.RepetitionPenalty, "between 1e-6 and 1e6")
	case !(math.Abs(p.PresencePenalty) <= 1e6):
		return bad("presence_penalty", p.PresencePenalty, "between -1e6 and 1e6")
	case !(math.Abs(p.FrequencyPenalty) <= 1e6):
		return bad("frequency_penalty", p.FrequencyPenalty, "between -1e6 and 1e6")
	case p.Logprobs < -1 || p.Logprobs > vocab:
		return bad("logprobs", p.Logprobs, fmt.Sprintf("between -1 and %d", vocab))
	case p.MinTokens < 0:
		return bad("min_tokens", p.MinTokens, "0 or more")
	}
	for id, b := range p.LogitBias {
		if id < 0 || int(id) >= vocab {
			return bad("logit_bias token", id, fmt.Sprintf("in a vocabulary of %d", vocab))
		}
		if !(b >= -1e6 && b <= 1e6) {
			return bad("logit_bias", b, "between -1e6 and 1e6")
		}
	}
	for _, list := range [][]int32{p.StopIDs, p.EOS} {
		for _, id := range list {
			if id < 0 || int(id) >= vocab {
				return bad("stop token", id, fmt.Sprintf("in a vocabulary of %d", vocab))
			}
		}
	}
	return nil
}
