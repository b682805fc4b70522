package actors

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"krater/actors/engine"
	"krater/actors/trace"
	"krater/scheduler"
	"krater/scheduler/files"
	"krater/stages"
	"krater/stages/sample"
	"krater/stages/text/chat"
	"krater/stages/text/stop"
	"krater/stages/text/tokenizer"
	"krater/stages/text/toolcall"
)

// output is the pipeline's end of one request: it turns tokens into text and events. Only the
// stream actor calls its methods, except Abort.
type output struct {
	r      *requests
	answer *answer
	tok    *tokenizer.Tokenizer
	detok  *tokenizer.Stream
	stops  *stop.Matcher
	parts  *toolcall.Parser // nil: all is text

	id        uint64
	logprobs  bool
	first     int32 // token of the prompt
	scores    bool  // the prompt's tokens are reported
	raw       bool  // the prompt is a text, of which the tokens textFrom to textTo are
	silent    bool  // no answer is wanted
	shortIDs  bool  // of calls
	special   bool  // control tokens are part of the text
	keepStop  bool  // the text of what ended the answer is part of it
	minTokens int   // no stop string is looked for in the text of the first minTokens

	textFrom, textTo int
	scored           int // tokens of the prompt that were reported
	progress         int // tokens of the prompt that were there at the last report

	over  atomic.Bool // the reader has got its last event
	usage engine.Usage
	ender *int32 // the end token, once it has come

	// On the trace's clock.
	submitted, started, lastToken int64

	// For readers of the list of open requests.
	name, owner    string
	caller         engine.Caller
	priority, most int
	seen           progress
	ring           *trace.Ring // of the stream actor; may be nil

	// Tokens with log-probabilities wait here until their text is released: a
	// stop string takes its tokens with it.
	held     []heldToken
	textSeen int // bytes that the detokeniser has given
	textSent int // bytes released
}

// progress is the part of an output that other goroutines may read.
type progress struct {
	started, first, last, tokens, cached atomic.Int64
}

type heldToken struct {
	token engine.Token
	from  int // where its text begins, in bytes of the answer
}

// newOutput makes the output of a request that came at "came" (trace clock).
func newOutput(g *Gateway, req *engine.Request, a *answer, came int64) *output {
	return &output{
		r: g.r, answer: a, tok: g.opt.Tokenizer, detok: g.opt.Tokenizer.NewStream(!req.KeepSpecial),
		stops: stop.New(req.Stop, req.IncludeStop), logprobs: req.Logprobs >= 0, keepStop: req.IncludeStop, minTokens: req.MinTokens,
		scores: req.PromptLogprobs != nil, raw: req.Prompt.Text != nil, silent: req.PromptOnly, special: req.KeepSpecial,
		name: req.ID, owner: req.Owner, caller: req.Caller, priority: req.Priority, ring: g.stream,
		usage: engine.Usage{Prompt: a.prompt}, submitted: came,
	}
}

// tailTokens is how many tokens of the prompt's end are read to see whether it has opened the reasoning.
const tailTokens = 16

// take has the answer taken apart, if the request asks for it and the template has parts.
func (o *output) take(t *chat.Template, req *engine.Request, ids []int32) {
	if req.Parts == nil || t == nil {
		return
	}
	f := t.Format()
	opt := toolcall.Options{
		Tools: req.Parts.Tools, Single: req.Parts.Single,
		Inside: f.Opens(o.tok.Decode(ids[max(0, len(ids)-tailTokens):], false)),
	}
	if !o.special {
		o.detok.Show(f.Uses)
		opt.Special = func(text string) bool {
			id, ok := o.tok.TokenID(text)
			return ok && o.tok.IsSpecial(id)
		}
	}
	o.parts, o.shortIDs = t.Parser(opt), f.ShortIDs()
}

// begin sets the request's number, before the output is shared.
func (o *output) begin(id uint64) {
	o.id = id
	o.answer.cancel = func() { o.r.cancel(id) }
}

// Queued implements msg.Output.
func (o *output) Queued(position int) {
	o.answer.push(engine.Event{Kind: engine.Queued, Position: position})
}

// Started implements msg.Output.
func (o *output) Started(at int64, cached int) {
	o.started, o.usage.Cached = at, cached
	o.seen.cached.Store(int64(cached))
	o.seen.started.Store(at)
	o.r.meters.started(seconds(at - o.submitted))
	o.answer.push(engine.Event{Kind: engine.Started, Usage: o.usage})
	if o.scores {
		o.Scored(sample.Result{ID: o.first, Logprob: float32(math.NaN())})
	}
}

// Prefilled implements msg.Output. A prompt that is computed again brings nothing new.
func (o *output) Prefilled(done int) {
	if done > o.progress {
		o.progress = done
		o.answer.push(engine.Event{Kind: engine.Progress, Position: done, Usage: o.usage})
	}
}

