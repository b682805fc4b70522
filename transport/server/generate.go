package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"krater/actors/engine"
	"krater/transport/api"
)

// run is one HTTP request's generations, one stream a choice.
type run struct {
	id      string // chatcmpl-..., cmpl-...
	created int64
	plan    *api.Plan
	streams []engine.Stream
	// perPrompt streams in a row share a prompt, which is counted once.
	perPrompt int
	usage     engine.Usage
	latest    []engine.Usage // by stream, as its last event had it
	scores    []score        // by stream, where only the best are given
	hide      bool           // their log-probabilities
	// prompts are the tokens of each prompt with their log-probabilities, where asked for.
	prompts [][]engine.Token

	items  chan item
	cancel context.CancelFunc
	// release returns the places of all answers but the first.
	release func()
	pumps   sync.WaitGroup
}

// item is one event of one choice; err ends the choice instead.
type item struct {
	choice int
	event  engine.Event
	err    error
}

// planner is the body of a generating request of any API.
type planner interface {
	Plan(engine.Info) (*api.Plan, *api.Error)
}

// generate answers a decoded request, in the format that shape makes. It calls done, which says that
// the engine has the request.
func (s *Server) generate(w http.ResponseWriter, r *http.Request, req planner, info engine.Info, done func(), prefix string, shape func(*run) (format, error)) {
	defer done()
	plan, refusal := req.Plan(info)
	if refusal != nil {
		refusal.Write(w)
		return
	}
	run, err := s.begin(r, prefix, plan)
	if err != nil {
		s.fail(w, err)
		return
	}
	defer run.close()
	f, err := shape(run)
	if err != nil {
		s.fail(w, err)
		return
	}
	done()
	plan.Requests = nil // they hold the conversation
	s.answer(w, r, run, f)
}

// begin submits every request of the plan; all are refused if one is. The run must be closed.
func (s *Server) begin(from *http.Request, prefix string, plan *api.Plan) (*run, error) {
	now := time.Now()
	r := &run{id: api.NewID(prefix), created: now.Unix(), plan: plan, perPrompt: plan.Candidates, items: make(chan item)}
	r.rate()
	r.prompts = make([][]engine.Token, len(plan.Requests)/max(1, plan.Candidates))
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(from.Context())
	if err := s.more(r, s.Peer(from)); err != nil {
		r.cancel()
		return nil, err
	}
	owner, caller, group := s.Owner(from), s.opt.Caller(from.Header), uint64(0)
	var ids []int32
	var err error
	for i, req := range plan.Requests {
		if i%r.perPrompt == 0 && r.perPrompt > 1 {
			group = 1 + rand.Uint64N(math.MaxUint64)
		}
		if i%r.perPrompt == 1 { // the prompt is known to fit; it is tokenized again for all further requests
			if ids, err = s.engine.Tokenize(ctx, req.Prompt, s.engine.Info().Context); err != nil {
				r.close()
				return nil, promptParam(req, err)
			}
		}
		if i%r.perPrompt > 0 {
			req.Prompt = engine.Prompt{IDs: ids}
		}
		req.ID, req.Owner, req.Caller, req.Group = r.id, owner, caller, group
		req.Deadline = now.Add(s.opt.RequestTimeout)
		api.Yield(ctx, req)
		stream, err := s.engine.Submit(ctx, req)
		if err != nil {
			r.close()
			return nil, promptParam(req, err)
		}
		r.streams = append(r.streams, stream)
	}
	r.latest = make([]engine.Usage, len(r.streams))
	for i, stream := range r.streams {
		r.latest[i].Prompt = stream.PromptTokens()
		r.pumps.Add(1)
		go r.pump(ctx, i, stream)
	}
	return r, nil
}

// promptParam names the field of a text prompt that is too long.
func promptParam(req *engine.Request, err error) error {
	long, ok := errors.AsType[*engine.Error](err)
	if !ok || long.Kind != engine.ContextLength || req.Prompt.Chat != nil {
		return err
	}
	named := *long
	named.Param = "prompt"
	return &named
}

