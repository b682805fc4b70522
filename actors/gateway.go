package actors

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"krater/actors/engine"
	"krater/actors/msg"
	"krater/actors/trace"
	"krater/scheduler"
	"krater/stages/text/chat"
	"krater/stages/text/tokenizer"
)

// GatewayOptions describe the model to clients.
type GatewayOptions struct {
	ID        string
	Created   time.Time
	Tokenizer *tokenizer.Tokenizer
	Template  *chat.Template // nil: the model has none, chats are refused
	Defaults  engine.Sampling
	EOS       []int32
	Vocab     int
	// Identity is a hash of everything besides token ids that decides the contents of the KV cache for a
	// prefix. ShareKV lets owners use each other's cached prefixes.
	Identity [32]byte
	ShareKV  bool
}

// Gateway implements engine.Engine over a pipeline. Its methods run on the caller's goroutine, so
// templates and tokenizing take no time of the pipeline.
type Gateway struct {
	r    *requests
	opt  GatewayOptions
	ring *trace.Ring // written under r.mu: it has many writers
	// stream is the ring of the stream actor, on which outputs are called.
	stream   *trace.Ring
	grammars grammars
}

// NewGateway opens a pipeline, and the pipelines that take over from it, to requests.
func NewGateway(p *Pipeline, opt GatewayOptions) *Gateway {
	return &Gateway{r: p.requests, opt: opt, ring: p.trace.Ring("gateway"), stream: p.trace.Ring("stream")}
}

var _ engine.Engine = (*Gateway)(nil)

// Info implements engine.Engine.
func (g *Gateway) Info() engine.Info {
	info := engine.Info{
		ID: g.opt.ID, Created: g.opt.Created, Context: g.r.last().lim.Context, Vocab: g.opt.Vocab, Defaults: g.opt.Defaults,
		Infill: findInfill(g.opt.Tokenizer) != nil, Tokenizer: engine.TokenizerInfo{AddBOS: g.opt.Tokenizer.AddBOS()},
	}
	for _, t := range []struct {
		text *string
		id   func() (int32, bool)
	}{{&info.Tokenizer.BOS, g.opt.Tokenizer.BOS}, {&info.Tokenizer.EOS, g.opt.Tokenizer.EOS}} {
		if id, ok := t.id(); ok {
			*t.text = g.opt.Tokenizer.Decode([]int32{id}, false)
		}
	}
	if g.opt.Template != nil {
		info.Tokenizer.Template, info.Reasons = g.opt.Template.Source(), g.opt.Template.Format().Reasons()
	}
	return info
}

// Ready implements engine.Engine.
func (g *Gateway) Ready() error { return g.r.ready() }

// Submit implements engine.Engine.
func (g *Gateway) Submit(ctx context.Context, req *engine.Request) (engine.Stream, error) {
	began := g.r.now()
	p, err := g.r.await(ctx)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, gone()
	}
	size := p.lim.Context
	// A prompt that is a little too long is counted, so that the client knows by how much.
	ids, front, back, err := g.tokenize(ctx, req.Prompt, 2*size)
	if long, ok := errors.AsType[*tokenizer.LimitError](err); ok {
		return nil, contextError(fmt.Sprintf("at least %d", long.AtLeast), size)
	}
	if err == nil {
		err = g.check(ids)
	}
	if err != nil {
		return nil, err
	}
	room := size - len(ids)
	if req.PromptOnly {
		room++ // the one token that the last step makes is dropped
	}
	switch {
	case len(ids) == 0:
		return nil, &engine.Error{Kind: engine.BadRequest, Param: "prompt", Message: "the prompt is empty"}
	case room < 1:
		return nil, contextError(strconv.Itoa(len(ids)), size)
	}
	maxNew := room
	if req.PromptOnly {
		maxNew = 1
	} else if req.MaxTokens > 0 {
		maxNew = min(req.MaxTokens, room)
	}
	choices, err := g.choices(req, ids)
	if err != nil {
		return nil, err
	}
	a := newAnswer(len(ids))
	o := newOutput(g, req, a, began)
	o.first, o.most = ids[0], maxNew
	o.textFrom, o.textTo = front, len(ids)-back
	o.take(g.opt.Template, req, ids)
	if err := g.enqueue(ctx, o, ids, maxNew, req, choices); err != nil {
		return nil, err
	}
	a.watch(ctx)
	g.record(o, began)
	return a, nil
}

