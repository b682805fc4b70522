package serve

import (
	"errors"
	"time"

	"krater/transport/api"
)

// Outcome says how a request ended, as its client saw it.
type Outcome string

// The outcomes. Everything else is an error.
const (
	OK        Outcome = "ok"
	Left      Outcome = "disconnected" // by the client, on purpose
	GivenUp   Outcome = "cancelled"    // by the client, on purpose
	Refused   Outcome = "refused"      // 429
	TimedOut  Outcome = "timeout"      // by the client's bound
	Broken    Outcome = "broken"       // the connection or stream ended early
	Failed    Outcome = "failed"       // the server said that it failed: 5xx, an error event
	Misasked  Outcome = "bad request"  // 4xx
	NotServed Outcome = "unsent"       // too many were open already
)

// Record is one request's figures; times are seconds.
type Record struct {
	Number      int     `json:"request"`
	Door        string  `json:"door"`
	Rate        float64 `json:"rate,omitempty"`        // of the open loop it belongs to
	Concurrency int     `json:"concurrency,omitempty"` // of the closed loop
	Talk        int     `json:"conversation"`
	Turn        int     `json:"turn"`

	Arrival float64 `json:"arrival_s"` // since the load began: when it should have been sent
	Late    float64 `json:"late_s"`    // how much later it was sent
	// Queue is from sending until the server said that it had begun (WebSocket only).
	Queue float64 `json:"queue_s,omitempty"`
	TTFT  float64 `json:"ttft_s"` // from sending to the first text
	// ITL are the times between tokens, a chunk's time divided among those it carries; TPOT is
	// their mean.
	ITL  []float64 `json:"itl_s,omitempty"`
	TPOT float64   `json:"tpot_s"`
	E2E  float64   `json:"e2e_s"` // from sending to the end of the stream

	Wanted     int           `json:"prompt_wanted"` // tokens the prompt was made to have
	Prompt     int           `json:"prompt_tokens"` // as the server counted
	Cached     int           `json:"cached_tokens"`
	Answer     int           `json:"answer_tokens"`
	Pieces     int           `json:"pieces"` // chunks with text
	Outcome    Outcome       `json:"outcome"`
	Error      string        `json:"error,omitempty"`
	RetryAfter time.Duration `json:"retry_after,omitempty"`

	end    time.Time
	pieces []piece
	share  []int // tokens of each piece
}

// piece is text that came at once.
type piece struct {
	at     time.Time
	bytes  int
	tokens int // as the server says; 0: it does not
}

// gaps divides the time between pieces among their tokens, and calls found with the time per token
// and the number of tokens. A chunk of k tokens that arrives t after the previous one counts k
// times as t/k: the server joins what a slow reader has not fetched, and tokens without text arrive
// with the next one. Tokens of the first piece have no gap.
func (r *Record) gaps(found func(seconds float64, n int)) {
	for i := 1; i < len(r.pieces); i++ {
		if n := r.share[i]; n > 0 {
			found(r.pieces[i].at.Sub(r.pieces[i-1].at).Seconds()/float64(n), n)
		}
	}
}

// divide returns how many of all tokens each piece carries: the server's number, or a share by
// bytes, at least one each as far as they go.
func divide(pieces []piece, all int) []int {
	share := make([]int, len(pieces))
	told, bytes := false, 0
	for i, p := range pieces {
		share[i] = p.tokens
		told = told || p.tokens > 0
		bytes += p.bytes
	}
	if told || bytes == 0 { // the rest has no text
		return share
	}
	// The running sum is rounded, so that all are given away.
	given, sum := 0, 0
	for i, p := range pieces {
		sum += p.bytes
		upTo := (2*all*sum + bytes) / (2 * bytes)
		upTo = max(given+1, min(upTo, all-(len(pieces)-1-i)))
		upTo = min(upTo, max(all, given))
		share[i], given = upTo-given, upTo
	}
	return share
}

// finish fills in what follows from the pieces.
func (r *Record) finish(sent time.Time) {
	r.Pieces = len(r.pieces)
	r.E2E = r.end.Sub(sent).Seconds()
	if r.Pieces == 0 {
		return
	}
	r.TTFT = r.pieces[0].at.Sub(sent).Seconds()
	r.share = divide(r.pieces, r.Answer)
	tokens := 0
	r.gaps(func(s float64, n int) {
		tokens += n
		for range n {
			r.ITL = append(r.ITL, s)
		}
	})
	if tokens > 0 {
		r.TPOT = r.pieces[len(r.pieces)-1].at.Sub(r.pieces[0].at).Seconds() / float64(tokens)
	}
}

// blame turns an error into an outcome.
func (r *Record) blame(err error) {
	r.Outcome, r.Error = Broken, err.Error()
	refusal, ok := errors.AsType[*api.Error](err)
	if !ok {
		return
	}
	r.RetryAfter = refusal.RetryAfter
	switch {
	case refusal.Status == 429 || refusal.Code == codeRateLimit:
		r.Outcome = Refused
	case refusal.Status >= 400 && refusal.Status < 500:
		r.Outcome = Misasked
	default:
		r.Outcome = Failed
	}
}
