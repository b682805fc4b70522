package responses

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"krater/actors/engine"
	"krater/transport/api"
	"krater/transport/enginetest"
)

// ledger records the work that a door reports.
type ledger struct {
	mu    sync.Mutex
	full  bool
	peers []string
	taken int64
}

func (l *ledger) work(_ context.Context, peer string, bytes int64) (func(), *api.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full {
		return nil, &api.Error{Status: 429, Type: api.TypeRateLimit, Code: api.CodeOverloaded, Message: "full", RetryAfter: time.Second}
	}
	l.peers = append(l.peers, peer)
	l.taken += bytes
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.taken -= bytes
	}), nil
}

func (l *ledger) state() (asked int, taken int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.peers), l.taken
}

// TestLongMessagesAreWork: a long WebSocket message asks before it is read, and is work until the
// engine has its request, whatever becomes of it. Where there is no room the message is dropped and
// told of, and the connection is good.
func TestLongMessagesAreWork(t *testing.T) {
	var l ledger
	peer := func(r *http.Request) string { return "peer of " + r.Header.Get("X-Api-Key") }
	inBubble(t, Options{Work: l.work, Peer: peer}, func(r *rig) {
		slow := &slowTokens{r.engine, make(chan struct{})}
		r.door.engine = slow
		c, _, err := r.dialWith(http.Header{"X-Api-Key": {"a"}})
		if err != nil {
			t.Fatal(err)
		}
		long := strings.Repeat("x", smallMessage+1)
		prepare := func(text string) {
			c.send(`{"type":"response.create","generate":false,"input":"` + text + `"}`)
		}
		prepare(long)
		synctest.Wait()
		if _, taken := l.state(); taken != r.door.opt.MaxMessage || l.peers[0] != "peer of a" {
			t.Errorf("while it is tokenized %d bytes of %v are work", taken, l.peers)
		}
		close(slow.gate)
		c.until("response.completed")
		for _, bad := range []string{
			`{"type":"` + long + `"}`, `{"type":"response.cancel","response_id":"` + long + `"}`, long,
			`{"type":"response.create","model":"` + long + `","input":"hi"}`,
		} {
			c.send(bad)
			c.want("error")
		}
		synctest.Wait()
		if asked, taken := l.state(); asked != 5 || taken != 0 {
			t.Errorf("%d asked, %d bytes are work at the end", asked, taken)
		}
		l.mu.Lock()
		l.full = true
		l.mu.Unlock()
		prepare(strings.Repeat("x", 1<<20))
		if f := c.wantError(429, "overloaded"); f.Error.Headers["retry-after"] != "1" {
			t.Errorf("got %s", f.raw)
		}
		prepare("short")
		c.until("response.completed")
	})
}

// TestPastIsWork: a short request that continues a long conversation is work of the length of all of it.
func TestPastIsWork(t *testing.T) {
	var l ledger
	inBubble(t, Options{Work: l.work}, func(r *rig) {
		r.engine.SetInfo(func(i *engine.Info) { i.Context = 1 << 20 })
		long := strings.Repeat("x", 100_000)
		first := r.object("POST", "/v1/responses", `{"input":"`+long+`"}`)
		slow := &slowSubmit{r.engine, make(chan struct{})}
		r.door.engine = slow
		next := `"previous_response_id":"` + first.ID + `","input":"go on"`
		c := r.dial()
		c.send(`{"type":"response.create",` + next + `}`)
		synctest.Wait()
		if _, taken := l.state(); taken < 100_000 {
			t.Errorf("%d bytes are work", taken)
		}
		close(slow.gate)
		c.turn()
		r.object("POST", "/v1/responses", "{"+next+"}")
		synctest.Wait()
		if _, taken := l.state(); taken != 0 {
			t.Errorf("%d bytes are work at the end", taken)
		}
		l.full = true
		c.send(`{"type":"response.create",` + next + `}`)
		c.wantError(429, "overloaded")
		if status, code, _, _ := r.refusal("POST", "/v1/responses", "{"+next+"}"); status != 429 {
			t.Errorf("%d %s", status, code)
		}
	})
}

// slowSubmit is an engine that takes requests when the gate opens.
type slowSubmit struct {
	*enginetest.Engine
	gate chan struct{}
}

func (e *slowSubmit) Submit(ctx context.Context, r *engine.Request) (engine.Stream, error) {
	<-e.gate
	return e.Engine.Submit(ctx, r)
}