// pump hands one stream's events to the reader of items. The channel has no room, so what the
// client has not taken yet stays in the engine, which joins it.
func (r *run) pump(ctx context.Context, choice int, stream engine.Stream) {
	defer r.pumps.Done()
	for {
		event, err := stream.Next(ctx)
		if errors.Is(err, io.EOF) { // before Done or Failed: the stream was closed
			err = &engine.Error{Kind: engine.Cancelled, Message: "the request was cancelled"}
		}
		select {
		case r.items <- item{choice, event, err}:
		case <-ctx.Done():
			return
		}
		if err != nil || event.Kind == engine.Done || event.Kind == engine.Failed {
			return
		}
	}
}

// more takes a place for each answer but the first, or as many as the peer may have.
func (s *Server) more(r *run, peer string) error {
	n := min(int64(len(r.plan.Requests)), s.places.Share(peer)) - 1
	if ok, _ := s.places.Try(peer, n); !ok {
		return s.overloaded(fmt.Sprintf("too many requests are running, or too many of this key or address: this one counts for %d", n+1))
	}
	r.release = func() { s.places.Give(peer, n) }
	return nil
}

// close cancels what still runs and waits for the pumps.
func (r *run) close() {
	r.release()
	r.cancel()
	for _, stream := range r.streams {
		stream.Close()
	}
	r.pumps.Wait()
}

// failure returns the error that ends the whole answer, if the item is one. One failed choice fails
// all of them.
func (r *run) failure(it item) error {
	switch {
	case it.err != nil:
		return it.err
	case it.event.Kind == engine.Failed && it.event.Err != nil:
		return it.event.Err
	case it.event.Kind == engine.Failed:
		return errors.New("a stream failed without an error")
	case it.event.Kind == engine.Done && it.event.Finish == engine.FinishCancelled:
		return &engine.Error{Kind: engine.Cancelled, Message: "the request was cancelled"}
	}
	return nil
}

// count adds a finished choice to the usage.
func (r *run) count(it item) { r.sum(&r.usage, it.choice, it.event.Usage) }

// sum adds what a choice used: answers are summed, a prompt counts once however many choices share
// it.
func (r *run) sum(total *engine.Usage, choice int, u engine.Usage) {
	total.Completion += u.Completion
	total.Reasoning += u.Reasoning
	if choice%r.perPrompt == 0 {
		total.Prompt += u.Prompt
		total.Cached += u.Cached
	}
}

// soFar returns the usage for a chunk of a stream: unset, null, or if the client asked for it what
// all choices used until now.
func (r *run) soFar() api.Nullable[api.Usage] {
	out := api.Nullable[api.Usage]{Set: r.plan.Usage}
	if r.plan.Continuous {
		var total engine.Usage
		for i, u := range r.latest {
			r.sum(&total, i, u)
		}
		usage := api.NewUsage(total)
		out.Value = &usage
	}
	return out
}

// queueHeader says how many requests were to start before this one.
const queueHeader = "X-Queue-Position"

// see handles the parts of an event that do not depend on the format. It sends the header with the
// first token, or at the end.
func (r *run) see(it *item, h http.Header) {
	if u := it.event.Usage; u.Prompt > 0 && r.plan.Continuous {
		r.latest[it.choice] = u
	}
	if it.event.Kind == engine.Queued {
		if it.choice == 0 {
			h.Set(queueHeader, strconv.Itoa(it.event.Position))
		}
		return
	}
	if it.event.Kind == engine.Scored {
		own := &r.prompts[it.choice/r.perPrompt]
		*own = append(*own, it.event.Tokens...)
		return
	}
	r.weigh(it)
}

// prompt returns the scored tokens of a stream's prompt, if the client asked for them next to the
// answer. echoed returns those that precede the answer.
func (r *run) prompt(stream int) api.PromptLogprobs {
	if !r.plan.PromptLogprobs {
		return nil
	}
	return api.NewPromptLogprobs(r.prompts[stream/r.perPrompt])
}

func (r *run) echoed(stream int) []engine.Token {
	if !r.plan.EchoLogprobs {
		return nil
	}
	return r.prompts[stream/r.perPrompt]
}

