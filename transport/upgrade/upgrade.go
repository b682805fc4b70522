// Package upgrade turns HTTP requests into WebSockets, with the checks that RFC 6455 asks for. It
// makes the checks of the opening handshake that gorilla/websocket does not make, and handles the
// close frames that it reads wrongly (sections 4.2, 4.4 and 7.4).
package upgrade

import (
	"bufio"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/websocket"

	"krater/transport/api"
)

// The codes of refused handshakes.
const (
	CodeRequired = "upgrade_required"
	CodeInvalid  = "invalid_handshake"
)

const version = "13"

// Check reports whether a request is a valid opening handshake; else it has answered. allowOrigin
// reports whether a page of the request's Origin may connect.
func Check(w http.ResponseWriter, r *http.Request, allowOrigin func(*http.Request) bool) bool {
	err := check(r)
	if err == nil && !allowOrigin(r) {
		err = &api.Error{Status: http.StatusForbidden, Code: "origin_not_allowed", Message: "pages of this origin may not connect; allow it with --origins"}
	}
	if err == nil {
		return true
	}
	err.Type = api.TypeInvalidRequest
	if err.Status == http.StatusUpgradeRequired {
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Sec-Websocket-Version", version)
		if r.ProtoMajor == 1 {
			w.Header().Set("Connection", "Upgrade")
		}
	}
	if r.ContentLength != 0 {
		w.Header().Set("Connection", "close") // the body is not waited for
	}
	err.Write(w)
	return false
}

func check(r *http.Request) *api.Error {
	invalid := func(message string) *api.Error {
		return &api.Error{Status: http.StatusBadRequest, Code: CodeInvalid, Message: message}
	}
	versions, keys := r.Header.Values("Sec-Websocket-Version"), r.Header.Values("Sec-Websocket-Key")
	switch {
	case r.Method != http.MethodGet || !websocket.IsWebSocketUpgrade(r):
		return &api.Error{Status: http.StatusUpgradeRequired, Code: CodeRequired, Message: "GET " + r.URL.Path + " is a WebSocket: send Connection: Upgrade and Upgrade: websocket"}
	case !r.ProtoAtLeast(1, 1):
		return invalid("a WebSocket needs HTTP/1.1")
	case r.ContentLength != 0:
		return invalid("a WebSocket's handshake has no body")
	case len(versions) != 1:
		return invalid("a WebSocket's handshake has one Sec-WebSocket-Version")
	case versions[0] != version:
		return &api.Error{Status: http.StatusUpgradeRequired, Code: CodeInvalid, Message: "the Sec-WebSocket-Version must be " + version}
	case len(keys) != 1:
		return invalid("a WebSocket's handshake has one Sec-WebSocket-Key")
	}
	if key, err := base64.StdEncoding.DecodeString(keys[0]); err != nil || len(key) != 16 {
		return invalid("the Sec-WebSocket-Key must be 16 bytes in base64")
	}
	return nil
}

// Options are a door's settings.
type Options struct {
	Timeout                 time.Duration // of the write that answers the handshake
	ReadBuffer, WriteBuffer int           // bytes; at least 1
	Pool                    websocket.BufferPool
	Protocol                string // the subprotocol that is agreed to; "": none
}

// Do answers a request that Check has passed and returns the connection. If it returns an error, it
// has answered or the connection is lost.
func Do(w http.ResponseWriter, r *http.Request, o Options) (*websocket.Conn, error) {
	up := websocket.Upgrader{
		HandshakeTimeout: o.Timeout, ReadBufferSize: o.ReadBuffer, WriteBufferSize: o.WriteBuffer, WriteBufferPool: o.Pool,
		CheckOrigin: func(*http.Request) bool { return true },
		Error: func(w http.ResponseWriter, _ *http.Request, status int, reason error) {
			(&api.Error{Status: status, Type: api.TypeInvalidRequest, Code: CodeInvalid, Message: reason.Error()}).Write(w)
		},
	}
	header := w.Header().Clone() // the id of the request, and what its key may still use
	if o.Protocol != "" {
		header.Set("Sec-Websocket-Protocol", o.Protocol)
	}
	h := &hijacker{ResponseWriter: w}
	ws, err := up.Upgrade(h, r, header)
	if err != nil {
		return nil, err
	}
	seen := h.tap // and not h, which holds all of the HTTP request
	ws.SetCloseHandler(func(code int, _ string) error {
		switch {
		case seen.short:
			code = websocket.CloseProtocolError
		case seen.badGateway:
			code = badGateway
		}
		_ = ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, ""), time.Now().Add(o.Timeout))
		return nil
	})
	return ws, nil
}

// Linger reads on for a moment if err, of a read, was a fault of the client that the library has
// answered with a close frame: to close with unread data would reset the connection and lose that
// frame.
func Linger(ws *websocket.Conn, err error, wait time.Duration, most int64) {
	if _, closed := errors.AsType[*websocket.CloseError](err); closed || !strings.HasPrefix(err.Error(), "websocket: ") {
		return
	}
	if errors.Is(err, websocket.ErrReadLimit) { // not answered where the length itself is impossible
		_ = ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseMessageTooBig, ""), time.Now().Add(wait))
	}
	if conn := ws.NetConn(); conn.SetReadDeadline(time.Now().Add(wait)) == nil {
		_, _ = io.CopyN(io.Discard, conn, most)
	}
}

// hijacker unwraps middleware to reach the connection, which the upgrader does not do, and taps it.
type hijacker struct {
	http.ResponseWriter
	tap *tap
}

// Hijack implements http.Hijacker.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.tap = &tap{Conn: conn}
	return h.tap, rw, nil
}
