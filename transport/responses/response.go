package responses

import (
	"context"
	"sync"
	"time"

	"krater/actors/engine"
	"krater/transport/api"
)

// response is one generation: the request, the events so far and how it ended. Events are kept as
// marks in the growing text. So any number of followers can read at their own pace, late followers
// get joined text, and a lost connection can resume; no reader slows the engine. A response has one
// writer (its drive) and any number of readers.
type response struct {
	plan    *plan
	id      string
	item    string // the message's id
	owner   string // owner that may see it
	peer    string // peer that it counts for
	worked  func() // says that the engine has it: see Options.Work
	created time.Time
	ctx     context.Context // of the engine's request
	stop    context.CancelCauseFunc
	done    chan struct{} // closed after the final event

	mu       sync.Mutex
	marks    []mark // the index is the sequence number
	text     []byte // append only: readers keep slices of it
	tokens   []engine.Token
	status   string
	position int // in the queue, when it was accepted
	usage    *engine.Usage
	fault    *api.Error // with status failed
	reason   string     // with status incomplete
	ended    time.Time
	history  []byte                  // the conversation with this answer: see appendTurns
	watchers map[chan<- struct{}]int // woken at every event; the count of follows
	holders  int                     // connections that want the answer
	grace    *time.Timer             // runs while there is no hold, if the request has a grace time
}

// mark is one event: its kind, and how much of the text and of the tokens belongs to it and those
// before.
type mark struct {
	kind   kind
	text   int
	tokens int
}

func newResponse(p *plan, owner, peer string) *response {
	ctx, stop := context.WithCancelCause(context.Background())
	return &response{
		plan: p, id: api.NewID("resp_"), item: api.NewID("msg_"), owner: owner, peer: peer, created: time.Now(),
		ctx: ctx, stop: stop, done: make(chan struct{}),
		status: statusInProgress, watchers: map[chan<- struct{}]int{}, holders: 1,
	}
}

// add appends an event and wakes the followers. Tokens belong to deltas; tokens without text are
// added to the next one. r.mu is held.
func (r *response) add(k kind) {
	m := mark{kind: k, text: len(r.text)}
	switch n := len(r.marks); {
	case k == textDelta:
		m.tokens = len(r.tokens)
	case n > 0:
		m.tokens = r.marks[n-1].tokens
	}
	r.marks = append(r.marks, m)
	for wake := range r.watchers {
		select {
		case wake <- struct{}{}:
		default: // one is waiting there already
		}
	}
}

// has reports whether an event of this kind was made; only the first few are asked for. r.mu is
// held.
func (r *response) has(k kind) bool {
	for i := 0; i < len(r.marks) && r.marks[i].kind <= k; i++ {
		if r.marks[i].kind == k {
			return true
		}
	}
	return false
}

// begin makes response.created: the engine has taken the request.
func (r *response) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(created)
}

// apply takes the engine's next event and reports whether it was the last one.
func (r *response) apply(ev engine.Event) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch ev.Kind {
	case engine.Queued:
		if len(r.marks) == 1 {
			r.status, r.position = statusQueued, ev.Position
			r.add(queued)
		}
	case engine.Started:
		r.run()
	case engine.Tokens:
		r.write(ev)
	case engine.Done:
		r.write(ev)
		r.usage = &ev.Usage
		switch ev.Finish {
		case engine.FinishLength:
			r.reason = reasonMaxTokens
			r.finish(incomplete)
		case engine.FinishCancelled:
			r.cut()
		default:
			r.finish(completed)
		}
	case engine.Failed:
		r.usage = &ev.Usage
		if ev.Err != nil && ev.Err.Kind == engine.Cancelled {
			r.cut()
			break
		}
		r.fault = api.Internal()
		if ev.Err != nil {
			r.fault = api.FromEngine(ev.Err)
		}
		r.finish(failed)
	}
	return ev.Kind == engine.Done || ev.Kind == engine.Failed
}

// run makes response.in_progress once; r.mu is held.
func (r *response) run() {
	if r.has(inProgress) {
		return
	}
	r.status = statusInProgress
	r.add(inProgress)
}

// open announces the message once; r.mu is held.
func (r *response) open() {
	r.run()
	if r.has(partAdded) {
		return
	}
	r.add(itemAdded)
	r.add(partAdded)
}

// write appends what an engine event brought; r.mu is held.
func (r *response) write(ev engine.Event) {
	r.tokens = append(r.tokens, ev.Tokens...)
	if ev.Text == "" { // tokens whose text is still held back go with the next piece
		return
	}
	r.open()
	r.text = append(r.text, ev.Text...)
	r.add(textDelta)
}

