package responses

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"time"

	"krater/transport/api"
)

// receive reads a request and plans its response. It takes a place before it reads: bodies that come
// in are bounded like those in work. Without an error the caller calls done when the engine has the
// request, and release to return the place.
func (d *Door) receive(w http.ResponseWriter, req *http.Request) (r *response, done, release func(), err *api.Error) {
	owner, peer := d.opt.Owner(req), d.opt.Peer(req)
	if release, err = d.opt.Acquire(peer); err != nil {
		return nil, nil, nil, err
	}
	data, done, err := d.opt.ReadBody(w, req)
	if err != nil {
		release()
		return nil, nil, nil, err
	}
	var b body
	if err = api.Decode(data, &b); err == nil {
		if api.InBackground(req.Context()) && b.Store == nil {
			b.Store = new(bool) // there are many, and each is delivered once: storing them would displace responses that clients come back for
		}
		r, err = d.create(req.Context(), &b, owner, peer, nil)
	}
	if err != nil {
		done()
		release()
	}
	return r, done, release, err
}

// count is POST /v1/responses/input_tokens: the length of the prompt that a request would have.
func (d *Door) count(w http.ResponseWriter, req *http.Request) {
	r, done, release, err := d.receive(w, req)
	if err != nil {
		err.Write(w)
		return
	}
	defer release()
	defer done()
	defer r.worked()
	defer r.stop(nil)
	ids, failed := d.engine.Tokenize(req.Context(), r.plan.req.Prompt, api.TokensMost(d.engine.Info()))
	if failed != nil {
		r.plan.refusal(failed).Write(w)
		return
	}
	api.WriteJSON(w, http.StatusOK, InputTokens{"response.input_tokens", len(ids)})
}

// post is POST /v1/responses.
func (d *Door) post(w http.ResponseWriter, req *http.Request) {
	r, done, release, err := d.receive(w, req)
	if err != nil {
		err.Write(w)
		return
	}
	defer r.release()
	r.plan.req.Caller = d.opt.Caller(req.Header)
	api.Yield(req.Context(), r.plan.req)
	answered := make(chan *api.Error, 1)
	started := func(err *api.Error) { // perhaps after the client has left
		done()
		answered <- err
	}
	if err := d.start(r, release, started); err != nil {
		done()
		err.Write(w)
		return
	}
	select {
	case err = <-answered:
	case <-req.Context().Done():
		if clientGone(req, r) {
			return
		}
		err = <-answered // the engine ends it now
	}
	if err != nil {
		err.Write(w)
		return
	}
	if !r.plan.store && r.plan.grace == 0 { // no one can ask for it again
		defer d.store.remove(r)
	}
	switch {
	case r.plan.stream:
		d.stream(w, req, r, -1)
	case r.plan.background:
		api.WriteJSON(w, http.StatusOK, r.snapshot())
	default:
		d.whole(w, req, r)
	}
}

// clientGone reports, after the request's context has ended, whether the client left. Otherwise a
// shutdown ran out of time: the response is stopped, and its last events may still be sent.
func clientGone(req *http.Request, r *response) bool {
	if errors.Is(context.Cause(req.Context()), context.Canceled) {
		return true
	}
	r.stop(errShutdown)
	return false
}

// whole waits for the end and answers with the response, or with the error it failed with.
func (d *Door) whole(w http.ResponseWriter, req *http.Request, r *response) {
	select {
	case <-r.done:
	case <-req.Context().Done():
		if clientGone(req, r) {
			return
		}
		<-r.done
	}
	if err := r.failure(); err != nil {
		err.Write(w)
		return
	}
	api.WriteJSON(w, http.StatusOK, r.snapshot())
}

// stream sends the events after that sequence number as server-sent events until the response or
// the client's connection ends.
func (d *Door) stream(w http.ResponseWriter, req *http.Request, r *response, after int) {
	out := api.NewEventWriter(w, d.opt.WriteWait)
	if out.Open() != nil {
		return
	}
	wake := make(chan struct{}, 1)
	f := r.follow(after, wake)
	defer f.leave()
	quiet := time.NewTicker(d.opt.Heartbeat)
	defer quiet.Stop()
	left := req.Context().Done()
	for {
		if ev, ok := f.take(); ok {
			if out.Raw(ev.name(), ev.encode("")) != nil || ev.kind.final() {
				return
			}
			quiet.Reset(d.opt.Heartbeat)
			continue
		}
		select {
		case <-wake:
		case <-quiet.C:
			if out.Heartbeat() != nil {
				return
			}
		case <-left:
			if clientGone(req, r) {
				return
			}
			left = nil
		}
	}
}

