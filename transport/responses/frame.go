package responses

import (
	"context"
	"encoding/json/jsontext"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"krater/actors/engine"
	"krater/transport/api"
)

// The types of frames that a client sends.
const (
	frameCreate = "response.create"
	frameCancel = "response.cancel"
	frameResume = "response.resume"
)

// maxStreamID bounds a stream_id, which has letters, digits, underscores, hyphens and periods, as
// in the official clients.
const maxStreamID = 256

// frameHead has the fields of every client frame. It is read first, leniently, so that an error
// about the rest carries the stream_id.
type frameHead struct {
	Type     *string        `json:"type"`
	StreamID *string        `json:"stream_id"`
	Rest     jsontext.Value `json:",embed"`
}

type createFrame struct {
	Type     string  `json:"type"`
	StreamID *string `json:"stream_id"`
	body     `json:",embed"`
}

// cancelFrame names a response, or the one in flight on a stream; without either the one in flight
// without a stream_id.
type cancelFrame struct {
	Type       string  `json:"type"`
	StreamID   *string `json:"stream_id"`
	ResponseID *string `json:"response_id"`
}

type resumeFrame struct {
	Type       string  `json:"type"`
	StreamID   *string `json:"stream_id"`
	ResponseID *string `json:"response_id"`
	After      *int    `json:"after"` // the last sequence number received
}

// errorFrame is the server's event about a frame that it refused.
type errorFrame struct {
	Type     string    `json:"type"` // always "error"
	Status   int       `json:"status"`
	Error    errorBody `json:"error"`
	StreamID string    `json:"stream_id,omitempty"`
	// Headers are those with which HTTP would have answered. Clients look for them here or in Error.
	Headers map[string]string `json:"headers,omitempty"`
}

type errorBody struct {
	api.Body
	Headers map[string]string `json:"headers,omitempty"`
}

// newErrorFrame encodes an error. limits sets headers about limits; nil: there are none.
func newErrorFrame(e *api.Error, streamID string, limits func(http.Header)) []byte {
	f := errorFrame{Type: "error", Status: e.Status, Error: errorBody{Body: e.Body()}, StreamID: streamID}
	h := http.Header{}
	if e.RetryAfter > 0 {
		seconds := (e.RetryAfter + time.Second - 1) / time.Second
		h.Set("Retry-After", strconv.Itoa(int(seconds)))
	}
	if limits != nil && e.Status == http.StatusTooManyRequests {
		limits(h)
	}
	if len(h) > 0 {
		f.Headers = map[string]string{}
		for name, values := range h {
			f.Headers[strings.ToLower(name)] = values[0]
		}
		f.Error.Headers = f.Headers
	}
	return api.Marshal(f)
}

// handle processes one text frame. A fault in it becomes an error event, and the socket stays open.
// done is called when the work on it is finished.
func (s *socket) handle(data []byte, done func()) {
	taken := false // by a response, which calls done
	defer func() {
		if !taken {
			done()
		}
	}()
	var head frameHead
	if err := api.Decode(data, &head); err != nil {
		s.fault(err, "")
		return
	}
	streamID := ""
	if head.StreamID != nil {
		streamID = *head.StreamID
		if !validStreamID(streamID) {
			s.fault(api.Invalid("stream_id", "'stream_id' must be 1 to %d letters, digits, underscores, hyphens or periods", maxStreamID), "")
			return
		}
	}
	if head.Type == nil {
		s.fault(api.BadRequest(api.CodeMissing, "type", "'type' is missing"), streamID)
		return
	}
	var err *api.Error
	switch *head.Type {
	case frameCreate:
		var f createFrame
		if err = api.Decode(data, &f); err == nil {
			err = s.create(&f.body, streamID, done)
		}
		taken = err == nil
		if err != nil && err.Code != codeInFlight && err.Code != codeTooMany {
			s.forget(previousOf(head.Rest))
		}
	case frameCancel:
		var f cancelFrame
		if err = api.Decode(data, &f); err == nil {
			err = s.cancel(f.ResponseID, streamID)
		}
	case frameResume:
		var f resumeFrame
		if err = api.Decode(data, &f); err == nil {
			err = s.resume(&f, streamID)
		}
	default:
		err = api.BadRequest(codeUnknownEvent, "type", "unknown event type '%s'; known are %s, %s and %s",
			api.Clip(*head.Type), frameCreate, frameCancel, frameResume)
	}
	if err != nil {
		s.fault(err, streamID)
	}
}

func validStreamID(id string) bool {
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-', c == '.':
		default:
			return false
		}
	}
	return len(id) >= 1 && len(id) <= maxStreamID
}

// previousOf finds what a refused frame wanted to continue.
func previousOf(rest jsontext.Value) string {
	var f struct {
		PreviousID string         `json:"previous_response_id"`
		Rest       jsontext.Value `json:",embed"`
	}
	_ = api.Decode(rest, &f)
	return f.PreviousID
}

// create starts a response on a stream. done is called when the engine has it, unless create returns
// an error.
func (s *socket) create(b *body, streamID string, done func()) *api.Error {
	if err := s.admits(streamID); err != nil {
		return err
	}
	r, err := s.door.create(context.Background(), b, s.owner, s.peer, s.local)
	if err != nil {
		return err
	}
	r.plan.req.Caller = s.caller(r.plan)
	previous := ""
	if b.PreviousID != nil {
		previous = *b.PreviousID
	}
	l := s.reserve(r, streamID, previous)
	release, err := s.door.place(r.plan, s.peer)
	if err == nil {
		err = s.door.start(r, release, func(err *api.Error) {
			done()
			s.started(l, err)
		})
	}
	if err != nil {
		r.worked()
		s.withdraw(l)
	}
	return err
}

// caller returns the client's span that a request is a part of: its own, else the connection's.
func (s *socket) caller(p *plan) engine.Caller {
	if p.header != nil {
		return s.door.opt.Caller(p.header)
	}
	return s.from
}

// cancel stops a response of this owner, wherever it was created.
func (s *socket) cancel(responseID *string, streamID string) *api.Error {
	var r *response
	if responseID == nil {
		if r = s.inFlight(streamID); r == nil {
			return conflict(codeNotActive, "no response is in flight here")
		}
	} else {
		var err *api.Error
		if r, err = s.door.store.find(s.owner, *responseID, true); err != nil {
			return err
		}
		if r.isDone() {
			return conflict(codeNotActive, "the response '%s' has ended already", r.id)
		}
	}
	r.stop(errCancelled)
	return nil
}

// resume replays a response's events on a stream of this connection and continues with it.
func (s *socket) resume(f *resumeFrame, streamID string) *api.Error {
	if f.ResponseID == nil {
		return api.BadRequest(api.CodeMissing, "response_id", "'response_id' is missing")
	}
	after := -1
	if f.After != nil {
		after = *f.After
	}
	if err := s.admits(streamID); err != nil {
		return err
	}
	r, err := s.door.store.find(s.owner, *f.ResponseID, true)
	if err != nil {
		return err
	}
	if last := r.last(); after < -1 || after > last {
		return api.Invalid("after", "'after' is %d, the last event has the number %d", after, last)
	}
	r.hold()
	l := s.reserve(r, streamID, "")
	s.attach(l, after)
	return nil
}

// limitReached refuses responses on a connection at the end of its life.
func limitReached(life time.Duration) *api.Error {
	return &api.Error{
		Status: http.StatusBadRequest, Type: api.TypeInvalidRequest, Code: codeConnLimit,
		Message: fmt.Sprintf("this connection has reached its limit of %v; open a new one to continue", life),
	}
}
