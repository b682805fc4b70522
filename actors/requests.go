package actors

import (
	"context"
	"slices"
	"sync"
	"time"

	"krater/actors/engine"
	"krater/actors/msg"
	"krater/scheduler"
)

// requests are the open requests, and the newest of those that have ended, of a pipeline and of
// those that take over from it one after the other.
type requests struct {
	mu      sync.Mutex
	outputs map[uint64]*output // open requests
	ended   []engine.Running   // the newest of the others, oldest first
	origins origins            // of the others
	lastID  uint64

	meters  *meters
	serving *Pipeline     // that has the requests; while suspended, had them last
	changed chan struct{} // closed when serving changes, or suspended ends

	suspended bool     // no pipeline has them
	since     int64    // when that began
	cancelled []uint64 // meanwhile
	waiting   int      // calls of Submit that wait for the next pipeline
}

func newRequests(m *meters) *requests {
	return &requests{outputs: map[uint64]*output{}, meters: m, changed: make(chan struct{})}
}

// suspend notes that no pipeline has the requests from now on; p had them.
func (r *requests) suspend(p *Pipeline, now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.serving == p && !p.over && !r.suspended {
		r.suspended, r.since = true, now
	}
}

// serve gives the requests to a pipeline, and returns those that were cancelled while none had them.
func (r *requests) serve(p *Pipeline) (cancelled []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	cancelled, r.cancelled = r.cancelled, nil
	r.wake(p)
	return cancelled
}

// wake lets those that wait for a pipeline go on with p; r.mu is held.
func (r *requests) wake(p *Pipeline) {
	r.serving, r.suspended = p, false
	close(r.changed)
	r.changed = make(chan struct{})
}

// now returns the trace's clock.
func (r *requests) now() int64 { return r.last().host.now() }

// last returns the pipeline that has the requests or had them last, which is not known to work.
func (r *requests) last() *Pipeline {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.serving
}

// await returns the pipeline that takes requests, or why there is none. While a pipeline takes over from
// another, await waits if the queue has room for all open requests.
func (r *requests) await(ctx context.Context) (*Pipeline, error) {
	for {
		r.mu.Lock()
		p, changed := r.serving, r.changed
		if !r.suspended {
			defer r.mu.Unlock()
			return p, p.refusal()
		}
		if r.waiting+len(r.outputs) >= p.opt.Policy.MaxQueue { // the next one has to queue them all
			r.mu.Unlock()
			return nil, submitError(scheduler.ErrQueueFull)
		}
		r.waiting++
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		r.mu.Lock()
		r.waiting--
		r.mu.Unlock()
		if ctx.Err() != nil {
			return nil, gone()
		}
	}
}

// refusal is why the pipeline takes no requests, or nil; p.mu is held.
func (p *Pipeline) refusal() error {
	switch {
	case p.failure != nil:
		return failureError(p.failure)
	case p.closed:
		return &engine.Error{Kind: engine.Unavailable, Message: "the server is shutting down"}
	}
	return nil
}

// takeOverWait is how long one pipeline may take over from another before the server is not ready.
const takeOverWait = 2 * time.Second

// ready is why requests that come now may have to wait long or are refused, or nil.
func (r *requests) ready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.suspended:
		return r.serving.refusal()
	case r.serving.host.now()-r.since > int64(takeOverWait):
		return &engine.Error{Kind: engine.Unavailable, Message: "a part of the model was lost and is loaded again; try again later", RetryAfter: takeOverWait}
	}
	return nil
}

// open registers the output of a request and returns the request's number.
func (r *requests) open(o *output) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastID++
	r.outputs[r.lastID] = o
	return r.lastID
}

// Idle reports whether no request is open.
func (r *requests) Idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.outputs) == 0
}

// forget drops a request from the open ones.
func (r *requests) forget(id uint64) {
	r.mu.Lock()
	delete(r.outputs, id)
	r.mu.Unlock()
}

// cancel tells the scheduler that the client no longer waits for the request. If no pipeline has
// the requests, the next one learns it.
func (r *requests) cancel(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.suspended {
		p := r.serving
		r.mu.Unlock()
		p.host.send(p.routes.schedule, &msg.Cancel{ID: id, Why: scheduler.Cancelled})
		r.mu.Lock()
		if r.serving == p && !r.suspended {
			return
		}
	}
	r.cancelled = append(r.cancelled, id)
}

// remember keeps the summary of a request that has ended.
func (r *requests) remember(ended engine.Running, o engine.Origin) {
	ended.Phase = engine.Ended
	r.mu.Lock()
	defer r.mu.Unlock()
	r.origins.keep(ended.ID, o)
	if len(r.ended) == endedKept {
		r.ended = slices.Delete(r.ended, 0, 1)
	}
	r.ended = append(r.ended, ended)
}

// abort ends the open requests, unless p does not have them.
func (p *Pipeline) abort(cause error) {
	p.mu.Lock()
	var open map[uint64]*output
	if p.serving == p && !p.suspended {
		open, p.outputs = p.outputs, map[uint64]*output{}
	}
	p.mu.Unlock()
	for _, o := range open {
		o.Abort(cause)
	}
}