// record notes an accepted request in the trace: its template, tokens and entry.
func (g *Gateway) record(o *output, began int64) {
	e := trace.Event{Kind: trace.Gateway, Layer: -1, Request: o.id, Rows: uint32(o.answer.prompt), Started: began, Ended: g.r.now()}
	g.r.mu.Lock()
	g.ring.Record(&e)
	g.r.mu.Unlock()
}

// enqueue registers the output and hands the request to the schedule actor: to that of the next pipeline, if
// one is suspended before it takes the request.
func (g *Gateway) enqueue(ctx context.Context, o *output, ids []int32, maxNew int, req *engine.Request, c *choices) error {
	sampler, err := c.sampler(nil)
	if err != nil {
		return &engine.Error{Kind: engine.BadRequest, Message: err.Error()}
	}
	sub := &msg.Submit{
		Request: scheduler.Request{
			PromptLen: len(ids), MaxNew: maxNew, Priority: req.Priority,
			Domain: g.domain(req.Owner), Group: req.Group, Key: number(req.Owner), Background: req.Background, Turns: turns(ids, g.opt.EOS),
		},
		Prompt: ids, Sampler: sampler, Output: o, Reply: make(chan error, 1), Progress: req.Progress, Again: c.sampler,
	}
	if req.PromptLogprobs != nil {
		sub.Request.Scored, sub.Scores = true, *req.PromptLogprobs
	}
	for {
		p, err := g.r.await(ctx)
		if err != nil {
			return err
		}
		sub.Request.ID, sub.Request.Deadline = g.r.open(o), p.deadline(req.Deadline)
		o.begin(sub.Request.ID)
		if taken, err := p.submit(sub); err != nil || !taken {
			g.r.forget(sub.Request.ID)
			if err != nil {
				return submitError(err)
			}
			continue
		}
		return nil
	}
}

// submit hands a request to the schedule actor. It is not taken by a pipeline that ends meanwhile.
func (p *Pipeline) submit(sub *msg.Submit) (taken bool, err error) {
	p.host.send(p.routes.schedule, sub)
	select {
	case err = <-sub.Reply:
		return err == nil, err
	case <-p.dead:
	case <-p.halted:
	}
	select {
	case err = <-sub.Reply: // before its end
		return err == nil, err
	default:
		return false, nil
	}
}

// turns returns the ends of the first and the last message of a prompt, if end tokens mark them. Other conversations begin
// with the same tokens up to the first end: the instructions. If the template writes an answer differently from the model, the
// next turn shares its tokens with this one up to the last end.
func turns(ids, eos []int32) []int {
	isEnd := func(id int32) bool { return slices.Contains(eos, id) }
	first := slices.IndexFunc(ids, isEnd) + 1
	if first == 0 {
		return nil
	}
	last := len(ids)
	for !isEnd(ids[last-1]) {
		last--
	}
	return slices.Compact([]int{first, last})
}

// domain names the owner whose cached prefixes a request may use.
func (g *Gateway) domain(owner string) [32]byte {
	if g.opt.ShareKV || owner == "" {
		return g.opt.Identity
	}
	return sha256.Sum256(append(g.opt.Identity[:], owner...))
}

// number tells owners apart where they share; 0 is no owner in particular.
func number(owner string) uint64 {
	if owner == "" {
		return 0
	}
	sum := sha256.Sum256([]byte(owner))
	return max(1, binary.LittleEndian.Uint64(sum[:8]))
}

// deadline puts a wall-clock deadline on the trace's clock; 0 is none.
func (p *Pipeline) deadline(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return max(1, p.host.now()+int64(time.Until(t)))
}

