package responses

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"

	"krater/actors/engine"
	"krater/transport/api"
	"krater/transport/upgrade"
)

const (
	// maxErrors bounds the error frames that wait for a client which sends bad frames and does not
	// read.
	maxErrors = 64
	// closeWait bounds the wait for the client's half of the closing handshake.
	closeWait = 2 * time.Second

	closeGoingAway = websocket.CloseGoingAway
)

// socket is one WebSocket connection, with a reader and a writer. The reader always reads, so that
// pings are answered during a long prefill. The writer sends error frames from a bounded queue, and
// the events of the streams, which wait in the responses themselves. Both are goroutines of the
// socket: the handler of the upgrade returns, so that nothing of HTTP is held beside them.
type socket struct {
	door  *Door
	ws    *websocket.Conn
	owner string
	peer  string        // peer that its limits count for
	from  engine.Caller // of the upgrade: of requests that name none
	wake  chan struct{} // capacity 1: something is to be sent
	gone  chan struct{} // closed when the reader has ended
	heard atomic.Int64  // when the client last gave a sign of life, Unix ns

	mu      sync.Mutex
	errors  [][]byte    // error frames to send, before any event
	streams []*wsStream // responses in flight
	turn    int         // index of the stream that may send next
	recent  []*response
	leaving *closing // set when there are no new responses; close when the streams are empty
	ending  *closing // close now
}

// closing says how a connection ends.
type closing struct {
	code int
	text string
}

// upgrade is GET /v1/responses.
func (d *Door) upgrade(w http.ResponseWriter, req *http.Request) {
	if !upgrade.Check(w, req, d.opt.AllowOrigin) {
		return
	}
	s := &socket{door: d, owner: d.opt.Owner(req), peer: d.opt.Peer(req), from: d.opt.Caller(req.Header), wake: make(chan struct{}, 1), gone: make(chan struct{})}
	if err := d.admit(s); err != nil {
		err.Write(w)
		return
	}
	ws, err := upgrade.Do(w, req, upgrade.Options{
		Timeout: d.opt.WriteWait, ReadBuffer: readBuffer, WriteBuffer: 4096, Pool: &writeBuffers, Protocol: upgrade.Subprotocol(req),
	})
	if err != nil { // the upgrader has answered
		d.dismiss(s)
		d.log.Debug().Err(err).Msg("websocket upgrade refused")
		return
	}
	s.ws = ws
	go s.run()
}

// run reads and writes until the connection ends.
func (s *socket) run() {
	defer s.door.dismiss(s)
	start := time.Now()
	written := make(chan struct{})
	go func() {
		defer close(written)
		s.write()
	}()
	s.read()
	s.lost()
	close(s.gone)
	s.poke()
	<-written
	s.door.log.Info().Str("remote", s.ws.RemoteAddr().String()).Dur("took_ms", time.Since(start)).Msg("websocket closed")
}

// readBuffer holds the part of a client's frames that is read at once. What is longer is read past it.
const readBuffer = 512

// writeBuffers is shared: a connection holds one only while it writes.
var writeBuffers sync.Pool

// admit counts a connection in.
func (d *Door) admit(s *socket) *api.Error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining {
		return shuttingDown()
	}
	own := 0
	for o := range d.sockets {
		if o.peer == s.peer {
			own++
		}
	}
	message := ""
	switch {
	case len(d.sockets) >= d.opt.MaxSockets:
		message = "too many WebSocket connections"
	case own >= api.ShareOf(s.peer, d.opt.MaxSockets):
		message = "too many WebSocket connections of this key or address"
	default:
		d.sockets[s] = struct{}{}
		return nil
	}
	return &api.Error{
		Status: http.StatusServiceUnavailable, Type: api.TypeServer, Code: api.CodeOverloaded,
		Message: message, RetryAfter: time.Second,
	}
}

func (d *Door) dismiss(s *socket) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.sockets, s)
	d.idle.Broadcast()
}

// sameOrigin allows pages of this host, and clients without an Origin, which are not browsers.
func sameOrigin(req *http.Request) bool {
	origin := req.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, req.Host)
}