// cancelled returns why ctx ended: nil if the client left, or the 503 of a drain.
func cancelled(ctx context.Context) *api.Error {
	if errors.Is(context.Cause(ctx), errShutdown) {
		return api.FromEngine(&engine.Error{Kind: engine.Unavailable, Message: errShutdown.Error()})
	}
	return nil
}

// format shapes one route's answers.
type format interface {
	// chunks returns the stream events for an event of a choice.
	chunks(it item) []any
	// usage returns the last chunk of a stream that asked for usage.
	usage(u engine.Usage) any
	// collect adds an event to an answer that is sent as a whole.
	collect(it item)
	// whole returns that answer.
	whole(u engine.Usage) any
	// wire returns what writes the stream events.
	wire(s *Server, w http.ResponseWriter) wire
}

// wire writes the events of a stream in a route's form.
type wire interface {
	// Opened reports whether the header is out.
	Opened() bool
	// Data sends an event.
	Data(v any) error
	// Heartbeat shows that the server is alive.
	Heartbeat() error
	// Fail ends the stream with an error, Done without one.
	Fail(*api.Error) error
	Done() error
}

// eventWire is the wire of the OpenAI API.
type eventWire struct{}

func (eventWire) wire(s *Server, w http.ResponseWriter) wire {
	return api.NewEventWriter(w, s.opt.WriteTimeout)
}

// answer runs the request to its end, streaming or not.
func (s *Server) answer(w http.ResponseWriter, req *http.Request, r *run, f format) {
	if r.plan.Stream {
		s.stream(w, req, r, f)
		return
	}
	for open := len(r.streams); open > 0; {
		select {
		case it := <-r.items:
			if err := r.failure(it); err != nil {
				s.fail(w, err)
				return
			}
			r.see(&it, w.Header())
			f.collect(it)
			if it.event.Kind == engine.Done {
				r.count(it)
				open--
			}
		case <-req.Context().Done():
			s.abandon(w, req)
			return
		}
	}
	api.WriteJSON(w, http.StatusOK, f.whole(r.usage))
}

// abandon ends a request whose context is over.
func (s *Server) abandon(w http.ResponseWriter, req *http.Request) {
	if e := cancelled(req.Context()); e != nil {
		e.Write(w)
		return
	}
	w.WriteHeader(api.StatusClientClosed) // for the log only
}

// stream sends chunks as they come. The header waits for the first token, or for the first
// heartbeat, so that an early failure still has its status.
func (s *Server) stream(w http.ResponseWriter, req *http.Request, r *run, f format) {
	out := f.wire(s, w)
	silence := time.NewTimer(s.opt.Heartbeat)
	defer silence.Stop()
	for open := len(r.streams); open > 0; {
		var err error
		select {
		case it := <-r.items:
			if cause := r.failure(it); cause != nil {
				s.failStream(w, out, cause)
				return
			}
			r.see(&it, w.Header())
			for _, chunk := range f.chunks(it) {
				err = errors.Join(err, out.Data(chunk))
			}
			if it.event.Kind == engine.Done {
				r.count(it)
				open--
			}
		case <-silence.C:
			err = out.Heartbeat()
		case <-req.Context().Done():
			if e := cancelled(req.Context()); e != nil {
				s.failStream(w, out, e)
			} else if !out.Opened() {
				s.abandon(w, req)
			}
			return
		}
		if err != nil {
			s.opt.Log.Debug().Err(err).Str("request", w.Header().Get(requestIDHeader)).Msg("client stopped reading")
			return
		}
		silence.Reset(s.opt.Heartbeat)
	}
	if r.plan.Usage && out.Data(f.usage(r.usage)) != nil {
		return
	}
	_ = out.Done()
}

// failStream ends a stream with an error event and no [DONE], or, before the header, with the
// error's own status.
func (s *Server) failStream(w http.ResponseWriter, out wire, cause error) {
	if !out.Opened() {
		s.fail(w, cause)
		return
	}
	e := api.FromEngine(cause)
	if e.Status == http.StatusInternalServerError {
		s.opt.Log.Error().Err(cause).Str("request", w.Header().Get(requestIDHeader)).Msg("engine error")
	}
	_ = out.Fail(e)
}