// TestBackgroundIsWork: a request in the background is work until the engine has it, also when its
// client has left before.
func TestBackgroundIsWork(t *testing.T) {
	var l ledger
	read := func(w http.ResponseWriter, r *http.Request) ([]byte, func(), *api.Error) {
		done, err := l.work(r.Context(), "", 1)
		if err != nil {
			return nil, nil, err
		}
		data, err := readBody(w, r, 1<<20)
		return data, done, err
	}
	inBubble(t, Options{ReadBody: read}, func(r *rig) {
		slow := &slowSubmit{r.engine, make(chan struct{})}
		r.door.engine = slow
		ctx, leave := context.WithCancel(context.Background())
		req, err := http.NewRequestWithContext(ctx, "POST", "http://example.com/v1/responses", strings.NewReader(`{"input":"hi","background":true}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		left := make(chan struct{})
		go func() {
			defer close(left)
			if res, err := r.server.Client().Do(req); err == nil {
				res.Body.Close()
				t.Errorf("it is answered with %d", res.StatusCode)
			}
		}()
		synctest.Wait()
		leave()
		<-left
		synctest.Wait()
		if asked, taken := l.state(); asked != 1 || taken != 1 {
			t.Errorf("%d requests are %d bytes of work", asked, taken)
		}
		close(slow.gate)
		synctest.Wait()
		if _, taken := l.state(); taken != 0 {
			t.Errorf("%d bytes of work at the end", taken)
		}
		for _, bad := range []string{"{", `{"input":7}`, `{"input":"hi","model":"other"}`} {
			r.refusal("POST", "/v1/responses", bad)
		}
		synctest.Wait()
		if asked, taken := l.state(); asked != 4 || taken != 0 {
			t.Errorf("%d requests, and %d bytes of work after refused ones", asked, taken)
		}
	})
}

// TestSlowMessage: a message that has begun must arrive, whatever comes in between: pings, or
// fragments of no length.
func TestSlowMessage(t *testing.T) {
	for _, between := range [][]byte{{0x89, 0x80, 0, 0, 0, 0}, {0, 0x80, 0, 0, 0, 0}} {
		slowMessage(t, between)
	}
}

func slowMessage(t *testing.T, between []byte) {
	inBubble(t, Options{}, func(r *rig) {
		c := r.dial()
		w, err := c.ws.NextWriter(websocket.TextMessage)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, 10_000)); err != nil {
			t.Fatal(err)
		}
		began, over := time.Now(), make(chan struct{})
		defer close(over)
		go func() {
			for {
				if _, err := c.ws.NetConn().Write(between); err != nil {
					return
				}
				select {
				case <-time.After(5 * time.Second):
				case <-over:
					return
				}
			}
		}()
		if _, _, err := c.ws.ReadMessage(); err == nil {
			t.Fatal("there is an answer to half a message")
		}
		if took := time.Since(began); took < 25*time.Second || took > 35*time.Second {
			t.Errorf("the connection ended after %v", took)
		}
	})
}

// TestPeersShareADoor: one peer takes neither all sockets nor all requests that prepare.
func TestPeersShareADoor(t *testing.T) {
	peer := func(r *http.Request) string { return r.Header.Get("X-Api-Key") }
	inBubble(t, Options{Peer: peer, MaxSockets: 4}, func(r *rig) {
		slow := &slowTokens{r.engine, make(chan struct{})}
		r.door.engine = slow
		of := func(key string) (*client, *http.Response, error) { return r.dialWith(http.Header{"X-Api-Key": {key}}) }
		var c *client
		for range 3 {
			var err error
			if c, _, err = of("a"); err != nil {
				t.Fatal(err)
			}
		}
		if _, answer, err := of("a"); err == nil || answer.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("the fourth of one: %v", err)
		}
		other, _, err := of("b")
		if err != nil {
			t.Fatal(err)
		}
		for i := range maxWarming {
			c.send(fmt.Sprintf(`{"type":"response.create","stream_id":"s%d","generate":false,"input":"hi"}`, i))
		}
		for range maxWarming / 4 {
			c.wantError(429, "overloaded")
		}
		other.send(`{"type":"response.create","generate":false,"input":"hi"}`)
		synctest.Wait()
		if n := r.door.warming.Held("b"); n != 1 {
			t.Errorf("%d requests of the other prepare, want 1", n)
		}
		for range maxReads - maxReads/4 {
			if r.door.reads.Take("") == nil { // of a request without a key
				t.Fatal("no place to read")
			}
		}
		if status, code, _, _ := r.refusal("GET", "/v1/responses/resp_1", ""); status != 404 {
			t.Errorf("with room to read: %d %s", status, code)
		}
		for range maxReads / 4 {
			r.door.reads.Take("")
		}
		if status, code, _, _ := r.refusal("GET", "/v1/responses/resp_1", ""); status != 429 || code != "overloaded" {
			t.Errorf("without: %d %s", status, code)
		}
		close(slow.gate)
		other.until("response.completed")
		for range maxWarming - maxWarming/4 {
			c.until("response.completed")
		}
	})
}

// TestNoCompression: a compressed message could be any number of times longer than its frames. It
// is not offered, and a frame that claims to be one ends the connection.
func TestNoCompression(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		c, answer, err := r.dialWith(nil) // which offers it
		if err != nil {
			t.Fatal(err)
		}
		if got := answer.Header.Get("Sec-Websocket-Extensions"); got != "" {
			t.Errorf("the server agrees to %q", got)
		}
		if _, err := c.ws.NetConn().Write([]byte{0xC1, 0x81, 0, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		c.wantClose(websocket.CloseProtocolError)
	})
}
