package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

// responseEvent is a server event of the Responses API.
type responseEvent struct {
	Type     string
	Sequence *int   `json:"sequence_number"`
	StreamID string `json:"stream_id"`
	Delta    string
	Text     string
	Status   int
	Headers  map[string]string
	Response *responseObject
	Error    struct {
		Type, Code, Message, Param string
		Headers                    map[string]string
	}
}

// responseObject is a response as far as the tests look.
type responseObject struct {
	ID     string
	Status string
	Output []struct {
		Content []struct{ Text string }
	}
	IncompleteDetails *struct{ Reason string } `json:"incomplete_details"`
	Error             *struct{ Code, Message string }
	Usage             *struct {
		Input  int `json:"input_tokens"`
		Output int `json:"output_tokens"`
		Total  int `json:"total_tokens"`
	}
}

// reply turns an ended response into the words of the other routes.
func (o *responseObject) reply() (reply, error) {
	var r reply
	for _, m := range o.Output {
		for _, c := range m.Content {
			r.text += c.Text
		}
	}
	switch {
	case o.Status == "completed":
		r.finish = "stop"
	case o.Status == "incomplete" && o.IncompleteDetails != nil && o.IncompleteDetails.Reason == "max_output_tokens":
		r.finish = "length"
	case o.Status == "incomplete" && o.IncompleteDetails != nil:
		r.finish = o.IncompleteDetails.Reason
		return r, nil // what was counted is of no interest
	case o.Error != nil:
		return r, &refusal{code: o.Error.Code, message: o.Error.Message}
	default:
		return r, fmt.Errorf("the response ended as %q", o.Status)
	}
	if u := o.Usage; u == nil || u.Input+u.Output != u.Total || u.Input == 0 {
		return r, fmt.Errorf("the usage is %+v", u)
	}
	r.prompt, r.completion = o.Usage.Input, o.Usage.Output
	return r, nil
}

// follower puts one response together from its events.
type follower struct {
	id    string
	text  strings.Builder
	last  int // sequence number
	begun bool
	done  bool // the text is
	got   reply
	ended bool
	see   watcher
}

// take checks an event against those before it.
func (f *follower) take(e *responseEvent) error {
	if f.ended {
		return fmt.Errorf("%s after the end", e.Type)
	}
	if e.Sequence == nil || *e.Sequence < 0 || f.begun && *e.Sequence <= f.last {
		return fmt.Errorf("%s has the sequence number %v after %d", e.Type, e.Sequence, f.last)
	}
	f.last = *e.Sequence
	if !f.begun && e.Type != "response.created" {
		return fmt.Errorf("%s comes first", e.Type)
	}
	switch e.Type {
	case "response.created":
		if f.begun || e.Response == nil || e.Response.ID == "" {
			return errors.New("a second response.created, or one without an id")
		}
		f.begun, f.id = true, e.Response.ID
	case "response.output_text.delta":
		if f.done {
			return errors.New("a delta after the whole text")
		}
		f.text.WriteString(e.Delta)
		f.got.deltas++
		return f.see(e.Delta)
	case "response.output_text.done":
		if f.done = true; e.Text != f.text.String() {
			return fmt.Errorf("the deltas make %q, the whole text is %q", f.text.String(), e.Text)
		}
	case "response.completed", "response.incomplete", "response.failed":
		f.ended = true
		if e.Response == nil || e.Response.ID != f.id {
			return errors.New("the last event is of another response")
		}
		r, err := e.Response.reply()
		if err != nil {
			return err
		}
		if r.text != f.text.String() {
			return fmt.Errorf("the deltas make %q, the object has %q", f.text.String(), r.text)
		}
		r.deltas = f.got.deltas
		f.got = r
	}
	return nil
}

var (
	wholeResponse  = reader{false, readResponse}
	streamResponse = reader{true, readResponseEvents}
)

func readResponse(in io.Reader, see watcher) (reply, error) {
	var o responseObject
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return reply{}, err
	}
	r, err := o.reply()
	if err != nil {
		return r, err
	}
	return r, see(r.text)
}

