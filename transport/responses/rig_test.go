package responses

import (
	"bytes"
	"context"
	"encoding/json/v2"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"krater/transport/enginetest"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// rig is a door on an in-memory network with the bubble's clock.
type rig struct {
	t      *testing.T
	engine *enginetest.Engine
	door   *Door
	server *httptest.Server
}

// inBubble runs a test on a fake clock. The bubble fails the test if one goroutine of the door, the
// server or a client is left at its end.
func inBubble(t *testing.T, opt Options, test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := enginetest.New()
		d := New(e, opt)
		r := &rig{t: t, engine: e, door: d, server: httptest.NewTestServer(t, d.Handler())}
		r.server.Client() // starts the network
		test(r)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = d.Shutdown(ctx) // cuts what the test left running
		if responses, sockets := d.Running(); responses+sockets > 0 {
			t.Errorf("after the shutdown %d responses and %d sockets run", responses, sockets)
		}
		if n := e.Open(); n != 0 {
			t.Errorf("%d engine streams are open at the end", n)
		}
	})
}

func (r *rig) netDial(ctx context.Context, network, addr string) (net.Conn, error) {
	return r.server.Client().Transport.(*http.Transport).DialContext(ctx, network, addr)
}

// client is a WebSocket client of the rig.
type client struct {
	t  *testing.T
	ws *websocket.Conn
}

// dial opens a WebSocket; it is closed at the end of the bubble.
func (r *rig) dial() *client {
	r.t.Helper()
	c, _, err := r.dialWith(nil)
	if err != nil {
		r.t.Fatalf("dial: %v", err)
	}
	return c
}

func (r *rig) dialWith(header http.Header) (*client, *http.Response, error) {
	dialer := websocket.Dialer{NetDialContext: r.netDial, HandshakeTimeout: time.Minute, EnableCompression: true}
	ws, answer, err := dialer.Dial("ws://example.com/v1/responses", header)
	if err != nil {
		return nil, answer, err
	}
	r.t.Cleanup(func() { ws.Close() })
	return &client{t: r.t, ws: ws}, answer, nil
}

func (c *client) send(frame string) {
	c.t.Helper()
	if err := c.ws.WriteMessage(websocket.TextMessage, []byte(frame)); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

// frame is a server event as a client reads it.
type frame struct {
	raw      string
	Type     string  `json:"type"`
	Sequence int     `json:"sequence_number"`
	StreamID string  `json:"stream_id"`
	Delta    string  `json:"delta"`
	Text     string  `json:"text"`
	Status   int     `json:"status"`
	Response *Object `json:"response"`
	Logprobs []struct {
		Token string `json:"token"`
	} `json:"logprobs"`
	Error struct {
		Type, Code, Message, Param string
		Headers                    map[string]string
	} `json:"error"`
}

func (c *client) recv() frame {
	c.t.Helper()
	_, data, err := c.ws.ReadMessage()
	if err != nil {
		c.t.Fatalf("recv: %v", err)
	}
	return parseFrame(c.t, data)
}

func parseFrame(t *testing.T, data []byte) frame {
	t.Helper()
	f := frame{raw: string(data)}
	if err := json.Unmarshal(data, &f, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return f
}

// want reads the next event and checks its type.
func (c *client) want(kind string) frame {
	c.t.Helper()
	f := c.recv()
	if f.Type != kind {
		c.t.Fatalf("got %s, want %s", f.raw, kind)
	}
	return f
}

// until reads events up to the first of that type.
func (c *client) until(kind string) frame {
	c.t.Helper()
	for {
		f := c.recv()
		if f.Type == kind {
			return f
		}
		if f.Type == "error" {
			c.t.Fatalf("got %s while waiting for %s", f.raw, kind)
		}
	}
}

// turn reads one response from created to its end.
func (c *client) turn() []frame {
	c.t.Helper()
	all := []frame{c.want("response.created")}
	for {
		f := c.recv()
		all = append(all, f)
		switch f.Type {
		case "response.completed", "response.incomplete", "response.failed":
			return all
		}
	}
}

// wantError reads an error event with that status and code.
func (c *client) wantError(status int, code string) frame {
	c.t.Helper()
	f := c.want("error")
	if f.Status != status || f.Error.Code != code || f.Error.Message == "" || f.Error.Type == "" {
		c.t.Fatalf("got %s, want the status %d and the code %s", f.raw, status, code)
	}
	return f
}

// wantClose reads until the connection ends and checks the close code.
func (c *client) wantClose(code int) {
	c.t.Helper()
	for {
		_, data, err := c.ws.ReadMessage()
		if err == nil {
			c.t.Logf("before the close: %.200s", data)
			continue
		}
		if !websocket.IsCloseError(err, code) {
			c.t.Fatalf("the connection ended with %v, want close code %d", err, code)
		}
		return
	}
}

// do sends an HTTP request.
func (r *rig) do(method, path, payload string) (int, string) {
	r.t.Helper()
	req, err := http.NewRequest(method, "http://example.com"+path, strings.NewReader(payload))
	if err != nil {
		r.t.Fatal(err)
	}
	if payload != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	answer, err := r.server.Client().Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer answer.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(answer.Body); err != nil {
		r.t.Fatal(err)
	}
	return answer.StatusCode, b.String()
}

// object sends a request that must succeed and gives the response object.
func (r *rig) object(method, path, payload string) *Object {
	r.t.Helper()
	status, answer := r.do(method, path, payload)
	if status != http.StatusOK {
		r.t.Fatalf("%s %s: %d %s", method, path, status, answer)
	}
	var o Object
	if err := json.Unmarshal([]byte(answer), &o); err != nil {
		r.t.Fatalf("%s: %v", answer, err)
	}
	return &o
}

// refusal sends a request that must fail and gives its error.
func (r *rig) refusal(method, path, payload string) (status int, code, param, message string) {
	r.t.Helper()
	status, answer := r.do(method, path, payload)
	var e struct {
		Error struct{ Type, Code, Param, Message string }
	}
	if err := json.Unmarshal([]byte(answer), &e, json.MatchCaseInsensitiveNames(true)); err != nil || status < 400 || e.Error.Type == "" {
		r.t.Fatalf("%s %s: %d %s (%v), want an error", method, path, status, answer, err)
	}
	return status, e.Error.Code, e.Error.Param, e.Error.Message
}

func (o *Object) text() string {
	var b strings.Builder
	for _, m := range o.Output {
		for _, p := range m.Content {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// messages returns the prompt of the i-th request that the engine took.
func (r *rig) messages(i int) string {
	r.t.Helper()
	all := r.engine.Requests()
	if i >= len(all) {
		r.t.Fatalf("the engine took %d requests, want more than %d", len(all), i)
	}
	return string(all[i].Prompt.Chat.Messages)
}

var anyID = regexp.MustCompile(`(resp|msg|rs|fc|call)_[0-9a-f]{32}`)

// golden compares with testdata/name, ids replaced by their order of coming.
func golden(t *testing.T, name, got string) {
	t.Helper()
	seen := map[string]string{}
	got = anyID.ReplaceAllStringFunc(got, func(id string) string {
		if seen[id] == "" {
			prefix, _, _ := strings.Cut(id, "_")
			seen[id] = fmt.Sprintf("%s_%d", prefix, len(seen)+1)
		}
		return seen[id]
	})
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got == string(want) {
		return
	}
	g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(g), len(w)) {
		if i >= len(g) || i >= len(w) || g[i] != w[i] {
			t.Fatalf("%s line %d:\n got %s\nwant %s", path, i+1, at(g, i), at(w, i))
		}
	}
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(end)"
}
