package webui

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"

	"krater/transport/api"
	"krater/transport/upgrade"
)

const (
	// askMax bounds a viewer's message.
	askMax = 4096
	// repliesMax bounds the messages that wait for a viewer besides the newest push.
	repliesMax = 4
	// closeWait bounds the wait for what a viewer sends after a fault.
	closeWait = time.Second
)

// viewer is one connection. The handler's goroutine reads, and another one writes.
type viewer struct {
	page  *Page
	ws    *websocket.Conn
	owner string
	peer  string
	wake  chan struct{} // capacity 1: there is something to send
	gone  chan struct{} // closed when the reader has ended

	visible, needFull bool // p.mu

	mu      sync.Mutex
	push    []byte // the newest that was not sent
	skipped int    // pushes in a row that took the place of one
	replies [][]byte
	end     string // why the connection is to be closed; "": it is not
}

// upgrade is GET /trace/ws.
func (p *Page) upgrade(w http.ResponseWriter, r *http.Request) {
	if !upgrade.Check(w, r, p.opt.AllowOrigin) {
		return
	}
	v := &viewer{page: p, owner: p.opt.Owner(r), peer: p.opt.Peer(r), wake: make(chan struct{}, 1), gone: make(chan struct{})}
	if !p.admit(v) {
		busy("too many viewers of the trace").Write(w)
		return
	}
	defer p.dismiss(v)
	protocol := ""
	for _, name := range websocket.Subprotocols(r) {
		if name == "krater.trace" { // a browser expects one of the subprotocols that it offered, and never the key
			protocol = name
		}
	}
	ws, err := upgrade.Do(w, r, upgrade.Options{Timeout: p.opt.WriteWait, ReadBuffer: 1024, WriteBuffer: 4096, Protocol: protocol})
	if err != nil { // the upgrader has answered
		return
	}
	v.ws = ws
	written := make(chan struct{})
	go func() {
		defer close(written)
		v.write()
	}()
	v.read()
	close(v.gone)
	<-written
}

func (p *Page) admit(v *viewer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := 0
	for o := range p.viewers {
		if o.peer == v.peer {
			own++
		}
	}
	if len(p.viewers) >= p.opt.MaxViewers || own >= api.ShareOf(v.peer, p.opt.MaxViewers) {
		return false
	}
	p.viewers[v] = struct{}{}
	return true
}

func (p *Page) dismiss(v *viewer) {
	p.show(v, false)
	p.mu.Lock()
	delete(p.viewers, v)
	p.mu.Unlock()
}

// ask is a request of a viewer.
type ask struct {
	Type    string `json:"type"`
	Visible bool   `json:"visible"` // of show
	N       int    `json:"n"`       // of steps: how many
	ID      uint64 `json:"id"`      // of request
}

func (v *viewer) read() {
	v.ws.SetReadLimit(askMax)
	alive := func(string) error { return v.ws.SetReadDeadline(time.Now().Add(v.page.opt.PongWait)) }
	_ = alive("")
	v.ws.SetPongHandler(alive)
	for {
		kind, data, err := v.ws.ReadMessage()
		if err != nil {
			upgrade.Linger(v.ws, err, closeWait, 4*askMax)
			return
		}
		_ = alive("")
		var a ask
		if kind == websocket.TextMessage && !utf8.Valid(data) {
			v.finish(websocket.CloseInvalidFramePayloadData, "the text is not valid UTF-8")
			return
		}
		if kind != websocket.TextMessage || json.Unmarshal(data, &a) != nil {
			v.fault("want JSON text")
			continue
		}
		switch a.Type {
		case "show":
			v.page.show(v, a.Visible)
		case "steps", "request":
			v.answer(&a)
		default:
			v.fault("unknown type " + strings.ToValidUTF8(a.Type, "?"))
		}
	}
}

func (v *viewer) answer(a *ask) {
	g := v.page.src.Trace()
	if g == nil {
		v.fault("the model is loading")
		return
	}
	v.reply(encode(v.page.answer(g, a)))
}

func (v *viewer) fault(message string) {
	v.reply(encode(struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}{"error", message}))
}

// reply queues an answer. Who asks on without reading is sent away.
func (v *viewer) reply(data []byte) {
	v.mu.Lock()
	if len(v.replies) >= repliesMax {
		v.end = "answers are not read"
	} else {
		v.replies = append(v.replies, data)
	}
	v.mu.Unlock()
	v.poke()
}

// missed reports whether the last push was not sent, so that the next must not build on it.
func (v *viewer) missed() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.push != nil
}

// offer leaves a push to be sent, in place of one that was not.
func (v *viewer) offer(data []byte) {
	v.mu.Lock()
	if v.push == nil {
		v.skipped = 0
	} else if v.skipped++; v.skipped > v.page.opt.MaxSkipped {
		v.end = "the viewer reads too slowly"
	}
	v.push = data
	v.mu.Unlock()
	v.poke()
}

func (v *viewer) poke() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

func (v *viewer) write() {
	defer v.ws.Close() // ends the reader too
	ping := time.NewTicker(v.page.opt.Ping)
	defer ping.Stop()
	for {
		select {
		case <-v.wake:
			if !v.flush() {
				return
			}
		case <-ping.C:
			if v.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(v.page.opt.WriteWait)) != nil {
				return
			}
		case <-v.page.opt.Draining:
			v.finish(websocket.CloseGoingAway, "the server is shutting down")
			return
		case <-v.gone:
			return
		}
	}
}

// flush sends what there is; false: the connection has ended.
func (v *viewer) flush() bool {
	for {
		v.mu.Lock()
		end, data := v.end, v.push
		v.push = nil
		if len(v.replies) > 0 && data == nil {
			data, v.replies = v.replies[0], v.replies[1:]
		}
		v.mu.Unlock()
		switch {
		case end != "":
			v.page.opt.Log.Debug().Str("why", end).Msg("a viewer of the trace was sent away")
			v.finish(websocket.CloseTryAgainLater, end)
			return false
		case data == nil:
			return true
		}
		_ = v.ws.SetWriteDeadline(time.Now().Add(v.page.opt.WriteWait))
		if v.ws.WriteMessage(websocket.TextMessage, data) != nil {
			return false
		}
	}
}

func (v *viewer) finish(code int, why string) {
	_ = v.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, why), time.Now().Add(time.Second))
}