// get is GET /v1/responses/{id}. With stream=true it replays the events after starting_after, and
// continues while the response runs.
func (d *Door) get(w http.ResponseWriter, req *http.Request) {
	release := d.reads.Take(d.opt.Peer(req))
	if release == nil {
		api.Overloaded("too many responses are being fetched").Write(w)
		return
	}
	defer release()
	after, stream, err := readQuery(req)
	if err == nil && req.ContentLength != 0 {
		stream, err = readGetBody(w, req, stream)
	}
	if err != nil {
		err.Write(w)
		return
	}
	r, err := d.store.find(d.opt.Owner(req), req.PathValue("id"), false)
	if err != nil {
		err.Write(w)
		return
	}
	if !stream {
		api.WriteJSON(w, http.StatusOK, r.snapshot())
		return
	}
	if last := r.last(); after > last {
		api.Invalid("starting_after", "'starting_after' is %d, the last event has the number %d", after, last).Write(w)
		return
	}
	r.hold()
	defer r.release()
	d.stream(w, req, r, after)
}

func readQuery(req *http.Request) (after int, stream bool, refused *api.Error) {
	after = -1
	for name, values := range req.URL.Query() {
		var err error
		switch value := values[0]; name {
		case "stream":
			stream, err = strconv.ParseBool(value)
		case "starting_after":
			after, err = strconv.Atoi(value)
			if err == nil && after < 0 {
				err = strconv.ErrRange
			}
		case "include", "include[]", "include_obfuscation":
			// Everything there is to include is included.
		default:
			return 0, false, api.BadRequest(api.CodeUnknownField, api.Clip(name), "unknown query parameter '%s'", api.Clip(name))
		}
		if err != nil {
			return 0, false, api.Invalid(name, "the query parameter '%s' is not valid", name)
		}
	}
	return after, stream, nil
}

// bodyWait bounds the wait for the body of a GET: a few bytes, which clients send with the header.
const bodyWait = time.Second

// readGetBody reads stream from a body: the official Go client sends it there, without a
// Content-Type.
func readGetBody(w http.ResponseWriter, req *http.Request, stream bool) (bool, *api.Error) {
	const limit = 1024
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyWait)) // not every writer of a test has one
	data, err := io.ReadAll(http.MaxBytesReader(w, req.Body, limit))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, &api.Error{
			Status: http.StatusRequestTimeout, Type: api.TypeInvalidRequest, Code: api.CodeTimeout,
			Message: "the request's body did not arrive in time",
		}
	}
	_ = control.SetReadDeadline(time.Time{}) // which the server would take for a lost client
	if err != nil {
		return false, api.BadRequest(api.CodeInvalidJSON, "", "a GET has no body but {\"stream\": true}")
	}
	var b struct {
		Stream *bool `json:"stream"`
	}
	if err := api.Decode(data, &b); err != nil {
		return false, err
	}
	return stream || isTrue(b.Stream), nil
}

// delete is DELETE /v1/responses/{id}; a running response is cancelled.
func (d *Door) delete(w http.ResponseWriter, req *http.Request) {
	r, err := d.store.find(d.opt.Owner(req), req.PathValue("id"), false)
	if err != nil {
		err.Write(w)
		return
	}
	r.stop(errCancelled)
	d.store.remove(r)
	api.WriteJSON(w, http.StatusOK, deleted{r.id, "response", true})
}

// cancel is POST /v1/responses/{id}/cancel. It answers with the response after its end; a response
// that has ended is returned unchanged.
func (d *Door) cancel(w http.ResponseWriter, req *http.Request) {
	r, err := d.store.find(d.opt.Owner(req), req.PathValue("id"), false)
	if err != nil {
		err.Write(w)
		return
	}
	r.stop(errCancelled)
	select {
	case <-r.done:
		api.WriteJSON(w, http.StatusOK, r.snapshot())
	case <-req.Context().Done():
	}
}

// readBody reads a JSON body of at most limit bytes.
func readBody(w http.ResponseWriter, req *http.Request, limit int64) ([]byte, *api.Error) {
	if kind, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, &api.Error{
			Status: http.StatusUnsupportedMediaType, Type: api.TypeInvalidRequest, Code: api.CodeUnsupportedType,
			Message: "the Content-Type must be application/json",
		}
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, req.Body, limit))
	if _, tooBig := errors.AsType[*http.MaxBytesError](err); tooBig {
		return nil, &api.Error{
			Status: http.StatusRequestEntityTooLarge, Type: api.TypeInvalidRequest, Code: api.CodeTooLarge,
			Message: fmt.Sprintf("the request is longer than %d bytes", limit),
		}
	}
	if err != nil {
		return nil, api.BadRequest("incomplete_body", "", "the request's body did not arrive whole")
	}
	return data, nil
}
