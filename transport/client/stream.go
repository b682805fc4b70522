package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json/v2"
	"errors"
	"io"
)

// maxEvent bounds one event's data, in bytes.
const maxEvent = 16 << 20

// ErrEventTooLong is for a stream whose event is over the limit.
var ErrEventTooLong = errors.New("client: an event is too long")

// Stream reads a streamed answer event by event. Not safe for concurrent use, but Close may be
// called from anywhere.
type Stream[T any] struct {
	body  io.ReadCloser
	lines *bufio.Reader
	err   error
}

func openStream[T any](ctx context.Context, c *Client, path string, body any) (*Stream[T], error) {
	req, err := c.request(ctx, path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/event-stream")
	res, err := c.do(req)
	if err != nil {
		return nil, err
	}
	return &Stream[T]{body: res.Body, lines: bufio.NewReader(res.Body)}, nil
}

// Next returns the next event. It returns io.EOF after [DONE], an *api.Error for an error event,
// and io.ErrUnexpectedEOF for a stream that ends without either.
func (s *Stream[T]) Next() (*T, error) {
	if s.err != nil {
		return nil, s.err
	}
	event, err := s.next()
	s.err = err
	return event, err
}

// Close ends the stream; the server cancels an answer that still runs.
func (s *Stream[T]) Close() error { return s.body.Close() }

func (s *Stream[T]) next() (*T, error) {
	data, err := s.event()
	if err != nil {
		return nil, err
	}
	if string(data) == "[DONE]" {
		return nil, io.EOF
	}
	if bytes.Contains(data, []byte(`"error"`)) {
		if failure, err := parseError(data); err == nil {
			return nil, failure
		}
	}
	out := new(T)
	if err := json.Unmarshal(data, out); err != nil {
		return nil, err
	}
	return out, nil
}

// event reads lines up to a blank one and joins their data; comments and events without data are
// skipped.
func (s *Stream[T]) event() ([]byte, error) {
	var data []byte
	found := false
	for {
		line, err := s.line()
		if err != nil {
			return nil, err
		}
		if len(line) == 0 {
			if found {
				return data, nil
			}
			continue
		}
		value, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue
		}
		if found {
			data = append(data, '\n')
		}
		found = true
		if data = append(data, bytes.TrimPrefix(value, []byte(" "))...); len(data) > maxEvent {
			return nil, ErrEventTooLong
		}
	}
}

// line reads one line without its end; a stream that stops inside an event
// ends unexpectedly.
func (s *Stream[T]) line() ([]byte, error) {
	var line []byte
	for {
		part, more, err := s.lines.ReadLine()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, err
		}
		if line = append(line, part...); len(line) > maxEvent {
			return nil, ErrEventTooLong
		}
		if !more {
			return line, nil
		}
	}
}
