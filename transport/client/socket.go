package client

import (
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/websocket"

	"krater/scheduler/jsonlines"
	"krater/transport/api"
)

// Bounds of a Socket's life.
const (
	handshakeTimeout = 30 * time.Second
	frameTimeout     = 30 * time.Second // to write a frame
	hangUpTimeout    = 5 * time.Second  // for the other side's part of the closing handshake
)

// ResponseRequest has the fields of response.create besides its type. MaxTokens is
// max_output_tokens; the fields of Sampling are at the same level.
type ResponseRequest struct {
	api.Sampling
	Model     *string   `json:"model"`
	Input     []Message `json:"input"`
	MaxTokens *int      `json:"max_output_tokens"`
	Store     *bool     `json:"store"`
}

// ResponseEvent is a server event of the Responses API as far as a reader of text needs it.
type ResponseEvent struct {
	Type     string          `json:"type"`
	Delta    string          `json:"delta"`    // of response.output_text.delta
	Response *ResponseObject `json:"response"` // of events about the whole
}

// ResponseObject is the response as a whole.
type ResponseObject struct {
	ID                string `json:"id"`
	Status            string `json:"status"` // in_progress, completed, incomplete, failed, ...
	IncompleteDetails *struct {
		Reason string `json:"reason"` // max_output_tokens, cancelled
	} `json:"incomplete_details"`
	Error *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
	Usage *struct {
		InputTokens  int `json:"input_tokens"`
		OutputTokens int `json:"output_tokens"`
		InputDetails struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"input_tokens_details"`
	} `json:"usage"`
}

// Over reports whether the response ends with this event.
func (e *ResponseEvent) Over() bool {
	switch e.Type {
	case "response.completed", "response.incomplete", "response.failed":
		return true
	}
	return false
}

// Socket is a WebSocket to the Responses door, one response at a time. One goroutine reads and one
// writes; Drop may be called from anywhere. Pings are answered only while Next waits: do not keep
// an idle socket for long.
type Socket struct{ ws *websocket.Conn }

// Dial opens a WebSocket at the client's address with its key. If the server does not upgrade, it
// returns an *api.Error with the status.
func (c *Client) Dial(ctx context.Context) (*Socket, error) {
	d := websocket.Dialer{HandshakeTimeout: handshakeTimeout}
	if t, ok := c.http.Transport.(*http.Transport); ok {
		d.TLSClientConfig = t.TLSClientConfig.Clone()
		d.NetDialContext = t.DialContext
	}
	h := http.Header{}
	if c.key != "" {
		h.Set("Authorization", "Bearer "+c.key)
	}
	ws, res, err := d.DialContext(ctx, "ws"+strings.TrimPrefix(c.base, "http")+"/v1/responses", h)
	if err != nil {
		if res == nil {
			return nil, err
		}
		failure := &api.Error{Message: err.Error()}
		if data, reading := io.ReadAll(io.LimitReader(res.Body, 1<<16)); reading == nil {
			if said, parsing := parseError(data); parsing == nil {
				failure = said
			}
		}
		failure.Status, failure.RetryAfter = res.StatusCode, retryAfter(res.Header)
		return nil, failure
	}
	ws.SetReadLimit(maxEvent)
	return &Socket{ws}, nil
}

// Create asks for a response.
func (s *Socket) Create(req *ResponseRequest) error {
	body, err := json.Marshal(req, json.OmitZeroStructFields(true))
	if err != nil {
		return err
	}
	// The body is an object with at least its input.
	return s.send(append([]byte(`{"type":"response.create",`), body[1:]...))
}

// Cancel asks the server to end a response; it then ends as incomplete.
func (s *Socket) Cancel(id string) error {
	return s.send(api.Marshal(map[string]string{"type": "response.cancel", "response_id": id}))
}

func (s *Socket) send(frame []byte) error {
	if err := s.ws.SetWriteDeadline(time.Now().Add(frameTimeout)); err != nil {
		return err
	}
	return s.ws.WriteMessage(websocket.TextMessage, jsonlines.Escape(frame))
}

// Next waits for the next event. An error frame is an *api.Error; the socket stays usable after it.
func (s *Socket) Next() (*ResponseEvent, error) {
	kind, data, err := s.ws.ReadMessage()
	if err != nil {
		return nil, err
	}
	if kind != websocket.TextMessage {
		return nil, fmt.Errorf("client: a frame of kind %d", kind)
	}
	return parseEvent(data)
}

// parseEvent reads one event, or the error in a frame.
func parseEvent(data []byte) (*ResponseEvent, error) {
	var e struct {
		ResponseEvent
		Status int `json:"status"`
		Error  *struct {
			Headers map[string]string `json:"headers"`
		} `json:"error"`
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, err
	}
	if e.Type != "error" {
		return &e.ResponseEvent, nil
	}
	failure, err := parseError(data)
	if err != nil {
		return nil, errors.New("client: an error frame without an error")
	}
	failure.Status = e.Status
	if e.Error != nil {
		h := http.Header{}
		for name, value := range e.Error.Headers {
			h.Set(name, value)
		}
		failure.RetryAfter = retryAfter(h)
	}
	return nil, failure
}

// Close ends the connection with the closing handshake.
func (s *Socket) Close() error {
	defer s.Drop()
	deadline := time.Now().Add(hangUpTimeout)
	text := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	if err := s.ws.WriteControl(websocket.CloseMessage, text, deadline); err != nil {
		return err
	}
	if err := s.ws.SetReadDeadline(deadline); err != nil {
		return err
	}
	for {
		if _, _, err := s.ws.ReadMessage(); err != nil {
			if websocket.IsCloseError(err, websocket.CloseNormalClosure) {
				return nil
			}
			return err
		}
	}
}

// Drop ends the connection without a word; a Next that waits returns an error.
func (s *Socket) Drop() { _ = s.ws.NetConn().Close() }
