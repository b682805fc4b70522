package actors

import (
	"errors"
	"fmt"

	"krater/actors/engine"
	"krater/actors/trace"
	"krater/scheduler"
	"krater/stages/sample"
	"krater/stages/text/stop"
	"krater/stages/text/tokenizer"
)

// output is the pipeline's end of one request: it turns tokens into text and
// events. Only the stream actor calls its methods, abort excepted.
type output struct {
	p      *Pipeline
	answer *answer
	tok    *tokenizer.Tokenizer
	detok  *tokenizer.Stream
	stops  *stop.Matcher

	id       uint64
	logprobs bool
	keepStop bool // the text of the token that ended the answer is part of it
	done     bool // the reader has got its last event

	usage     engine.Usage
	submitted int64 // trace clock
	lastToken int64

	// Tokens with log-probabilities wait here until their text is released: a
	// stop string takes its tokens with it.
	held     []heldToken
	textSeen int // bytes given to the stop matcher
	textSent int // bytes released
}

type heldToken struct {
	token engine.Token
	from  int // where its text begins, in bytes of the answer
}

func newOutput(g *Gateway, req *engine.Request, a *answer) *output {
	return &output{
		p: g.p, answer: a, tok: g.opt.Tokenizer, detok: g.opt.Tokenizer.NewStream(!req.KeepSpecial),
		stops: stop.New(req.Stop, req.IncludeStop), logprobs: req.Logprobs >= 0, keepStop: req.IncludeStop,
		usage: engine.Usage{Prompt: a.prompt}, submitted: trace.Now(),
	}
}

// begin sets the request's number, before anybody else knows the output.
func (o *output) begin(id uint64) {
	o.id = id
	o.answer.cancel = func() { o.p.cancel(id) }
}

// Queued implements msg.Output.
func (o *output) Queued() { o.answer.push(engine.Event{Kind: engine.Queued}) }

// Started implements msg.Output.
func (o *output) Started(at int64) {
	o.p.meters.started(seconds(at - o.submitted))
	o.answer.push(engine.Event{Kind: engine.Started})
}

// Token implements msg.Output.
func (o *output) Token(r sample.Result, at int64) bool {
	if o.done {
		return false
	}
	o.usage.Completion++
	since := o.lastToken
	if o.usage.Completion == 1 {
		since = o.submitted
	}
	o.p.meters.token(o.usage.Completion == 1, seconds(at-since))
	o.lastToken = at
	if r.Stop && !o.keepStop {
		return false // its text is no part of the answer; Ended follows
	}
	text := o.detok.Push(r.ID)
	if o.logprobs {
		o.hold(r)
	}
	o.textSeen += len(text)
	out, matched := o.stops.Push(text)
	o.release(out, matched)
	if matched == "" {
		return false
	}
	o.finish(engine.Event{Kind: engine.Done, Finish: engine.FinishStop, StopMatched: matched})
	return true
}

// hold keeps a token until its text is out.
func (o *output) hold(r sample.Result) {
	text, _ := o.tok.TokenBytes(r.ID)
	t := engine.Token{ID: r.ID, Text: text, Logprob: r.Logprob}
	for _, alt := range r.Top {
		b, _ := o.tok.TokenBytes(alt.ID)
		t.Top = append(t.Top, engine.TokenProb{ID: alt.ID, Text: b, Logprob: alt.Logprob})
	}
	o.held = append(o.held, heldToken{token: t, from: o.textSeen})
}

// release sends text that no stop string can take back, with its tokens. After
// a match the tokens behind the released text are dropped.
func (o *output) release(text, matched string) {
	o.textSent += len(text)
	e := engine.Event{Kind: engine.Tokens, Text: text, Usage: o.usage}
	n := 0
	for n < len(o.held) && (o.held[n].from < o.textSent || matched == "" && o.textSent == o.textSeen) {
		e.Tokens = append(e.Tokens, o.held[n].token)
		n++
	}
	o.held = o.held[n:]
	if text != "" || len(e.Tokens) > 0 {
		o.answer.push(e)
	}
}

// Ended implements msg.Output.
func (o *output) Ended(why scheduler.Reason, cause error, at int64) {
	o.p.forget(o.id)
	if o.done {
		return
	}
	switch why {
	case scheduler.Stop:
		o.flush()
		o.finish(engine.Event{Kind: engine.Done, Finish: engine.FinishStop})
	case scheduler.Length:
		o.flush()
		o.finish(engine.Event{Kind: engine.Done, Finish: engine.FinishLength})
	case scheduler.Cancelled:
		o.flush()
		o.finish(engine.Event{Kind: engine.Done, Finish: engine.FinishCancelled})
	default:
		o.finish(engine.Event{Kind: engine.Failed, Err: endError(why, cause)})
	}
}

// flush releases what was held back for a stop string or a broken character.
func (o *output) flush() {
	text := o.detok.Flush()
	o.textSeen += len(text)
	out, matched := o.stops.Push(text)
	if matched == "" {
		out += o.stops.Flush()
	}
	o.release(out, matched)
}

// finish pushes the last event and counts the request.
func (o *output) finish(e engine.Event) {
	o.done = true
	e.Usage = o.usage
	o.p.meters.ended(e, seconds(trace.Now()-o.submitted))
	o.answer.push(e)
}

// abort ends the answer from outside when the pipeline has failed for good.
func (o *output) abort(cause error) {
	o.answer.push(engine.Event{Kind: engine.Failed, Usage: engine.Usage{Prompt: o.answer.prompt}, Err: endError(scheduler.Failed, cause)})
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
	if errors.Is(cause, sample.ErrLogits) {
		return &engine.Error{Kind: engine.Internal, Message: fmt.Sprintf("the model gave no usable answer: %v", cause)}
	}
	return &engine.Error{Kind: engine.Internal, Message: "the model failed while it answered; see the server's log"}
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }
