package responses

import (
	"context"
	"strings"
	"time"

	"krater/actors/engine"
	"krater/transport/api"
)

// create plans a request and resolves the response that it continues. local, which may be nil,
// finds responses that this connection may continue although they are not stored. The continued
// text counts as work, too, until the response's worked is called.
func (d *Door) create(ctx context.Context, b *body, owner, peer string, local func(id string) *response) (*response, *api.Error) {
	var err *api.Error
	if b.Input, err = d.resolve(owner, b.Input); err != nil {
		return nil, err
	}
	p, err := newPlan(b, d.engine.Info())
	if err != nil {
		return nil, err
	}
	var past []byte
	if b.PreviousID != nil {
		if past, err = d.past(owner, *b.PreviousID, local); err != nil {
			return nil, err
		}
	}
	id, err := conversationID(b.Conversation)
	if err != nil {
		return nil, err
	}
	if id != "" {
		if b.PreviousID != nil {
			return nil, api.Invalid("conversation", "'conversation' and 'previous_response_id' are both given; give one")
		}
		if past, err = d.spoken(owner, id); err != nil {
			return nil, err
		}
		p.echo.Conversation = &ConversationRef{id}
	}
	worked := func() {}
	if len(past) > smallMessage {
		if worked, err = d.opt.Work(ctx, peer, int64(len(past))); err != nil {
			return nil, err
		}
	}
	if len(past) == 0 && len(p.turns) == 0 && p.generate && b.Instructions == nil {
		return nil, api.Invalid("input", "'input' is empty and so is the conversation")
	}
	p.continueFrom(past)
	r := newResponse(p, owner, peer)
	r.worked = worked
	if id != "" && p.generate {
		r.remember = func(items []InputItem) { d.talks.grow(owner, id, items) }
	}
	return r, nil
}

// past returns the conversation up to and with the response of that id.
func (d *Door) past(owner, id string, local func(id string) *response) ([]byte, *api.Error) {
	var r *response
	if local != nil {
		r = local(id)
	}
	if r == nil {
		r, _ = d.store.find(owner, id, false)
	}
	if r == nil {
		return nil, api.BadRequest(codePrevious, "previous_response_id", "there is no previous response '%s' to continue", api.Clip(id))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.ended.IsZero():
		return nil, api.Invalid("previous_response_id", "the previous response '%s' has not ended yet", r.id)
	case r.status == statusFailed:
		return nil, api.BadRequest(codePrevious, "previous_response_id", "the previous response '%s' failed and cannot be continued", r.id)
	}
	return r.history, nil
}

// place takes a place for a response that came over a WebSocket: among the server's generating
// requests, or among the few that only prepare, which cost a moment and are welcome also where no
// more can be generated.
func (d *Door) place(p *plan, peer string) (release func(), err *api.Error) {
	if p.generate {
		return d.opt.Acquire(peer)
	}
	if release := d.warming.Take(peer); release != nil {
		return release, nil
	}
	return nil, api.Overloaded("too many requests prepare conversations")
}

// start runs a response in a new goroutine: the connection continues to read while the engine
// tokenizes. started, which must not block, is called once with the engine's answer: nil, or why it
// refused. It is not called if start itself refuses. release returns the response's place.
func (d *Door) start(r *response, release func(), started func(*api.Error)) *api.Error {
	if !d.enter(r) {
		r.worked()
		release()
		return shuttingDown()
	}
	answer := started
	started = func(err *api.Error) {
		r.worked()
		answer(err)
	}
	over := func() {
		r.stop(nil) // frees the context
		release()
		d.leave(r)
	}
	go func() {
		stream := d.drive(r, started)
		if stream == nil {
			over()
			return
		}
		go func() { // whose stack stays small, while that of Submit is deep
			defer over()
			d.pump(r, stream)
			stream.Close()
			d.settle(r)
		}()
	}()
	return nil
}

// drive brings a response to where its events come from the engine: it returns their stream, or nil
// if there is none.
func (d *Door) drive(r *response, started func(*api.Error)) engine.Stream {
	if !r.plan.generate {
		if err := d.engine.Ready(); err != nil {
			started(api.FromEngine(err))
			return nil
		}
		// Only a count: faults of an incomplete conversation are reported when it is continued.
		ids, _ := d.engine.Tokenize(r.ctx, r.plan.req.Prompt, d.engine.Info().Context)
		r.plan.req = nil
		r.warm(len(ids))
		d.store.put(r)
		d.store.settle(r)
		started(nil)
		return nil
	}
	req := r.plan.req
	r.plan.req = nil
	req.ID, req.Owner = r.id, r.owner
	if req.Deadline.IsZero() {
		req.Deadline = r.created.Add(d.opt.RequestTimeout)
	}
	stream, err := d.engine.Submit(r.ctx, req)
	switch {
	case err == nil, context.Cause(r.ctx) == errCancelled:
	case context.Cause(r.ctx) == errShutdown:
		started(shuttingDown())
		return nil
	default:
		started(r.plan.refusal(err))
		return nil
	}
	r.begin()
	d.store.put(r)
	started(nil)
	if err == nil {
		return stream
	}
	r.end() // cancelled before the engine had it: an empty answer
	d.settle(r)
	return nil
}

// settle notes the end of a response.
func (d *Door) settle(r *response) {
	d.store.settle(r)
	d.log.Debug().Str("response", r.id).Str("status", r.state()).Dur("took", time.Since(r.created)).Msg("response ended")
}

// pump reads the stream to its end. A stopped response continues until the engine notices, which
// takes one step, because the last event carries the usage. If the engine does not, pump leaves
// after cancelWait.
func (d *Door) pump(r *response, stream engine.Stream) {
	ctx := r.ctx
	for range 2 {
		for {
			ev, err := stream.Next(ctx)
			if err != nil {
				break
			}
			if r.apply(ev) {
				return
			}
		}
		if r.ctx.Err() == nil {
			break
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.Background(), cancelWait)
		defer cancel()
	}
	r.end()
}

// refusal rewords the engine's error for this door: the conversation came in as input, and
// truncation would have helped an overlong one.
func (p *plan) refusal(err error) *api.Error {
	e := api.FromEngine(err)
	if strings.HasPrefix(e.Param, "messages") { // its index counts what came before, too
		named := *e
		named.Param = "input"
		e = &named
	}
	if e.Code == api.CodeContextLength && p.truncate {
		named := *e
		named.Param = "truncation"
		named.Message += "; dropping items ('truncation': 'auto') is not supported"
		e = &named
	}
	return e
}

// state returns the status now.
func (r *response) state() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}
