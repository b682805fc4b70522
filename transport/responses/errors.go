package responses

import (
	"errors"
	"fmt"
	"net/http"

	"krater/transport/api"
)

// Error codes of this door only.
const (
	codeNotFound     = "response_not_found"
	codeExpired      = "response_expired"
	codeInFlight     = "response_already_in_flight"
	codeNotActive    = "response_cancel_not_active"
	codePrevious     = "previous_response_not_found"
	codeConnLimit    = "websocket_connection_limit_reached"
	codeTooMany      = "too_many_responses_in_flight"
	codeUnknownEvent = "unknown_event_type"
)

// Why a response was stopped: the cause of its context.
var (
	errCancelled = errors.New("cancelled by the client")
	errLost      = errors.New("the connection was lost")
	errShutdown  = errors.New("the server is shutting down")
)

func notFound(code, format string, args ...any) *api.Error {
	return &api.Error{
		Status: http.StatusNotFound, Type: api.TypeNotFound, Code: code, Param: "response_id",
		Message: fmt.Sprintf(format, args...),
	}
}

func shuttingDown() *api.Error {
	return &api.Error{
		Status: http.StatusServiceUnavailable, Type: api.TypeServer, Code: api.CodeUnavailable,
		Message: errShutdown.Error(),
	}
}

func conflict(code, format string, args ...any) *api.Error {
	return &api.Error{
		Status: http.StatusConflict, Type: api.TypeInvalidRequest, Code: code,
		Message: fmt.Sprintf(format, args...),
	}
}
