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
	owner   string // owner that may see it
	peer    string // peer that it counts for
	worked  func() // says that the engine has it: see Options.Work
	created time.Time
	ctx     context.Context // of the engine's request
	stop    context.CancelCauseFunc
	done    chan struct{} // closed after the final event

	mu       sync.Mutex
	marks    []mark // the index is the sequence number
	items    []item // of the output; the last one may be open
	open     bool
	text     []byte // of all items; append only: readers keep slices of it
	tokens   []engine.Token
	status   string
	position int                   // in the queue, when it was accepted
	began    time.Time             // of the prompt
	progress []*api.PromptProgress // of the prefilled events, whose mark has the index
	usage    *engine.Usage
	fault    *api.Error // with status failed
	reason   string     // with status incomplete
	ended    time.Time
	history  []byte // the conversation with this answer: see joinTurns
	// inputBytes is the part of the history before the answer. If the answer continues a message, it
	// is the whole.
	inputBytes int
	watchers   map[chan<- struct{}]int // woken at every event; the count of follows
	holders    int                     // connections that want the answer
	grace      *time.Timer             // runs while there is no hold, if the request has a grace time
	// remember gets the items of a response that belongs to a conversation, before its last event.
	remember func([]InputItem)
}

// mark is one event: its kind, and how much of the text and of the tokens belongs to it and those
// before.
type mark struct {
	kind   kind
	item   uint32 // index of the item that it is about
	text   uint32
	tokens uint32
}

func newResponse(p *plan, owner, peer string) *response {
	ctx, stop := context.WithCancelCause(context.Background())
	return &response{
		plan: p, id: api.NewID("resp_"), owner: owner, peer: peer, created: time.Now(),
		ctx: ctx, stop: stop, done: make(chan struct{}),
		status: statusInProgress, watchers: map[chan<- struct{}]int{}, holders: 1,
	}
}

// add appends an event and wakes the followers. Tokens belong to deltas; tokens without text are
// added to the next one. r.mu is held.
func (r *response) add(k kind) {
	m := mark{kind: k, text: uint32(len(r.text)), item: uint32(max(0, len(r.items)-1))}
	switch n := len(r.marks); {
	case k == textDelta:
		m.tokens = uint32(len(r.tokens))
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
		r.began = time.Now()
		r.run()
	case engine.Progress:
		r.run()
		e := ev // here, so that other events stay off the heap
		r.progress = append(r.progress, api.NewPromptProgress(&e, r.began))
		r.add(prefilled)
		r.marks[len(r.marks)-1].item = uint32(len(r.progress) - 1)
	case engine.Tokens:
		r.write(ev)
	case engine.Done:
		r.write(ev)
		r.use(ev.Usage)
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
		r.use(ev.Usage)
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

// use sets what the response has used; r.mu is held.
func (r *response) use(u engine.Usage) { r.usage = &u }

// run makes response.in_progress once; r.mu is held.
func (r *response) run() {
	if r.has(inProgress) {
		return
	}
	r.status = statusInProgress
	r.add(inProgress)
}

// announce begins a new item, after the end of the one before; r.mu is held.
func (r *response) announce(i item) {
	r.run()
	r.close(statusCompleted)
	i.id = api.NewID(itemPrefixes[i.kind])
	i.status, i.from = statusInProgress, len(r.text)
	if n := len(r.items); n > 0 {
		i.first = r.items[n-1].last
	}
	r.items, r.open = append(r.items, i), true
	r.add(itemAdded)
	if i.kind != callItem {
		r.add(partAdded)
	}
}

// current returns the open item, nil if there is none; r.mu is held.
func (r *response) current() *item {
	if !r.open {
		return nil
	}
	return &r.items[len(r.items)-1]
}

// write appends what an engine event brought; r.mu is held.
func (r *response) write(ev engine.Event) {
	kind := messageItem
	switch ev.Part {
	case engine.ReasoningPart:
		kind = reasoningItem
	case engine.CallPart:
		name := r.plan.clientName(ev.Name)
		r.announce(item{kind: callItem, callID: api.CallID(&ev), name: name.name, space: name.space})
		return
	case engine.ArgumentsPart:
		kind = callItem
	default:
		r.tokens = append(r.tokens, ev.Tokens...)
	}
	if ev.Text == "" { // tokens whose text is still held back go with the next piece
		return
	}
	if i := r.current(); i == nil || i.kind != kind {
		r.announce(item{kind: kind})
	}
	r.text = append(r.text, ev.Text...)
	r.add(textDelta)
}

// close ends the open item, if there is one; r.mu is held.
func (r *response) close(status string) {
	i := r.current()
	if i == nil {
		return
	}
	if i.kind == messageItem && int(r.marks[len(r.marks)-1].tokens) < len(r.tokens) {
		r.add(textDelta) // without text
	}
	i.status, i.to, i.last = status, len(r.text), i.first
	if i.kind == messageItem {
		i.last = len(r.tokens)
	}
	r.add(textDone)
	if i.kind != callItem {
		r.add(partDone)
	}
	r.add(itemDone)
	r.open = false
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

// finish closes the open item and makes the final event. A normal end has a message or a call; r.mu
// is held.
func (r *response) finish(k kind) {
	if n := len(r.items); k == completed && r.plan.generate && (n == 0 || r.items[n-1].kind == reasoningItem) {
		r.announce(item{kind: messageItem})
	}
	r.run()
	r.close(itemStatus(k))
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
		r.grow()
		r.history, r.inputBytes = r.plan.historyWith(r.answer())
	}
	r.plan.past, r.plan.turns = nil, nil
	r.add(k)
	close(r.done)
}

// grow gives the items of input and output to the conversation that the response belongs to; r.mu is
// held.
func (r *response) grow() {
	if r.remember == nil {
		return
	}
	var items []InputItem
	for i := range r.plan.turns {
		items = append(items, r.plan.turns[i].items()...)
	}
	if t, ok := r.answer(); ok {
		items = append(items, t.items()...)
	}
	r.remember(items)
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
	const object, perMark, perToken, perItem = 1024, 16, 64, 192
	bytes = object + perItem*len(r.items) + cap(r.text) + len(r.history) + perMark*cap(r.marks) + len(r.plan.echo.Tools)
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
	o.Output = []Item{}
	return &o
}

// object returns the wire form of the current state; r.mu is held.
func (r *response) object() *Object {
	o := r.early(r.status)
	for n := range r.items {
		i := r.items[n]
		if r.open && n == len(r.items)-1 {
			if i.to, i.last = len(r.text), i.first; i.kind == messageItem {
				i.last = len(r.tokens)
			}
		}
		o.Output = append(o.Output, i.whole(i.status, string(r.text[i.from:i.to]), r.tokens[i.first:i.last]))
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

// itemStatus returns the status of the item that a response's end closes.
func itemStatus(end kind) string {
	if end == completed {
		return statusCompleted
	}
	return statusIncomplete
}

// answer returns the output as a turn of the conversation; false if there is none. r.mu is held.
func (r *response) answer() (turn, bool) {
	t := turn{role: "assistant"}
	text, said := "", false
	for _, i := range r.items {
		piece := string(r.text[i.from:i.to])
		switch i.kind {
		case messageItem:
			text, said = text+piece, true
		case reasoningItem:
			t.reasoning += piece
		case callItem:
			t.calls = append(t.calls, call{i.callID, i.qualified(), piece})
		}
	}
	if said {
		t.parts = []string{text}
	}
	return t, len(r.items) > 0
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