// Scored implements msg.Output.
func (o *output) Scored(r sample.Result) {
	t := o.token(r)
	if o.raw { // special tokens of the text are part of it, unlike those that were added
		t.Hidden = o.scored < o.textFrom || o.scored >= o.textTo
	}
	o.scored++
	o.answer.push(engine.Event{Kind: engine.Scored, Tokens: []engine.Token{t}})
}

// Token implements msg.Output.
func (o *output) Token(r sample.Result, at int64) bool {
	if o.over.Load() {
		return false
	}
	if o.silent {
		o.prefilled(at)
		return false
	}
	o.usage.Completion++
	since := o.lastToken
	if o.usage.Completion == 1 {
		since = o.submitted
		o.prefilled(at)
	}
	o.seen.last.Store(at)
	o.seen.tokens.Store(int64(o.usage.Completion))
	o.r.meters.token(o.usage.Completion == 1, seconds(at-since))
	o.lastToken = at
	if r.Stop {
		id := r.ID // here, so that other tokens stay off the heap
		o.ender = &id
		if !o.keepStop {
			return false // its text is no part of the answer; Ended follows
		}
	}
	text := o.detok.Push(r.ID)
	if o.logprobs {
		o.hold(r)
	}
	text, matched := o.check(text)
	reasons := o.reasoning()
	o.release(text)
	if reasons || o.reasoning() {
		o.usage.Reasoning++
	}
	if matched == "" && (o.parts == nil || !o.parts.Over()) {
		return false
	}
	o.flush()
	o.finish(engine.Event{Kind: engine.Done, Finish: engine.FinishStop, StopMatched: matched})
	return true
}

// reasoning reports whether the model reasons now.
func (o *output) reasoning() bool { return o.parts != nil && o.parts.Reasoning() }

// prefilled notes the end of the prompt.
func (o *output) prefilled(at int64) {
	o.seen.first.Store(at)
	o.ring.Record(&trace.Event{
		Kind: trace.Prefill, Layer: -1, Request: o.id, Rows: uint32(o.usage.Prompt - o.usage.Cached),
		Enqueued: o.submitted, Started: o.started, Ended: at,
	})
}

// check returns the part of new text that no stop string can take back, and the stop string that
// ended the answer.
func (o *output) check(text string) (out, matched string) {
	o.textSeen += len(text)
	if o.usage.Completion <= o.minTokens {
		return text, ""
	}
	return o.stops.Push(text)
}

// hold keeps a token until its text is out.
func (o *output) hold(r sample.Result) {
	o.held = append(o.held, heldToken{token: o.token(r), from: o.textSeen})
}

// token is a result with its text.
func (o *output) token(r sample.Result) engine.Token {
	text, _ := o.tok.TokenBytes(r.ID)
	t := engine.Token{ID: r.ID, Text: text, Logprob: r.Logprob, Rank: r.Rank, Hidden: !o.special && o.tok.IsSpecial(r.ID)}
	for _, alt := range r.Top {
		b, _ := o.tok.TokenBytes(alt.ID)
		t.Top = append(t.Top, engine.TokenProb{ID: alt.ID, Text: b, Logprob: alt.Logprob})
	}
	return t
}

// release sends text that no stop string can take back, with the tokens that it begins or that came
// before it. A token without text, or with part of a character only, waits for the next ones.
func (o *output) release(text string) {
	o.textSent += len(text)
	n := 0
	for n < len(o.held) && o.held[n].from < o.textSent {
		n++
	}
	o.emit(text, n)
}

// emit pushes text and the first n held tokens.
func (o *output) emit(text string, n int) {
	if text == "" && n == 0 {
		return
	}
	e := engine.Event{Kind: engine.Tokens, Text: text, Usage: o.usage}
	for i := range o.held[:n] {
		e.Tokens = append(e.Tokens, o.held[i].token)
	}
	o.held = slices.Delete(o.held, 0, n)
	if o.parts == nil {
		o.answer.push(e)
		return
	}
	o.pass(o.parts.Push(text), e.Tokens)
}

// flush gives out what was held back to see which part it is.
func (o *output) flush() {
	if o.parts != nil {
		o.pass(o.parts.Flush(), nil)
	}
}

// pass pushes an event for each part of a text. The first event also has the tokens. If the parser
// holds all of the text back, the tokens are sent at once, without text.
func (o *output) pass(events []toolcall.Event, tokens []engine.Token) {
	for e := range PartEvents(events, o.shortIDs) {
		e.Usage, e.Tokens, tokens = o.usage, tokens, nil
		o.answer.push(e)
	}
	if len(tokens) == 0 {
		return
	}
	e := engine.Event{Kind: engine.Tokens, Usage: o.usage, Tokens: tokens}
	if o.reasoning() {
		e.Part = engine.ReasoningPart
	}
	o.answer.push(e)
}