// cut ends a response that was cancelled, by whom its context says; r.mu is held.
func (r *response) cut() {
	if context.Cause(r.ctx) == errShutdown {
		r.fault = shuttingDown()
		r.finish(failed)
		return
	}
	r.reason = reasonCancelled
	r.finish(incomplete)
}

// finish closes the message if there is one (a normal end always has one) and makes the final
// event; r.mu is held.
func (r *response) finish(k kind) {
	if k == completed && r.plan.generate {
		r.open()
	}
	r.run()
	if r.has(partAdded) {
		if r.marks[len(r.marks)-1].tokens < len(r.tokens) {
			r.add(textDelta) // without text
		}
		r.add(textDone)
		r.add(partDone)
		r.add(itemDone)
	}
	switch k {
	case completed:
		r.status = statusCompleted
	case incomplete:
		r.status = statusIncomplete
	default:
		r.status = statusFailed
	}
	r.ended = time.Now()
	if k != failed {
		r.history = r.plan.historyWith(string(r.text), r.has(partAdded))
	}
	r.plan.past, r.plan.turns = nil, nil
	r.add(k)
	close(r.done)
}

// end finishes a response whose stream stopped without a last event: after a cancel, or because the
// engine broke its contract.
func (r *response) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if context.Cause(r.ctx) != nil {
		r.cut()
		return
	}
	r.fault = api.Internal()
	r.finish(failed)
}

// warm finishes a request that only prepares: an empty life cycle.
func (r *response) warm(promptTokens int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(created)
	r.usage = &engine.Usage{Prompt: promptTokens}
	r.finish(completed)
}

// isDone reports whether the final event was made.
func (r *response) isDone() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// weigh returns the bytes that an ended response holds, roughly, and its end.
func (r *response) weigh() (bytes int, ended time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	const object, perMark, perToken = 1024, 24, 64
	bytes = object + cap(r.text) + len(r.history) + perMark*cap(r.marks) + len(r.plan.echo.Tools)
	for _, t := range r.tokens {
		bytes += perToken + len(t.Text)
		for _, p := range t.Top {
			bytes += perToken + len(p.Text)
		}
	}
	for key, value := range r.plan.echo.Metadata {
		bytes += perToken + len(key) + len(value)
	}
	for _, s := range []*string{r.plan.echo.Instructions, r.plan.echo.PromptCacheKey, r.plan.echo.SafetyIdentifier, r.plan.echo.User} {
		if s != nil {
			bytes += len(*s)
		}
	}
	return bytes, r.ended
}

// snapshot returns the response in its current state.
func (r *response) snapshot() *Object {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.object()
}

// failure returns what a failed response failed with, else nil.
func (r *response) failure() *api.Error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fault
}

// early returns the wire form without output and ending, for the first events. It reads only fields
// that never change.
func (r *response) early(status string) *Object {
	o := r.plan.echo // a copy
	o.ID, o.Object, o.CreatedAt, o.Status = r.id, "response", r.created.Unix(), status
	o.Output = []Message{}
	return &o
}

// object returns the wire form of the current state; r.mu is held.
func (r *response) object() *Object {
	o := r.early(r.status)
	if r.has(partAdded) {
		o.Output = append(o.Output, newMessage(r.item, itemStatus(r.status), newPart(string(r.text), r.tokens)))
	}
	if r.ended.IsZero() {
		return o
	}
	if r.usage != nil {
		o.Usage = usageOf(*r.usage)
	}
	switch r.status {
	case statusCompleted:
		at := r.ended.Unix()
		o.CompletedAt = &at
	case statusIncomplete:
		o.IncompleteDetails = &IncompleteDetails{Reason: r.reason}
	case statusFailed:
		o.Error = &ObjectError{Code: faultCode(r.fault), Message: r.fault.Message}
	}
	return o
}

// itemStatus returns a message's status in a response of this status.
func itemStatus(status string) string {
	switch status {
	case statusCompleted, statusInProgress:
		return status
	}
	return statusIncomplete
}

// faultCode returns the code under "error" of a failed response: the clients' types know a fixed
// list.
func faultCode(e *api.Error) string {
	switch {
	case e.Type == api.TypeRateLimit:
		return "rate_limit_exceeded"
	case e.Type == api.TypeInvalidRequest:
		return "invalid_prompt"
	}
	return "server_error"
}