func readResponseEvents(in io.Reader, see watcher) (reply, error) {
	f := &follower{see: see}
	err := events(in, func(name, data string) error {
		var e responseEvent
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return err
		}
		if e.Type != name {
			return fmt.Errorf("event %s holds %s", name, e.Type)
		}
		return f.take(&e)
	})
	if err == nil && !f.ended {
		err = io.ErrUnexpectedEOF
	}
	return f.got, err
}

// dial opens a WebSocket to the Responses door.
func (s *site) dial(ctx context.Context) (*websocket.Conn, error) {
	d := websocket.Dialer{HandshakeTimeout: patience}
	if t, ok := s.http.Transport.(*http.Transport); ok {
		d.TLSClientConfig = t.TLSClientConfig.Clone()
	}
	h := http.Header{}
	if s.key != "" {
		h.Set("Authorization", "Bearer "+s.key)
	}
	ws, res, err := d.DialContext(ctx, "ws"+strings.TrimPrefix(s.base, "http")+"/v1/responses", h)
	if err != nil {
		if res != nil {
			return nil, &refusal{status: res.StatusCode, message: err.Error()}
		}
		return nil, err
	}
	if err := ws.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	return ws, nil
}

// create makes the frame that asks a question; lane may be "".
func (q question) create(lane string) []byte {
	b := q.body("/v1/responses", false)
	b["type"] = "response.create"
	if lane != "" {
		b["stream_id"] = lane
	}
	data, err := json.Marshal(b)
	if err != nil {
		panic(err) // questions hold plain values
	}
	return data
}

// readEvent reads one frame of the server; an error frame is a *refusal beside
// its event.
func readEvent(ws *websocket.Conn) (*responseEvent, error) {
	kind, data, err := ws.ReadMessage()
	if err != nil {
		return nil, err
	}
	var e responseEvent
	if err := json.Unmarshal(data, &e); err != nil || kind != websocket.TextMessage {
		return nil, fmt.Errorf("a frame of kind %d: %q: %w", kind, data, err)
	}
	if e.Type == "error" {
		if e.Error.Message == "" || e.Error.Type == "" || e.Status < 400 {
			return nil, fmt.Errorf("an error frame that says too little: %s", data)
		}
		return &e, &refusal{status: e.Status, code: e.Error.Code, param: e.Error.Param, message: e.Error.Message}
	}
	return &e, nil
}

// askSocket asks over a connection of its own and closes it in order, unless
// the watcher leaves: then the connection is dropped without a word.
func askSocket(ctx context.Context, s *site, q question, see watcher) (reply, error) {
	ws, err := s.dial(ctx)
	if err != nil {
		return reply{}, err
	}
	defer ws.NetConn().Close()
	defer context.AfterFunc(ctx, func() { ws.NetConn().Close() })()
	r, err := converse(ws, q, see)
	if err == nil {
		err = hangUp(ws)
	}
	return r, err
}

// converse asks one question without a stream_id and reads its answer.
func converse(ws *websocket.Conn, q question, see watcher) (reply, error) {
	if err := ws.WriteMessage(websocket.TextMessage, q.create("")); err != nil {
		return reply{}, err
	}
	f := &follower{see: see}
	for !f.ended {
		e, err := readEvent(ws)
		if err != nil {
			return f.got, err
		}
		if err := f.take(e); err != nil {
			return f.got, err
		}
	}
	return f.got, nil
}

// hangUp closes a connection with the closing handshake.
func hangUp(ws *websocket.Conn) error {
	text := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	if err := ws.WriteControl(websocket.CloseMessage, text, time.Now().Add(patience)); err != nil {
		return err
	}
	for {
		if _, _, err := ws.ReadMessage(); err != nil {
			if websocket.IsCloseError(err, websocket.CloseNormalClosure) {
				return nil
			}
			return fmt.Errorf("instead of a closing handshake: %w", err)
		}
	}
}
