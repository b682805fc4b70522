package anthropic

import (
	"net/http"

	"krater/actors/engine"
	"krater/transport/api"
)

// Error is an error in the form of this API.
type Error struct {
	Type      string    `json:"type"` // error
	Error     ErrorBody `json:"error"`
	RequestID string    `json:"request_id"`
}

// ErrorBody says what is wrong.
type ErrorBody struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// NewError returns the wire form of e for a request of this id.
func NewError(e *api.Error, requestID string) Error {
	kind := "invalid_request_error"
	switch e.Status {
	case http.StatusUnauthorized:
		kind = "authentication_error"
	case http.StatusForbidden:
		kind = "permission_error"
	case http.StatusNotFound:
		kind = "not_found_error"
	case http.StatusRequestEntityTooLarge:
		kind = "request_too_large"
	case http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case http.StatusServiceUnavailable:
		kind = "overloaded_error"
	default:
		if e.Status >= 500 {
			kind = "api_error"
		}
	}
	return Error{"error", ErrorBody{kind, e.Message}, requestID}
}

// Model is one entry of GET /v1/models as this API has it.
type Model struct {
	Type        string `json:"type"` // model
	ID          string `json:"id"`
	DisplayName string `json:"display_name"`
	CreatedAt   string `json:"created_at"` // RFC 3339
	Lifecycle   string `json:"lifecycle"`  // active
	MaxInput    int    `json:"max_input_tokens"`
	MaxTokens   int    `json:"max_tokens"`
}

// NewModel describes the served model.
func NewModel(info engine.Info) Model {
	return Model{
		Type: "model", ID: info.ID, DisplayName: info.ID, CreatedAt: info.Created.UTC().Format("2006-01-02T15:04:05Z"),
		Lifecycle: "active", MaxInput: info.Context, MaxTokens: info.Context,
	}
}

// ModelList is the answer of GET /v1/models.
type ModelList struct {
	Data    []Model `json:"data"`
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
	HasMore bool    `json:"has_more"`
}
