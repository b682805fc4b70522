package serve

import (
	"context"
	"errors"
	"sync"
	"time"

	"krater/transport/api"
	"krater/transport/client"
)

// Bounds of a connection that is used again. A server ends one after an hour, and sooner one that
// does not answer its pings, which an idle one does not.
const (
	socketLife = 50 * time.Minute
	socketIdle = 10 * time.Second
)

// socketDoor has a connection for each answer in flight, and keeps idle ones.
type socketDoor struct {
	client *client.Client
	asking Asking

	mu   sync.Mutex
	free []idleSocket // the one used last at the end
}

type idleSocket struct {
	*client.Socket
	born, since time.Time
}

// Name implements Door.
func (d *socketDoor) Name() string { return "websocket" }

// Chat implements Door.
func (d *socketDoor) Chat() bool { return true }

// Close implements Door.
func (d *socketDoor) Close() { d.retire(0) }

// retire closes sockets that were idle for longer.
func (d *socketDoor) retire(idle time.Duration) {
	d.mu.Lock()
	old := d.free
	n := 0
	for n < len(old) && time.Since(old[n].since) >= idle {
		n++
	}
	d.free = append([]idleSocket(nil), old[n:]...)
	d.mu.Unlock()
	for _, s := range old[:n] {
		// The answer is complete, so it does not matter how the connection ends.
		_ = s.Close()
	}
}

func (d *socketDoor) take(ctx context.Context) (idleSocket, error) {
	d.retire(socketIdle)
	d.mu.Lock()
	if n := len(d.free); n > 0 {
		s := d.free[n-1]
		d.free = d.free[:n-1]
		d.mu.Unlock()
		return s, nil
	}
	d.mu.Unlock()
	s, err := d.client.Dial(ctx)
	return idleSocket{Socket: s, born: time.Now()}, err
}

func (d *socketDoor) put(s idleSocket) {
	if time.Since(s.born) > socketLife {
		_ = s.Close()
		return
	}
	s.since = time.Now()
	d.mu.Lock()
	d.free = append(d.free, s)
	d.mu.Unlock()
}

func (d *socketDoor) ask(ctx context.Context, a *Ask, w *watch) (counts, error) {
	s, err := d.take(ctx)
	if err != nil {
		return counts{}, err
	}
	stop := context.AfterFunc(ctx, s.Drop)
	got, err := d.converse(s.Socket, a, w)
	_, refused := errors.AsType[*api.Error](err)
	switch whole := stop(); {
	case whole && (err == nil || refused || errors.Is(err, errCancelled)):
		d.put(s)
		return got, err
	case whole && errors.Is(err, errTooLate):
		_ = s.Close()
		return got, errCancelled
	}
	s.Drop()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return got, err
}

// errCancelled is for a response that ended because its client cancelled it. errTooLate is for one
// that ended by itself before that: the answer to the cancel may still arrive, so the connection
// cannot be reused.
var (
	errCancelled = errors.New("cancelled")
	errTooLate   = errors.New("ended before it was cancelled")
)

// converse asks and reads the events of one response.
func (d *socketDoor) converse(s *client.Socket, a *Ask, w *watch) (counts, error) {
	off := false
	err := s.Create(&client.ResponseRequest{
		Sampling: d.asking.sampling(a), Model: d.asking.model(), Input: a.Messages, MaxTokens: &a.Max, Store: &off,
	})
	if err != nil {
		return counts{}, err
	}
	id, cancelled := "", false
	for {
		e, err := s.Next()
		if _, refused := errors.AsType[*api.Error](err); refused && cancelled {
			return counts{}, errTooLate // the cancel, which overtook the last event
		}
		if err != nil {
			return counts{}, err
		}
		if id == "" && e.Response != nil {
			id = e.Response.ID
		}
		switch {
		case e.Over():
			return outcome(e.Response, cancelled)
		case e.Type == "response.in_progress":
			w.started()
		case (e.Type == "response.output_text.delta" || e.Type == "response.reasoning_text.delta") && e.Delta != "" && !cancelled:
			err := w.piece(len(e.Delta), 0)
			if err == nil {
				continue
			}
			if a.Fault != Cancels {
				return counts{}, err
			}
			cancelled = true
			if err := s.Cancel(id); err != nil {
				return counts{}, err
			}
		}
	}
}

// outcome reads the last event's object.
func outcome(o *client.ResponseObject, cancelled bool) (counts, error) {
	if o == nil {
		return counts{}, errors.New("the last event has no response")
	}
	if o.Error != nil {
		return counts{}, &api.Error{Code: o.Error.Code, Message: o.Error.Message}
	}
	var c counts
	if o.Usage != nil {
		c = counts{o.Usage.InputTokens, o.Usage.InputDetails.CachedTokens, o.Usage.OutputTokens}
	}
	reason := ""
	if o.IncompleteDetails != nil {
		reason = o.IncompleteDetails.Reason
	}
	switch {
	case cancelled && reason != "cancelled":
		return c, errTooLate
	case cancelled:
		return c, errCancelled
	case reason == "cancelled":
		return c, errors.New("the server cancelled the response")
	case o.Usage == nil:
		return c, errNoUsage
	}
	return c, nil
}
