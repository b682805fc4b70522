package batches

import (
	"bytes"
	"context"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"krater/scheduler/batchqueue"
	"krater/transport/api"
)

// attemptsMax is how often a line is tried whose answer is a 500 or a 408: the line itself may be
// the cause.
const attemptsMax = 3

// lineTime is how long a line that is in flight when its batch's window ends may continue.
const lineTime = time.Hour

// task is a line in flight.
type task struct {
	expires                time.Time // of the batch, on the store's clock
	batch, owner, endpoint string
	index                  int
	customID               string
	body                   []byte
	fault                  *batchqueue.Fault // not nil: the line is not run
}

// run answers a line and passes the answer to the committer. It returns the line, still open, if
// the runner stops or the batch ends before there is an answer.
func (r *runner) run(t *task) {
	if t.fault != nil {
		end, err := batchqueue.Refused(t.batch, t.index, t.customID, t.fault)
		r.deliver(end, err, t)
		return
	}
	wait := r.opt.RetryMin
	for attempt := 1; ; attempt++ {
		a := r.ask(t)
		if a.settles(attempt) {
			end, err := batchqueue.Answered(t.batch, t.index, t.customID, batchqueue.Response{
				StatusCode: a.status, RequestID: a.id, Body: a.body.Bytes(),
			})
			r.deliver(end, err, t)
			return
		}
		if !r.pause(min(max(wait, a.retryAfter()), r.opt.RetryMax)) || !r.running(t.batch) {
			r.landed(t.batch)
			return
		}
		wait *= 2
	}
}

func (r *runner) deliver(end batchqueue.Settled, err error, t *task) {
	if err != nil { // an answer that is no JSON: a handler's fault, not the line's
		r.opt.Log.Error().Err(err).Str("batch", t.batch).Int("line", t.index).Msg("an answer cannot be kept")
		end, err = batchqueue.Answered(t.batch, t.index, t.customID, batchqueue.Response{
			StatusCode: http.StatusInternalServerError, Body: api.Marshal(api.Internal()),
		})
	}
	if err != nil {
		r.landed(t.batch)
		return
	}
	r.ends <- end
}

// ask sends a line through the server's own handlers as background work: it may wait as long as its
// batch has time.
func (r *runner) ask(t *task) (a *answer) {
	a = &answer{header: http.Header{}, id: api.NewID("req_")}
	left := max(0, t.expires.Sub(r.store.Now()))
	ctx, cancel := context.WithCancel(api.Background(context.Background(), time.Now().Add(left+lineTime)))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.endpoint, bytes.NewReader(t.body))
	if err != nil { // the endpoint is one of ours
		a.status = http.StatusInternalServerError
		return a
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", a.id)
	defer func() {
		if cause := recover(); cause != nil {
			if cause != http.ErrAbortHandler {
				r.opt.Log.Error().Interface("panic", cause).Bytes("stack", debug.Stack()).Msg("handler panicked")
			}
			a.status = http.StatusInternalServerError
			a.body.Reset()
			a.body.Write(api.Marshal(api.Internal()))
		}
	}()
	r.opt.Inside(t.owner).ServeHTTP(a, req)
	return a
}

// answer is a ResponseWriter in memory.
type answer struct {
	header http.Header
	id     string
	status int // 0: the handler wrote nothing
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
	}
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(p)
}

// settles reports whether this is the line's answer. A server that is busy, stopping or loading has
// not answered, nor has one that cut the request.
func (a *answer) settles(attempt int) bool {
	switch a.status {
	case 0, api.StatusClientClosed, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return false
	case http.StatusInternalServerError, http.StatusRequestTimeout:
		return attempt >= attemptsMax
	}
	return true
}

func (a *answer) retryAfter() time.Duration {
	seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(min(seconds, 3600)) * time.Second
}