// read handles frames until the connection ends. After a fatal fault it continues to read, and
// ignores what it reads, so that the client receives the close frame.
func (s *socket) read() {
	s.ws.SetReadLimit(s.door.opt.MaxMessage)
	s.hear()
	s.ws.SetPongHandler(func(string) error {
		s.hear()
		return nil
	})
	answer := s.ws.PingHandler()
	s.ws.SetPingHandler(func(data string) error {
		s.hear()
		return answer(data)
	})
	for {
		kind, data, done, err := s.message()
		if refused, ok := errors.AsType[*api.Error](err); ok {
			s.fault(refused, "")
			continue
		}
		if err != nil {
			upgrade.Linger(s.ws, err, closeWait, 4*s.door.opt.MaxMessage)
			return
		}
		s.hear()
		switch {
		case s.isEnding():
			done()
		case kind != websocket.TextMessage:
			done()
			s.fault(api.BadRequest(api.CodeInvalidJSON, "", "binary frames are not taken, send text"), "")
		case !utf8.Valid(data):
			done()
			s.end(websocket.CloseInvalidFramePayloadData, "the text is not valid UTF-8")
		default:
			s.handleApart(data, done)
		}
	}
}

// handleApart is handle in a goroutine of its own, whose stack grows with the frame: the reader would
// keep it. A panic ends the connection only.
func (s *socket) handleApart(data []byte, done func()) {
	handled := make(chan struct{})
	go func() {
		defer close(handled)
		defer func() {
			if cause := recover(); cause != nil {
				s.door.log.Error().Interface("panic", cause).Bytes("stack", debug.Stack()).Msg("websocket handler panicked")
				s.end(websocket.CloseInternalServerErr, "the server failed")
			}
		}()
		s.handle(data, done)
	}()
	<-handled
}

// smallMessage is the length up to which a message is read without asking for room.
const smallMessage = 16 << 10

// message reads one message, which must arrive within ReadWait once it has begun. It reads a long
// one when there is room to work on it. An *api.Error says that there is none; the message is then
// dropped, and the connection stays usable.
func (s *socket) message() (kind int, data []byte, done func(), err error) {
	kind, in, err := s.ws.NextReader()
	if err != nil {
		return 0, nil, nil, err
	}
	done = func() {}
	var buf bytes.Buffer
	if err = s.receive(&buf, io.LimitReader(in, smallMessage+1)); err == nil && buf.Len() > smallMessage {
		work, refused := s.door.opt.Work(context.Background(), s.peer, s.door.opt.MaxMessage)
		switch {
		case refused != nil:
			if err = s.receive(io.Discard, in); err == nil {
				err = refused
			}
		default:
			done = work
			if err = s.receive(&buf, in); err != nil {
				done()
			}
		}
	}
	return kind, buf.Bytes(), done, err
}

// receive copies what arrives of a message in time.
func (s *socket) receive(to io.Writer, from io.Reader) error {
	if err := s.ws.SetReadDeadline(time.Now().Add(s.door.opt.ReadWait)); err != nil {
		return err
	}
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	return s.ws.SetReadDeadline(time.Time{})
}

func (s *socket) hear() { s.heard.Store(time.Now().UnixNano()) }

// lost ends what the connection held: it releases its responses, which cancels those that have no
// other hold.
func (s *socket) lost() {
	s.mu.Lock()
	streams, recent := s.streams, s.recent
	s.streams, s.recent = nil, nil
	s.mu.Unlock()
	for _, l := range streams {
		if l.f != nil {
			l.f.leave()
		}
		l.r.release()
	}
	for _, r := range recent {
		s.door.store.unpin(r)
	}
}

// fault queues an error event.
func (s *socket) fault(err *api.Error, streamID string) {
	s.door.log.Info().Int("status", err.Status).Str("code", err.Code).Str("param", err.Param).Msg("websocket frame refused")
	s.mu.Lock()
	if len(s.errors) >= maxErrors {
		s.endLocked(websocket.ClosePolicyViolation, "too many unread errors")
	} else {
		s.errors = append(s.errors, newErrorFrame(err, streamID, s.limits))
	}
	s.mu.Unlock()
	s.poke()
}

// limits sets the headers that show what the client's key may still use.
func (s *socket) limits(h http.Header) {
	if s.door.opt.Limits != nil {
		s.door.opt.Limits(s.owner, h)
	}
}

// end closes the connection with that code; the first end counts.
func (s *socket) end(code int, text string) {
	s.mu.Lock()
	s.endLocked(code, text)
	s.mu.Unlock()
	s.poke()
}

func (s *socket) endLocked(code int, text string) {
	if s.ending == nil {
		s.ending = &closing{code: code, text: text}
	}
}

func (s *socket) isEnding() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending != nil
}

// drain lets the responses in flight end and closes then.
func (s *socket) drain(how closing) {
	s.mu.Lock()
	if s.leaving == nil {
		s.leaving = &how
	}
	s.mu.Unlock()
	s.poke()
}

// poke wakes the writer.
func (s *socket) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
