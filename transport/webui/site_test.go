package webui

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"krater/transport/server"
)

// patience bounds every wait.
const patience = 20 * time.Second

// site is a server with the page of a fake pipeline.
type site struct {
	t    *testing.T
	fake *fake
	page *Page
	srv  *server.Server
	http *httptest.Server
}

func serve(t *testing.T, opt Options, so server.Options) *site {
	t.Helper()
	s := &site{t: t, fake: newFake()}
	s.srv = server.New(s.fake, so)
	opt.Owner, opt.AllowOrigin = s.srv.Owner, s.srv.OriginAllowed
	if opt.Every == 0 {
		opt.Every = 5 * time.Millisecond
	}
	s.page = New(s.fake, opt)
	s.page.Mount(s.srv.Open, s.srv.Route)
	s.http = httptest.NewServer(s.srv.Handler())
	t.Cleanup(s.http.Close)
	return s
}

func (s *site) get(path string, header ...string) (*http.Response, string) {
	return s.do(http.MethodGet, path, header...)
}

func (s *site) do(method, path string, header ...string) (*http.Response, string) {
	s.t.Helper()
	req, err := http.NewRequest(method, s.http.URL+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res, string(body)
}

// eye is a viewer.
type eye struct {
	t  *testing.T
	ws *websocket.Conn
}

func (s *site) dial(protocols ...string) (*websocket.Conn, *http.Response, error) {
	d := websocket.Dialer{Subprotocols: protocols, HandshakeTimeout: patience}
	return d.Dial("ws"+strings.TrimPrefix(s.http.URL, "http")+"/trace/ws", nil)
}

func (s *site) look() *eye {
	s.t.Helper()
	ws, _, err := s.dial("krater.trace")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { ws.Close() })
	return &eye{s.t, ws}
}

func (e *eye) say(text string) {
	e.t.Helper()
	if err := e.ws.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		e.t.Fatal(err)
	}
}

type message struct {
	Type     string
	Model    string
	Message  string
	Topology *topology
	State    *state
	ID       uint64
	For      string
	Lanes    []string
	Events   [][]any
	Paths    [][]any
	Gaps     [][]any
	Riders   [][]uint64
	Where    *shares
	Kept     []int64
	Older    bool
	History  []point
}

// next waits for a message that passes.
func (e *eye) next(pass func(*message) bool) *message {
	e.t.Helper()
	_ = e.ws.SetReadDeadline(time.Now().Add(patience))
	for {
		_, data, err := e.ws.ReadMessage()
		if err != nil {
			e.t.Fatal(err)
		}
		var m message
		if err := json.Unmarshal(data, &m); err != nil {
			e.t.Fatalf("%v in %.200s", err, data)
		}
		if pass(&m) {
			return &m
		}
	}
}

func (e *eye) of(kind string) *message {
	e.t.Helper()
	return e.next(func(m *message) bool { return m.Type == kind })
}