// PartEvents yields the events of an answer for the parts of its text. With shortIDs calls without
// an id get one.
func PartEvents(parts []toolcall.Event, shortIDs bool) iter.Seq[engine.Event] {
	return func(yield func(engine.Event) bool) {
		for _, part := range parts {
			e := engine.Event{Kind: engine.Tokens, Text: part.Text}
			switch part.Kind {
			case toolcall.End:
				continue
			case toolcall.Reasoning:
				e.Part = engine.ReasoningPart
			case toolcall.Arguments:
				e.Part = engine.ArgumentsPart
			case toolcall.Call:
				e.Part, e.Text, e.Name, e.CallID = engine.CallPart, "", part.Text, part.ID
				if e.CallID == "" && shortIDs {
					e.CallID = shortID()
				}
			}
			if !yield(e) {
				return
			}
		}
	}
}

// shortID returns the id of a call for templates that want nine letters and digits.
func shortID() string {
	const signs = "abcdefghijklmnopqrstuvwxyz0123456789"
	id := make([]byte, 9)
	for i := range id {
		id[i] = signs[rand.IntN(len(signs))]
	}
	return string(id)
}

// Ended implements msg.Output.
func (o *output) Ended(why scheduler.Reason, cause error, at int64) trace.Event {
	o.r.forget(o.id)
	o.r.remember(o.running(at), o.origin())
	if !o.over.Load() {
		switch why {
		case scheduler.Stop:
			o.complete(engine.Event{Finish: engine.FinishStop, StopToken: o.ender})
		case scheduler.Length:
			o.complete(engine.Event{Finish: engine.FinishLength})
		case scheduler.Cancelled:
			o.complete(engine.Event{Finish: engine.FinishCancelled})
		default:
			o.finish(engine.Event{Kind: engine.Failed, Err: endError(why, cause)})
		}
	}
	e := trace.Event{Enqueued: o.submitted, Started: o.started, Rows: uint32(o.usage.Completion)}
	if o.started == 0 {
		e.Started = at // it never left the queue
	}
	return e
}

// complete ends an answer whose text is whole: text that was held back for a stop string or an
// unfinished character is released first.
func (o *output) complete(e engine.Event) {
	out, matched := o.check(o.detok.Flush())
	if matched != "" { // a stop string of U+FFFD
		o.release(out)
		e.Finish, e.StopMatched, e.StopToken = engine.FinishStop, matched, nil
	} else {
		out += o.stops.Flush()
		o.textSent += len(out)
		o.emit(out, len(o.held))
	}
	o.flush()
	e.Kind = engine.Done
	o.finish(e)
}

// finish pushes the last event and counts the request, once.
func (o *output) finish(e engine.Event) {
	if o.over.Swap(true) {
		return
	}
	e.Usage = o.usage
	o.settle(e)
}

// Abort implements msg.Output.
func (o *output) Abort(cause error) {
	if !o.over.Swap(true) {
		o.settle(engine.Event{Kind: engine.Failed, Usage: engine.Usage{Prompt: o.answer.prompt}, Err: endError(scheduler.Failed, cause)})
	}
}

func (o *output) settle(e engine.Event) {
	o.r.meters.ended(e, seconds(o.r.now()-o.submitted))
	o.answer.push(e)
}

// endError words an end without an answer for the client; the cause is in the
// log.
func endError(why scheduler.Reason, cause error) *engine.Error {
	switch why {
	case scheduler.Expired:
		return &engine.Error{Kind: engine.Timeout, Message: "the request's deadline passed"}
	case scheduler.Drained:
		return &engine.Error{Kind: engine.Unavailable, Message: "the server is shutting down"}
	}
	if errors.Is(cause, errClosed) {
		return &engine.Error{Kind: engine.Unavailable, Message: "the server is shutting down"}
	}
	if _, ok := errors.AsType[*files.LostError](cause); ok {
		return failureError(cause)
	}
	if bad, ok := errors.AsType[*formatError](cause); ok {
		return &engine.Error{Kind: engine.BadRequest, Param: bad.param, Message: bad.Error()}
	}
	if errors.Is(cause, scheduler.ErrTooLong) {
		return &engine.Error{Kind: engine.Unavailable, Message: "a part of the model was lost, and the request does not fit the KV cache that is left"}
	}
	if _, ok := errors.AsType[*RankError](cause); ok {
		return &engine.Error{Kind: engine.Unavailable, Message: "a part of the model was lost while it answered; see the server's log"}
	}
	if errors.Is(cause, sample.ErrLogits) || errors.Is(cause, stages.ErrNotFinite) {
		return &engine.Error{Kind: engine.Internal, Message: fmt.Sprintf("the model gave no usable answer: %v", cause)}
	}
	return &engine.Error{Kind: engine.Internal, Message: "the model failed while it answered; see the server's log"}
}

// failureError tells the client why the model answers no requests. Details are in the log, except
// where a file is lost, which the client's operator has to repair.
func failureError(cause error) *engine.Error {
	e := &engine.Error{Kind: engine.Unavailable, Message: "the model has failed; see the server's log", Lasting: true}
	if lost, ok := errors.AsType[*files.LostError](cause); ok {
		e.Message = "the model's weights are lost: " + lost.Error()
	}
	return e
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }
