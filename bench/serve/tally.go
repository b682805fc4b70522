package serve

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"
)

// Point is one load and its result. Of requests that clients dropped, only the received part
// counts, and only for throughput.
type Point struct {
	Door        string  `json:"door"`
	Rate        float64 `json:"rate,omitempty"`        // requests a second, of an open loop
	Concurrency int     `json:"concurrency,omitempty"` // of a closed loop
	// Seconds are from the load's beginning to the last answer's end; an open loop of a duration
	// lasts at least that.
	Seconds float64 `json:"seconds"`
	// Window is the period for throughput: all of it in an open loop; in a closed loop until the
	// first stream has no more requests.
	Window float64 `json:"window_s"`

	Sent     int             `json:"sent"`
	Outcomes map[Outcome]int `json:"outcomes"`
	Errors   []string        `json:"errors,omitempty"` // the first of each outcome
	OpenMost int             `json:"open_most"`        // requests in flight at a time

	TTFT  Summary `json:"ttft"`
	ITL   Summary `json:"itl"`
	TPOT  Summary `json:"tpot"`
	E2E   Summary `json:"e2e"`
	Queue Summary `json:"queue"` // WebSocket only: until the server says that it has begun
	Late  Summary `json:"late"`  // of the generator: sent after it was due

	RequestsPerS float64 `json:"requests_per_s"`
	PromptTokS   float64 `json:"prompt_tokens_per_s"`
	AnswerTokS   float64 `json:"answer_tokens_per_s"`
	Ratio        float64 `json:"ratio,omitempty"` // of AnswerTokS to the first point's
	GoodPerS     float64 `json:"goodput_requests_per_s"`
	GoodShare    float64 `json:"goodput_share"`

	PromptTokens int `json:"prompt_tokens"`
	AnswerTokens int `json:"answer_tokens"`
	CachedTokens int `json:"cached_tokens"`
	// PromptsOff counts prompts of which the server counted other tokens than they were made to
	// have.
	PromptsOff   int           `json:"prompts_off"`
	RetryAfter   time.Duration `json:"retry_after_max"`      // ns, of refusals
	NoRetryAfter int           `json:"refusals_no_retry"`    // refusals that do not say when to come again
	Behind       string        `json:"behind,omitempty"`     // why the load was not the requested one
	Server       *ServerDelta  `json:"server,omitempty"`     // nil: it shows no metrics
	Throughput   []Second      `json:"throughput,omitempty"` // over time

	ttft, e2e, itl Histogram
}

// Second counts what arrived in one interval.
type Second struct {
	At       float64 `json:"at_s"` // its end
	AnswerPS float64 `json:"answer_tokens_per_s"`
	EndedPS  float64 `json:"ended_per_s"`
}

// lateMost is how late 1 % of a generator's requests may be before its figures describe a different
// load.
const lateMost = 10 * time.Millisecond

// tally adds records up. It holds no record.
type tally struct {
	bounds Bounds
	begin  time.Time
	out    *json.Encoder // nil: records are not written

	mu     sync.Mutex
	p      Point
	tpot   Histogram
	queue  Histogram
	late   Histogram
	cut    time.Time // later events are outside the window
	last   time.Time
	tokens int // of answers in the window
	ended  int // in the window
	prompt int // tokens of prompts whose answers began in the window
	good   int
	asked  int // requests that were meant to be read to the end
	open   int
	over   timeline
	err    error // of the first record that could not be written
}

func newTally(bounds Bounds, begin time.Time, out io.Writer) *tally {
	t := &tally{bounds: bounds, begin: begin, over: timeline{width: 1}}
	t.p.Outcomes = map[Outcome]int{}
	if out != nil {
		t.out = json.NewEncoder(out)
	}
	return t
}

// enter counts a request in.
func (t *tally) enter() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p.Sent++
	t.open++
	t.p.OpenMost = max(t.p.OpenMost, t.open)
}

// close ends the window of throughput, once.
func (t *tally) close(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cut.IsZero() {
		t.cut = now
	}
}

// lasts makes the load at least so long, from its beginning.
func (t *tally) lasts(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if end := t.begin.Add(d); end.After(t.last) {
		t.last = end
	}
}

// leave counts a request as finished; fault says that its client meant to drop it.
func (t *tally) leave(r *Record, fault bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.p
	t.open--
	if r.end.After(t.last) {
		t.last = r.end
	}
	if p.Outcomes[r.Outcome]++; p.Outcomes[r.Outcome] == 1 && r.Error != "" && r.Outcome != Left && r.Outcome != GivenUp {
		p.Errors = append(p.Errors, fmt.Sprintf("%s: %s", r.Outcome, r.Error))
	}
	t.late.Add(r.Late, 1)
	t.come(r)
	if !fault || r.Outcome == OK { // it may end before its client would have left
		t.asked++
	}
	switch r.Outcome {
	case OK:
		t.times(r)
	case Refused:
		p.RetryAfter = max(p.RetryAfter, r.RetryAfter)
		if r.RetryAfter == 0 {
			p.NoRetryAfter++
		}
	}
	if t.out != nil {
		if err := t.out.Encode(r); err != nil && t.err == nil {
			t.err = err
		}
	}
}

