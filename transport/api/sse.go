package api

import (
	"bytes"
	"errors"
	"net/http"
	"slices"
	"time"
)

// pieceBytes is the size of one write. A large event may take a client longer than the deadline of
// one write.
const pieceBytes = 64 << 10

// stream writes the parts of an answer. Every write has a deadline, so a client that stops reading
// ends only its own stream. It is not safe for concurrent use.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	kind    string // Content-Type
	buf     bytes.Buffer
	opened  bool
}

func newStream(w http.ResponseWriter, timeout time.Duration, kind string) stream {
	return stream{w: w, control: http.NewResponseController(w), timeout: timeout, kind: kind}
}

// EventWriter writes server-sent events.
type EventWriter struct{ stream }

// NewEventWriter prepares w; nothing is sent before the first event. timeout bounds each write, 0
// means no bound.
func NewEventWriter(w http.ResponseWriter, timeout time.Duration) *EventWriter {
	return &EventWriter{newStream(w, timeout, "text/event-stream; charset=utf-8")}
}

// Open sends the header. Sending an event does it too.
func (e *stream) Open() error {
	e.header()
	return e.flush()
}

// Opened reports whether the header is out, so that an error must be an event.
func (e *stream) Opened() bool { return e.opened }

// Data sends one unnamed event with v as JSON.
func (e *EventWriter) Data(v any) error { return e.Event("", v) }

// Event sends one event with v as JSON; an empty name leaves the event line out.
func (e *EventWriter) Event(name string, v any) error { return e.raw(name, Marshal(v)) }

// Raw sends one event with JSON that is encoded already, without line breaks.
func (e *EventWriter) Raw(name string, data []byte) error { return e.raw(name, data) }

// Done sends the literal that ends a chat or text stream.
func (e *EventWriter) Done() error { return e.raw("", []byte("[DONE]")) }

// Fail ends the stream with an error, in the form of its route and without what Done writes.
func (e *EventWriter) Fail(cause *Error) error { return e.Data(cause.Form(e.w)) }

// Heartbeat sends a comment, which clients skip; it keeps proxies from closing a connection during
// a long prefill.
func (e *EventWriter) Heartbeat() error {
	e.buf.Reset()
	e.buf.WriteString(": keep-alive\n\n")
	return e.send()
}

func (e *EventWriter) raw(name string, data []byte) error {
	e.buf.Reset()
	if name != "" {
		e.buf.WriteString("event: ")
		e.buf.WriteString(name)
		e.buf.WriteByte('\n')
	}
	e.buf.WriteString("data: ")
	e.buf.Write(data)
	e.buf.WriteString("\n\n")
	return e.send()
}

func (e *stream) header() {
	if e.opened {
		return
	}
	e.opened = true
	h := e.w.Header()
	h.Set("Content-Type", e.kind)
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // nginx would hold events back
	e.deadline()
	e.w.WriteHeader(http.StatusOK)
}

func (e *stream) send() error {
	e.header()
	for piece := range slices.Chunk(e.buf.Bytes(), pieceBytes) {
		e.deadline()
		if _, err := e.w.Write(piece); err != nil {
			return err
		}
	}
	return e.flush()
}

func (e *stream) deadline() {
	if e.timeout > 0 {
		// Not every writer has deadlines (a recorder in a test): then there is no socket to wait
		// for either.
		_ = e.control.SetWriteDeadline(time.Now().Add(e.timeout))
	}
}

func (e *stream) flush() error {
	if err := e.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// LineWriter writes one JSON value a line.
type LineWriter struct{ stream }

// NewLineWriter is as NewEventWriter.
func NewLineWriter(w http.ResponseWriter, timeout time.Duration) *LineWriter {
	return &LineWriter{newStream(w, timeout, "application/x-ndjson")}
}

// Data sends v as one line.
func (l *LineWriter) Data(v any) error {
	l.buf.Reset()
	l.buf.Write(Marshal(v))
	l.buf.WriteByte('\n')
	return l.send()
}

// Fail ends the stream with an error, in the form of its route.
func (l *LineWriter) Fail(cause *Error) error { return l.Data(cause.Form(l.w)) }

// Done does nothing: the last line says that it is the last.
func (l *LineWriter) Done() error { return nil }

// Heartbeat sends the header only, since clients take an empty line for broken JSON.
func (l *LineWriter) Heartbeat() error { return l.Open() }
