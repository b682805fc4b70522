package responses

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"krater/transport/api"
)

// post is POST /v1/responses.
func (d *Door) post(w http.ResponseWriter, req *http.Request) {
	var b body
	if err := d.readBody(w, req, &b); err != nil {
		err.Write(w)
		return
	}
	owner := d.opt.Owner(req)
	r, err := d.create(&b, owner, nil)
	if err != nil {
		err.Write(w)
		return
	}
	defer r.release()
	answered := make(chan *api.Error, 1)
	if err := d.start(r, func(err *api.Error) { answered <- err }); err != nil {
		err.Write(w)
		return
	}
	select {
	case err := <-answered:
		if err != nil {
			err.Write(w)
			return
		}
	case <-req.Context().Done():
		return
	}
	if !r.plan.store && r.plan.grace == 0 { // nobody can ask for it again
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

// whole waits for the end and answers with the response, or with the error it
// failed with.
func (d *Door) whole(w http.ResponseWriter, req *http.Request, r *response) {
	select {
	case <-r.done:
	case <-req.Context().Done():
		return
	}
	if err := r.failure(); err != nil {
		err.Write(w)
		return
	}
	api.WriteJSON(w, http.StatusOK, r.snapshot())
}

// stream sends the events after that sequence number as server-sent events
// until the response or the client's connection ends.
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
	for {
		ev, ok := f.take()
		switch {
		case ok:
			if out.Raw(ev.kind.String(), ev.encode("")) != nil || ev.kind.final() {
				return
			}
			if f.backlog() > d.opt.MaxBacklog {
				return
			}
			quiet.Reset(d.opt.Heartbeat)
			continue
		case req.Context().Err() != nil:
			return
		}
		select {
		case <-wake:
		case <-quiet.C:
			if out.Heartbeat() != nil {
				return
			}
		case <-req.Context().Done():
			return
		}
	}
}

// get is GET /v1/responses/{id}; with stream=true it replays the events after
// starting_after and goes on while the response runs.
func (d *Door) get(w http.ResponseWriter, req *http.Request) {
	after, stream, err := readQuery(req)
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
			return 0, false, api.BadRequest(api.CodeUnknownField, name, "unknown query parameter '%s'", bounded(name))
		}
		if err != nil {
			return 0, false, api.Invalid(name, "the query parameter '%s' is not valid", name)
		}
	}
	return after, stream, nil
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
	api.WriteJSON(w, http.StatusOK, struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Deleted bool   `json:"deleted"`
	}{r.id, "response", true})
}

// cancel is POST /v1/responses/{id}/cancel. It answers with the response after
// its end; one that has ended already is given as it is.
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

// readBody reads a JSON request within the body limit.
func (d *Door) readBody(w http.ResponseWriter, req *http.Request, b *body) *api.Error {
	if header := req.Header.Get("Content-Type"); header != "" {
		if kind, _, err := mime.ParseMediaType(header); err != nil || kind != "application/json" {
			return &api.Error{
				Status: http.StatusUnsupportedMediaType, Type: api.TypeInvalidRequest, Code: api.CodeUnsupportedType,
				Message: "the Content-Type must be application/json",
			}
		}
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, req.Body, d.opt.MaxBody))
	if tooBig, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &api.Error{
			Status: http.StatusRequestEntityTooLarge, Type: api.TypeInvalidRequest, Code: api.CodeTooLarge,
			Message: "the request body is longer than " + strconv.FormatInt(tooBig.Limit, 10) + " bytes",
		}
	}
	if err != nil {
		return api.BadRequest(api.CodeInvalidJSON, "", "the request body ended early")
	}
	return api.Decode(data, b)
}