// submitError words a refusal of the scheduler for the client.
func submitError(err error) error {
	switch {
	case errors.Is(err, scheduler.ErrQueueFull):
		return &engine.Error{Kind: engine.Overloaded, Message: "too many requests are waiting; try again later", RetryAfter: time.Second}
	case errors.Is(err, scheduler.ErrDraining):
		return &engine.Error{Kind: engine.Unavailable, Message: "the server is shutting down"}
	case errors.Is(err, scheduler.ErrExpired):
		return &engine.Error{Kind: engine.Timeout, Message: "the request's deadline passed before it began"}
	case errors.Is(err, scheduler.ErrTooLong):
		return &engine.Error{Kind: engine.BadRequest, Param: "max_tokens", Message: "the request needs more KV cache than the server has (--kv-cache): " + err.Error()}
	}
	return &engine.Error{Kind: engine.Internal, Message: "the request could not be scheduled"}
}

func contextError(prompt string, context int) error {
	return &engine.Error{Kind: engine.ContextLength, Param: "messages", Message: fmt.Sprintf(
		"this model's maximum context length is %d tokens, and the prompt has %s; leave room for at least one token of the answer", context, prompt)}
}

// Tokenize implements engine.Engine.
func (g *Gateway) Tokenize(ctx context.Context, p engine.Prompt, most int) ([]int32, error) {
	ids, _, _, err := g.tokenize(ctx, p, most)
	if long, ok := errors.AsType[*tokenizer.LimitError](err); ok {
		return nil, &engine.Error{Kind: engine.ContextLength, Param: "prompt", Message: fmt.Sprintf("the text has at least %d tokens, the limit is %d", long.AtLeast, long.Limit)}
	}
	return ids, err
}

// tokenize is Tokenize with a *tokenizer.LimitError for what is too long. It also returns how many
// tokens the tokenizer put before and behind those of a text.
func (g *Gateway) tokenize(ctx context.Context, p engine.Prompt, most int) (ids []int32, front, back int, err error) {
	if p.Text == nil || p.IDs != nil {
		ids, err = g.tokens(ctx, p, most)
		return ids, 0, 0, err
	}
	text, o := *p.Text, tokenizer.EncodeOptions{ParseSpecial: p.ParseSpecial, Limit: most}
	if p.Suffix != nil {
		if text, o, err = g.fill(p, o); err != nil {
			return nil, 0, 0, err
		}
	}
	if ids, err = g.encode(ctx, text, "prompt", o); err != nil || p.NoBOS {
		return ids, 0, 0, err
	}
	ids, front, back = g.opt.Tokenizer.Wrap(ids)
	return ids, front, back, nil
}

// tokens returns the tokens of a prompt that is not raw text.
func (g *Gateway) tokens(ctx context.Context, p engine.Prompt, most int) ([]int32, error) {
	switch {
	case p.IDs != nil && len(p.IDs) > most:
		return nil, &tokenizer.LimitError{Limit: most, AtLeast: len(p.IDs)}
	case p.IDs != nil:
		return append([]int32{}, p.IDs...), g.check(p.IDs)
	case p.Chat != nil:
		r, err := g.render(ctx, p.Chat)
		if err != nil {
			return nil, err
		}
		return g.encode(ctx, r.Text, "messages", tokenizer.EncodeOptions{ParseSpecial: true, Protected: r.Protected, Limit: most})
	}
	return nil, &engine.Error{Kind: engine.BadRequest, Param: "prompt", Message: "there is no prompt"}
}

// check refuses ids that the model has no embedding for, from whatever source: such a row would
// fail its whole batch.
func (g *Gateway) check(ids []int32) error {
	for i, id := range ids {
		if id < 0 || int(id) >= g.opt.Vocab {
			return &engine.Error{Kind: engine.BadRequest, Param: "prompt", Message: fmt.Sprintf("token %d at index %d is not in the vocabulary of %d", id, i, g.opt.Vocab)}
		}
	}
	return nil
}

