package responses

import (
	"slices"
	"time"

	"github.com/gorilla/websocket"
)

// ready is always ready to be received from.
var ready = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// pieceBytes is the size of one write, which has its own deadline: a large event (a long answer
// with its log-probabilities) may take a client longer than one write may.
const pieceBytes = 64 << 10

// send writes a frame, a large one in fragments. That they are taken is a sign of life: between
// them no pong is heard.
func (s *socket) send(frame []byte) error {
	wait := s.door.opt.WriteWait
	_ = s.ws.SetWriteDeadline(time.Now().Add(wait))
	if len(frame) <= pieceBytes {
		return s.ws.WriteMessage(websocket.TextMessage, frame)
	}
	w, err := s.ws.NextWriter(websocket.TextMessage)
	if err != nil {
		return err
	}
	for piece := range slices.Chunk(frame, pieceBytes) {
		_ = s.ws.SetWriteDeadline(time.Now().Add(wait))
		if _, err := w.Write(piece); err != nil {
			return err
		}
		s.hear()
	}
	_ = s.ws.SetWriteDeadline(time.Now().Add(wait))
	return w.Close()
}

// write sends what there is to send until the connection ends. A write that its deadline cuts off
// breaks the connection for good, so it is not tried again.
func (s *socket) write() {
	defer s.ws.Close() // ends the reader too
	opt := &s.door.opt
	ping := time.NewTicker(opt.Ping)
	defer ping.Stop()
	silence := time.NewTimer(opt.PongWait)
	defer silence.Stop()
	life := time.NewTimer(opt.SocketLife)
	defer life.Stop()
	cut := s.cut
	for {
		frame, end := s.next()
		if frame != nil && s.send(frame) != nil {
			return
		}
		if end != nil {
			s.goodbye(end)
			return
		}
		more := s.wake
		if frame != nil {
			more = ready // look again at once, after the timers had their turn
		}
		select {
		case <-more:
		case <-ping.C:
			if s.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(opt.WriteWait)) != nil {
				return
			}
		case <-silence.C:
			left := opt.PongWait - time.Duration(time.Now().UnixNano()-s.heard.Load())
			if left <= 0 {
				s.door.log.Debug().Msg("websocket client fell silent")
				return
			}
			silence.Reset(left)
		case <-life.C:
			s.fault(limitReached(opt.SocketLife), "")
			s.drain(closing{code: websocket.CloseNormalClosure, text: codeConnLimit})
		case <-cut:
			cut = nil
			s.abandon()
		case <-s.gone:
			return
		}
	}
}

// next returns the frame to send next, or how to close if there is none. Errors come first, then
// the streams take turns.
func (s *socket) next() ([]byte, *closing) {
	s.mu.Lock()
	if s.ending == nil && s.leaving != nil && len(s.errors) == 0 && len(s.streams) == 0 {
		s.ending = s.leaving
	}
	if s.ending != nil {
		defer s.mu.Unlock()
		return nil, s.ending
	}
	if len(s.errors) > 0 {
		defer s.mu.Unlock()
		frame := s.errors[0]
		s.errors = s.errors[1:]
		return frame, nil
	}
	ev, l := s.takeEvent()
	s.mu.Unlock()
	if l == nil {
		return nil, nil
	}
	return ev.encode(l.streamID), nil
}

// takeEvent takes the next event of the stream whose turn it is. It frees the stream with the final
// event, before the client can have seen it. It returns no stream if nothing waits. s.mu is held.
func (s *socket) takeEvent() (event, *wsStream) {
	for range len(s.streams) {
		i := s.turn % len(s.streams)
		s.turn = i + 1
		l := s.streams[i]
		if l.f == nil {
			continue
		}
		ev, ok := l.f.take()
		if !ok {
			continue
		}
		if l.f.backlog() > s.door.opt.MaxBacklog {
			s.endLocked(websocket.CloseTryAgainLater, "the client reads too slowly")
		}
		if ev.kind.final() {
			s.streams = slices.Delete(s.streams, i, i+1)
			s.turn = i
			l.f.leave()
			l.r.release()
			if ev.kind == failed {
				s.forgetLocked(l.previous)
			} else {
				s.remember(l.r)
			}
		}
		return ev, l
	}
	return event{}, nil
}

// goodbye sends the close frame and waits a moment for the client's answer.
func (s *socket) goodbye(how *closing) {
	message := websocket.FormatCloseMessage(how.code, how.text)
	if s.ws.WriteControl(websocket.CloseMessage, message, time.Now().Add(s.door.opt.WriteWait)) != nil {
		return
	}
	patience := time.NewTimer(closeWait)
	defer patience.Stop()
	select {
	case <-s.gone:
	case <-patience.C:
	}
}
