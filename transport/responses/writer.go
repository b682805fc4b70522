package responses

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
)

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

// frames are buffers for encoded events.
var frames = sync.Pool{New: func() any { return new([]byte) }}

// keptFrame bounds the buffers that are kept, in bytes.
const keptFrame = 8 << 10

// write sends what there is to send until the connection ends. A write that its deadline cuts off
// breaks the connection for good, so it is not tried again. It waits for one channel only, on which
// the alarm and the reader's end wake it too: to wait for several costs more than to encode a token.
func (s *socket) write() {
	defer s.ws.Close() // ends the reader too
	a := s.newAlarm()
	defer a.timer.Stop()
	for {
		if a.due.Swap(false) && !s.look(a) { // also between frames that follow each other
			return
		}
		sent, end := s.sendNext()
		switch {
		case end != nil:
			s.goodbye(end)
			return
		case sent == nil:
			continue
		case sent != errNothing:
			return
		}
		<-s.wake
		select {
		case <-s.gone:
			return
		default:
		}
	}
}

// errNothing says that there is nothing to send.
var errNothing = errors.New("nothing to send")

// sendNext sends one frame, or returns errNothing or how to close.
func (s *socket) sendNext() (error, *closing) {
	buf := frames.Get().(*[]byte)
	defer frames.Put(buf)
	frame, end := s.next((*buf)[:0])
	if frame == nil {
		return errNothing, end
	}
	if cap(frame) <= keptFrame {
		*buf = frame
	}
	return s.send(frame), nil
}

// alarm is when a connection has to be looked at next: for a ping, for a client that fell silent, or
// at the end of its life.
type alarm struct {
	timer      *time.Timer
	due        atomic.Bool
	ping, life time.Time // the zero life has passed
}

func (s *socket) newAlarm() *alarm {
	now, opt := time.Now(), &s.door.opt
	a := &alarm{ping: now.Add(opt.Ping), life: now.Add(opt.SocketLife)}
	a.timer = time.AfterFunc(min(opt.Ping, opt.PongWait, opt.SocketLife), func() {
		a.due.Store(true)
		s.poke()
	})
	return a
}

// look does what is due and sets the alarm again; false: the connection has ended.
func (s *socket) look(a *alarm) bool {
	now, opt := time.Now(), &s.door.opt
	left := opt.PongWait - time.Duration(now.UnixNano()-s.heard.Load())
	if left <= 0 {
		s.door.log.Debug().Msg("websocket client fell silent")
		return false
	}
	if !now.Before(a.ping) {
		if s.ws.WriteControl(websocket.PingMessage, nil, now.Add(opt.WriteWait)) != nil {
			return false
		}
		a.ping = now.Add(opt.Ping)
	}
	left = min(left, a.ping.Sub(now))
	if !a.life.IsZero() {
		if now.Before(a.life) {
			left = min(left, a.life.Sub(now))
		} else {
			a.life = time.Time{}
			s.fault(limitReached(opt.SocketLife), "")
			s.drain(closing{code: websocket.CloseNormalClosure, text: codeConnLimit})
		}
	}
	a.timer.Reset(left)
	return true
}

// next returns the frame to send next, in buf if there is room, or how to close if there is none.
// Errors come first, then the streams take turns.
func (s *socket) next(buf []byte) ([]byte, *closing) {
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
	return ev.appendTo(buf, l.streamID), nil
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
