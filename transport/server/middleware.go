package server

import (
	"bufio"
	"io"
	"log"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"krater/transport/api"
)

// requestIDHeader carries a request's id both ways.
const requestIDHeader = "X-Request-Id"

// outer returns the middleware around every route, known or not.
func (s *Server) outer(next http.Handler) http.Handler { return s.recorded(s.local(s.cors(next))) }

// recorded gives every request an id and a log line, and answers if its handler panics.
func (s *Server) recorded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		id := requestID(r)
		rec := &recorder{ResponseWriter: w, timeout: s.opt.WriteTimeout, form: formOf(r, id)}
		rec.Header().Set(requestIDHeader, id)
		if anthropicRoute(r) {
			rec.Header().Set("Request-Id", id)
		}
		rec.Header().Set("X-Content-Type-Options", "nosniff")
		// The last answer on a kept connection left its deadline.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
		if r.ContentLength != 0 {
			rec.body = &trackedBody{ReadCloser: r.Body}
			r.Body = rec.body
		}
		defer func() {
			abort := s.recovered(rec, id, recover())
			s.access(rec, r, id, time.Since(start))
			if abort {
				panic(http.ErrAbortHandler)
			}
		}()
		next.ServeHTTP(rec, r)
	})
}

// requestID returns the client's own id where it is short and plain, else a new one.
func requestID(r *http.Request) string {
	id := r.Header.Get(requestIDHeader)
	if id == "" || len(id) > 128 {
		return api.NewID("req_")
	}
	for _, c := range []byte(id) {
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
		if !plain {
			return api.NewID("req_")
		}
	}
	return id
}

// recovered answers a panic with 500. With the header already out it asks to break the connection,
// so that no client takes a cut answer for a whole one.
func (s *Server) recovered(rec *recorder, id string, cause any) (abort bool) {
	switch cause {
	case nil:
		return false
	case http.ErrAbortHandler:
		return true
	}
	s.opt.Log.Error().Str("request", id).Interface("panic", cause).Bytes("stack", debug.Stack()).Msg("handler panicked")
	if rec.status != 0 || rec.hijacked {
		return true
	}
	api.Internal().Write(rec)
	return false
}

func (s *Server) access(rec *recorder, r *http.Request, id string, took time.Duration) {
	line := s.opt.Log.Info()
	_, inside := insider(r)
	switch path := r.URL.Path; {
	case inside, path == "/health", path == "/ready", path == "/metrics", strings.HasPrefix(path, "/trace/assets/"):
		line = s.opt.Log.Debug()
	}
	status := rec.status
	if rec.hijacked {
		status = http.StatusSwitchingProtocols
	}
	if e := rec.refused; e != nil {
		line.Str("code", e.Code).Str("param", e.Param)
	}
	line.Str("method", r.Method).Str("path", r.URL.Path).Int("status", status).Int64("bytes", rec.bytes).
		Dur("took_ms", took).Str("request", id).Str("remote", r.RemoteAddr).Msg("request")
}

// recorder notes status and size for the log. Unwrap gives ResponseController the connection's
// deadlines; Hijack and Flush are here as well because libraries ask for those interfaces directly.
type recorder struct {
	http.ResponseWriter
	body     *trackedBody  // nil: there is none
	timeout  time.Duration // of a write
	paced    bool          // the handler sets deadlines itself
	status   int
	bytes    int64
	hijacked bool
	refused  *api.Error // the error that was the answer, or ended it
	form     func(*api.Error) any
	limits   func(http.Header) // sets the headers about limits; nil: there are none
}

// Note implements api.Noter.
func (r *recorder) Note(e *api.Error) any {
	if r.refused = e; r.form == nil {
		return nil
	}
	return r.form(e)
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// begin runs before the first byte of an answer.
func (r *recorder) begin(status int) {
	if r.status != 0 {
		return
	}
	r.status = status
	if r.limits != nil {
		r.limits(r.Header())
	}
	r.pace()
	if r.body != nil && !r.body.over {
		// net/http reads the rest of a body before it sends the answer, even to a client without a
		// key. The rest may arrive, but must not use up the answer's time.
		_ = http.NewResponseController(r.ResponseWriter).SetReadDeadline(time.Now().Add(r.timeout / 2))
	}
}

// trackedBody notes that a body was read to its end, or to an error. It belongs to the handler's
// goroutine.
type trackedBody struct {
	io.ReadCloser
	over bool
}

func (b *trackedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.over = b.over || err != nil
	return n, err
}

// pace sets the deadline of the next write, unless the handler does.
func (r *recorder) pace() {
	if !r.paced {
		_ = http.NewResponseController(r.ResponseWriter).SetWriteDeadline(time.Now().Add(r.timeout))
	}
}

// SetWriteDeadline is called by ResponseController.
func (r *recorder) SetWriteDeadline(at time.Time) error {
	r.paced = true
	return http.NewResponseController(r.ResponseWriter).SetWriteDeadline(at)
}

func (r *recorder) WriteHeader(status int) {
	if status >= 200 {
		r.begin(status)
	}
	r.ResponseWriter.WriteHeader(status)
}

// pieceBytes is the size of one write, which has its own deadline: a slow client gets a large
// answer completely as long as it keeps reading.
const pieceBytes = 64 << 10

func (r *recorder) Write(p []byte) (n int, err error) {
	r.begin(http.StatusOK)
	for {
		r.pace()
		k, err := r.ResponseWriter.Write(p[n:min(len(p), n+pieceBytes)])
		n += k
		r.bytes += int64(k)
		if err != nil || n == len(p) {
			return n, err
		}
	}
}

// FlushError is called by ResponseController.
func (r *recorder) FlushError() error {
	r.begin(http.StatusOK)
	return http.NewResponseController(r.ResponseWriter).Flush()
}

// Flush implements http.Flusher.
func (r *recorder) Flush() { _ = r.FlushError() }

// Hijack implements http.Hijacker.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(r.ResponseWriter).Hijack()
	r.hijacked = err == nil
	return conn, rw, err
}

// errorLog sends net/http's own complaints to the log at debug level: most are clients that break a
// handshake.
func errorLog(l *zerolog.Logger) *log.Logger { return log.New(debugWriter{l}, "", 0) }

type debugWriter struct{ log *zerolog.Logger }

var _ io.Writer = debugWriter{}

func (w debugWriter) Write(p []byte) (int, error) {
	w.log.Debug().Bytes("detail", p).Msg("http")
	return len(p), nil
}
