package responses

import (
	"net/http"
	"slices"

	"krater/transport/api"
)

// maxRecent is how many of its last responses a connection may continue although they are not
// stored.
const maxRecent = 16

// wsStream is a response in flight under one stream_id ("" for none).
type wsStream struct {
	streamID string
	r        *response
	previous string    // response that it continues
	f        *follower // nil until the engine has accepted
}

// admits reports whether a response may start on this stream.
func (s *socket) admits(streamID string) *api.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.leaving != nil && s.leaving.code == closeGoingAway:
		return shuttingDown()
	case s.leaving != nil:
		return limitReached(s.door.opt.SocketLife)
	case len(s.streams) >= s.door.opt.MaxStreams:
		return &api.Error{
			Status: http.StatusTooManyRequests, Type: api.TypeRateLimit, Code: codeTooMany,
			Message: "too many responses in flight on this connection",
		}
	}
	for _, l := range s.streams {
		if l.streamID == streamID {
			return conflict(codeInFlight, "a response is in flight already; wait for its end or use another 'stream_id'")
		}
	}
	return nil
}

// reserve takes a stream for a response that the socket now holds.
func (s *socket) reserve(r *response, streamID, previous string) *wsStream {
	l := &wsStream{streamID: streamID, r: r, previous: previous}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams = append(s.streams, l)
	return l
}

// started is the engine's answer to a response on a stream; the response's goroutine calls it.
func (s *socket) started(l *wsStream, err *api.Error) {
	if err == nil {
		s.attach(l, -1)
		return
	}
	if !s.withdraw(l) { // the connection went first
		return
	}
	s.forget(l.previous)
	s.fault(err, l.streamID)
}

// attach lets the stream's events flow.
func (s *socket) attach(l *wsStream, after int) {
	f := l.r.follow(after, s.wake)
	s.mu.Lock()
	alive := slices.Contains(s.streams, l)
	if alive {
		l.f = f
	}
	s.mu.Unlock()
	if !alive {
		f.leave()
		return
	}
	s.poke()
}

// withdraw returns a stream before its end; false if it is gone already.
func (s *socket) withdraw(l *wsStream) bool {
	s.mu.Lock()
	i := slices.Index(s.streams, l)
	if i >= 0 {
		s.streams = slices.Delete(s.streams, i, i+1)
	}
	s.mu.Unlock()
	if i >= 0 {
		l.r.release()
	}
	return i >= 0
}

// inFlight returns the response on the stream with this id.
func (s *socket) inFlight(streamID string) *response {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.streams {
		if l.streamID == streamID {
			return l.r
		}
	}
	return nil
}

// local finds a response that this connection may continue.
func (s *socket) local(id string) *response {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.recent {
		if r.id == id && s.door.store.kept(r) {
			return r
		}
	}
	return nil
}

// remember lets the connection continue r; s.mu is held.
func (s *socket) remember(r *response) {
	if slices.Contains(s.recent, r) || !s.door.store.pin(r) {
		return
	}
	if len(s.recent) >= maxRecent {
		s.door.store.unpin(s.recent[0])
		s.recent = slices.Delete(s.recent, 0, 1)
	}
	s.recent = append(s.recent, r)
}

// forget drops an id whose continuation failed.
func (s *socket) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(id)
}

func (s *socket) forgetLocked(id string) {
	for i, r := range s.recent {
		if r.id == id {
			s.door.store.unpin(r)
			s.recent = slices.Delete(s.recent, i, i+1)
			return
		}
	}
}