func (g *Gateway) encode(ctx context.Context, text, param string, o tokenizer.EncodeOptions) ([]int32, error) {
	ids, err := g.opt.Tokenizer.EncodeContext(ctx, text, o)
	if _, long := errors.AsType[*tokenizer.LimitError](err); err == nil || long {
		return ids, err
	}
	if ctx.Err() != nil {
		return nil, gone()
	}
	return nil, &engine.Error{Kind: engine.BadRequest, Param: param, Message: "the text cannot be tokenized: " + err.Error()}
}

// gone is the error of a request whose context ended before it was accepted.
func gone() error {
	return &engine.Error{Kind: engine.Cancelled, Message: "the request was cancelled before it began"}
}

// textMost bounds the text that Detokenize makes, in bytes: a short list of ids can have a
// long text.
const textMost = 16 << 20

// Detokenize implements engine.Engine.
func (g *Gateway) Detokenize(ids []int32, skipSpecial bool) (string, error) {
	bytes := 0
	for i, id := range ids {
		text, ok := g.opt.Tokenizer.TokenBytes(id)
		if !ok {
			return "", &engine.Error{Kind: engine.BadRequest, Param: "tokens", Message: fmt.Sprintf("token %d at index %d is unknown", id, i)}
		}
		if bytes += len(text); bytes > textMost {
			return "", &engine.Error{Kind: engine.BadRequest, Param: "tokens", Message: fmt.Sprintf("the text of the %d tokens has more than %d bytes", len(ids), textMost)}
		}
	}
	return g.opt.Tokenizer.Decode(ids, skipSpecial), nil
}

// Render implements engine.Engine.
func (g *Gateway) Render(ctx context.Context, c *engine.Chat) (string, error) {
	r, err := g.render(ctx, c)
	return r.Text, err
}

func (g *Gateway) render(ctx context.Context, c *engine.Chat) (chat.Result, error) {
	if g.opt.Template == nil {
		return chat.Result{}, &engine.Error{Kind: engine.BadRequest, Param: "messages", Message: "this model has no chat template; use /v1/completions"}
	}
	r, err := g.opt.Template.RenderContext(ctx, chat.Conversation{
		Messages: c.Messages, Tools: c.Tools, Kwargs: c.Kwargs,
		AddGenerationPrompt: !c.NoGenerationPrompt, ContinueFinalMessage: c.ContinueFinalMessage,
	})
	if err != nil && ctx.Err() != nil {
		return chat.Result{}, gone()
	}
	if err != nil {
		var ce *chat.Error
		if errors.As(err, &ce) {
			return chat.Result{}, &engine.Error{Kind: engine.BadRequest, Param: ce.Param, Message: ce.Message}
		}
		return chat.Result{}, &engine.Error{Kind: engine.BadRequest, Param: "messages", Message: err.Error()}
	}
	return r, nil
}

// Prefixes implements engine.Engine.
func (g *Gateway) Prefixes(ctx context.Context, owner string) (engine.Prefixes, error) {
	for {
		p, err := g.r.await(ctx)
		if err != nil {
			return engine.Prefixes{}, err
		}
		m := &msg.Prefixes{Domain: g.domain(owner), Reply: make(chan []uint64, 1)}
		p.host.send(p.routes.schedule, m)
		select {
		case list := <-m.Reply:
			return engine.Prefixes{BlockTokens: p.lim.BlockTokens, Digests: list}, nil
		case <-ctx.Done():
			return engine.Prefixes{}, gone()
		case <-p.dead: // another pipeline has the requests, or none
		case <-p.halted:
		}
	}
}

// Stats implements engine.Engine.
func (g *Gateway) Stats() engine.Stats {
	p := g.r.last()
	s := p.meters.snapshot()
	p.tell(&s)
	s.ActorQueue = map[string]int{}
	s.ActorWait = map[string]time.Duration{}
	for _, r := range p.trace.Rings() {
		if process, _ := trace.Process(r.Name()); process == "" { // others are here only while a viewer looks
			s.ActorWait[r.Name()] = r.Totals().Wait
		}
	}
	p.host.waiting(s.ActorQueue)
	s.Links = p.linkCosts()
	return s
}
