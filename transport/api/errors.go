package api

import (
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"krater/actors/engine"
)

// The values of Error.Type.
const (
	TypeInvalidRequest = "invalid_request_error"
	TypeAuthentication = "authentication_error"
	TypeNotFound       = "not_found_error"
	TypeRateLimit      = "rate_limit_error"
	TypeServer         = "server_error"
)

// The values of Error.Code that clients act on.
const (
	CodeContextLength   = "context_length_exceeded"
	CodeModelNotFound   = "model_not_found"
	CodeInvalidAPIKey   = "invalid_api_key"
	CodeInvalidJSON     = "invalid_json"
	CodeInvalidType     = "invalid_type"
	CodeInvalidValue    = "invalid_value"
	CodeMissing         = "missing_required_parameter"
	CodeUnknownField    = "unknown_parameter"
	CodeUnsupported     = "unsupported_parameter"
	CodeNotServed       = "not_served"
	CodeTooLarge        = "request_too_large"
	CodeOverloaded      = "overloaded"
	CodeUnavailable     = "unavailable"
	CodeTimeout         = "timeout"
	CodeCancelled       = "cancelled"
	CodeUnsupportedType = "unsupported_media_type"
)

// StatusClientClosed is logged for a request whose client went away; no client ever sees it.
const StatusClientClosed = 499

// Error is a refusal or failure in the form every route answers with:
// {"error":{"message","type","param","code"}}. Empty Param and Code are null.
type Error struct {
	Status  int // HTTP status
	Type    string
	Code    string
	Param   string // the field at fault: messages[0].content
	Message string
	// RetryAfter is sent as the Retry-After header, rounded up to seconds.
	RetryAfter time.Duration
	// Loading says how far the load of the model is, next to "error": phase, share, rate and
	// left_seconds.
	Loading *engine.Loading
}

func (e *Error) Error() string { return e.Message }

// Body is the object under "error", for doors that put it into their own frames.
type Body struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// Body returns the error's wire form.
func (e *Error) Body() Body {
	b := Body{Message: e.Message, Type: e.Type}
	if e.Param != "" {
		b.Param = &e.Param
	}
	if e.Code != "" {
		b.Code = &e.Code
	}
	return b
}

// MarshalJSON writes {"error":{...}}.
func (e *Error) MarshalJSON() ([]byte, error) {
	type body struct {
		Error Body `json:"error"`
	}
	l := e.Loading
	if l == nil {
		return json.Marshal(body{e.Body()}, marshalOptions)
	}
	loading := struct {
		body
		Phase       string   `json:"phase"`
		Share       float64  `json:"share"`
		Rate        string   `json:"rate"`
		LeftSeconds *float64 `json:"left_seconds,omitempty"`
	}{body{e.Body()}, l.Phase, l.Share, l.Rate, nil}
	if l.Left != nil {
		left := l.Left.Seconds()
		loading.LeftSeconds = &left
	}
	return json.Marshal(loading, marshalOptions)
}

// BadRequest returns a 400 that names the field at fault.
func BadRequest(code, param, format string, args ...any) *Error {
	return &Error{
		Status: http.StatusBadRequest, Type: TypeInvalidRequest, Code: code, Param: param,
		Message: fmt.Sprintf(format, args...),
	}
}

// Invalid returns a 400 for a value that is out of range or contradicts another.
func Invalid(param, format string, args ...any) *Error {
	return BadRequest(CodeInvalidValue, param, format, args...)
}

// Unsupported refuses by name a field that would change the answer and is not supported.
func Unsupported(param, format string, args ...any) *Error {
	return BadRequest(CodeUnsupported, param, format, args...)
}

// NotServed refuses a route that other servers have. It is a 400 because clients try again after a
// 5xx, and gateways take a 404 or a 5xx for a sick server.
func NotServed(format string, args ...any) *Error {
	return BadRequest(CodeNotServed, "", format, args...)
}

// Internal returns a 500 that tells the client nothing about the server's internals.
func Internal() *Error {
	return &Error{Status: http.StatusInternalServerError, Type: TypeServer, Message: "internal server error"}
}

// FromEngine turns an engine error into its answer. Messages of typed errors are meant for the
// client; any other error becomes a plain 500. A nil error returns nil.
func FromEngine(err error) *Error {
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	cause, ok := errors.AsType[*engine.Error](err)
	switch {
	case ok && cause != nil:
		return fromKind(cause)
	case errors.Is(err, context.Canceled):
		return fromKind(&engine.Error{Kind: engine.Cancelled, Message: "the request was cancelled"})
	case errors.Is(err, context.DeadlineExceeded):
		return fromKind(&engine.Error{Kind: engine.Timeout, Message: "the request ran out of time"})
	}
	return Internal()
}

func fromKind(cause *engine.Error) *Error {
	e := &Error{Param: cause.Param, Message: cause.Message, RetryAfter: cause.RetryAfter, Loading: cause.Loading}
	switch cause.Kind {
	case engine.BadRequest:
		e.Status, e.Type, e.Code = http.StatusBadRequest, TypeInvalidRequest, CodeInvalidValue
	case engine.ContextLength:
		e.Status, e.Type, e.Code = http.StatusBadRequest, TypeInvalidRequest, CodeContextLength
	case engine.Overloaded:
		e.Status, e.Type, e.Code = http.StatusTooManyRequests, TypeRateLimit, CodeOverloaded
		e.RetryAfter = max(e.RetryAfter, time.Second)
	case engine.Unavailable:
		e.Status, e.Type, e.Code = http.StatusServiceUnavailable, TypeServer, CodeUnavailable
		e.RetryAfter = max(e.RetryAfter, time.Second)
	case engine.Cancelled:
		e.Status, e.Type, e.Code = StatusClientClosed, TypeServer, CodeCancelled
	case engine.Timeout:
		e.Status, e.Type, e.Code = http.StatusRequestTimeout, TypeServer, CodeTimeout
	default:
		e.Status, e.Type = http.StatusInternalServerError, TypeServer
	}
	if e.Message == "" {
		e.Message = "internal server error"
	}
	return e
}

// Noter is a ResponseWriter that wants to know the error of an answer, for the log, and may return
// the form that its route's errors have; nil: that of Error.
type Noter interface{ Note(*Error) (form any) }

// Write sends e as the whole answer to a request. It does nothing useful once the header is out;
// streams send Event instead.
func (e *Error) Write(w http.ResponseWriter) {
	body := e.Form(w)
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((e.RetryAfter+time.Second-1)/time.Second)))
	}
	WriteJSON(w, e.Status, body)
}

// Form notes e, and returns what is sent of it.
func (e *Error) Form(w http.ResponseWriter) any {
	if n, ok := w.(Noter); ok {
		if form := n.Note(e); form != nil {
			return form
		}
	}
	return e
}