// come counts what r received, whatever became of it.
func (t *tally) come(r *Record) {
	within := func(at time.Time) bool { return t.cut.IsZero() || !at.After(t.cut) }
	for i, x := range r.pieces {
		t.over.add(x.at.Sub(t.begin).Seconds(), r.share[i], 0)
		if within(x.at) {
			t.tokens += r.share[i]
		}
	}
	if len(r.pieces) > 0 && within(r.pieces[0].at) {
		if r.Outcome == OK {
			t.prompt += r.Prompt
		} else { // the token count of a client that left is unknown
			t.prompt += r.Wanted
		}
	}
	if r.Outcome == OK {
		t.over.add(r.end.Sub(t.begin).Seconds(), 0, 1)
		if within(r.end) {
			t.ended++
		}
	}
}

// times counts the figures of a whole answer.
func (t *tally) times(r *Record) {
	p := &t.p
	p.PromptTokens += r.Prompt
	p.AnswerTokens += r.Answer
	p.CachedTokens += r.Cached
	if r.Prompt != r.Wanted {
		p.PromptsOff++
	}
	p.e2e.Add(r.E2E, 1)
	if r.Queue > 0 {
		t.queue.Add(r.Queue, 1)
	}
	if len(r.pieces) > 0 {
		p.ttft.Add(r.TTFT, 1)
		r.gaps(p.itl.Add)
		if len(r.ITL) > 0 {
			t.tpot.Add(r.TPOT, 1)
		}
	}
	if t.bounds.Keeps(r) {
		t.good++
	}
}

// point sums up; all requests have left.
func (t *tally) point() (*Point, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.p
	p.TTFT, p.ITL, p.E2E = p.ttft.Summary(), p.itl.Summary(), p.e2e.Summary()
	p.TPOT, p.Queue, p.Late = t.tpot.Summary(), t.queue.Summary(), t.late.Summary()
	p.Seconds = max(0, t.last.Sub(t.begin).Seconds())
	if p.Window = p.Seconds; !t.cut.IsZero() {
		p.Window = t.cut.Sub(t.begin).Seconds()
	}
	if p.Window > 0 {
		p.RequestsPerS, p.AnswerTokS = float64(t.ended)/p.Window, float64(t.tokens)/p.Window
		p.PromptTokS = float64(t.prompt) / p.Window
	}
	if p.Seconds > 0 {
		p.GoodPerS = float64(t.good) / p.Seconds
	}
	if t.asked > 0 {
		p.GoodShare = float64(t.good) / float64(t.asked)
	}
	switch n := p.Outcomes[NotServed]; {
	case n > 0:
		p.Behind = fmt.Sprintf("%d requests were not sent because too many were open", n)
	case p.Late.P99 > 1e3*lateMost.Seconds():
		p.Behind = fmt.Sprintf("1 %% of the requests were sent %.0f ms or more after they were due: the load is not the one asked for", p.Late.P99)
	}
	p.Throughput = t.over.seconds(p.Seconds)
	return p, t.err
}

// outcomes lists the outcomes, the most frequent first.
func (p *Point) outcomes() []Outcome {
	return slices.SortedFunc(maps.Keys(p.Outcomes), func(a, b Outcome) int {
		return cmp.Or(p.Outcomes[b]-p.Outcomes[a], cmp.Compare(a, b))
	})
}

// timeline counts over time in at most timelineMost places, which grow wider as the time grows
// longer.
type timeline struct {
	width         float64 // seconds of a place
	tokens, ended []int
}

const timelineMost = 600

func (l *timeline) add(at float64, tokens, ended int) {
	i := max(0, int(at/l.width))
	for i >= timelineMost {
		l.tokens, l.ended = halve(l.tokens), halve(l.ended)
		l.width *= 2
		i = int(at / l.width)
	}
	for len(l.tokens) <= i {
		l.tokens, l.ended = append(l.tokens, 0), append(l.ended, 0)
	}
	l.tokens[i] += tokens
	l.ended[i] += ended
}

// halve joins every two places.
func halve(v []int) []int {
	for i := range (len(v) + 1) / 2 {
		sum := v[2*i]
		if 2*i+1 < len(v) {
			sum += v[2*i+1]
		}
		v[i] = sum
	}
	return v[:(len(v)+1)/2]
}

// seconds returns the rates up to total. Of a last place too short for a rate nothing is said,
// unless there is no other.
func (l *timeline) seconds(total float64) []Second {
	var out []Second
	for i := range l.tokens {
		from := float64(i) * l.width
		wide := min(l.width, total-from)
		if wide <= 0 || i > 0 && wide < l.width/2 {
			break
		}
		out = append(out, Second{At: from + wide, AnswerPS: float64(l.tokens[i]) / wide, EndedPS: float64(l.ended[i]) / wide})
	}
	return out
}
