package responses

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"krater/actors/engine"
	"krater/transport/enginetest"
)

// steady plays n pieces, one a millisecond.
func steady(piece string, n int) enginetest.Script {
	return func(i int) (enginetest.Step, bool) {
		if i == n {
			return enginetest.Step{Event: engine.Event{Kind: engine.Done, Finish: engine.FinishStop}}, true
		}
		time.Sleep(time.Millisecond)
		return enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Text: piece}}, i < n
	}
}

// dialNarrow opens a WebSocket whose network buffers hold only the given number of bytes.
func (r *rig) dialNarrow(bytes int) *client {
	r.t.Helper()
	dialer := websocket.Dialer{NetDialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := r.netDial(ctx, network, addr)
		if err == nil {
			conn.(interface{ SetReadBufferSize(int) }).SetReadBufferSize(bytes)
		}
		return conn, err
	}}
	ws, _, err := dialer.Dial("ws://example.com/v1/responses", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { ws.Close() })
	return &client{t: r.t, ws: ws}
}

// TestStuckClient: one client stops reading. It loses its connection when a write runs into its
// deadline, its answer ends then, and another client on the same door is never late.
func TestStuckClient(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		r.engine.Play(steady("12345678", 30_000))
		stuck := r.dialNarrow(4096)
		stuck.send(ask)
		synctest.Wait() // its stream is the first
		good := r.dial()
		start := time.Now()
		good.send(ask)
		good.want("response.created")
		for text := 0; text < 30_000*8; {
			f := good.until("response.output_text.delta")
			text += len(f.Delta)
			if late := time.Since(start) - time.Duration(text/8)*time.Millisecond; late > 2*time.Millisecond {
				t.Fatalf("%d bytes came %v late", text, late)
			}
		}
		good.until("response.completed")
		if n := r.engine.Streams()[0].Ending(); n != enginetest.Cancelled && n != enginetest.Closed {
			t.Errorf("the stuck client's stream is %q after 30 s", n)
		}
		if _, sockets := r.door.Running(); sockets != 1 {
			t.Errorf("%d sockets are open, want the good one", sockets)
		}
	})
}

// TestStuckFollower: two connections read one response, and the one that does not read does not delay
// the other one.
func TestStuckFollower(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		r.engine.Play(steady("12345678", 8000))
		stuck := r.dialNarrow(4096)
		stuck.send(`{"type":"response.create","input":"hi","stream_id":"a"}`)
		start := time.Now()
		id := stuck.want("response.created").Response.ID
		good := r.dial()
		good.send(`{"type":"response.resume","response_id":"` + id + `"}`)
		good.want("response.created")
		for text := 0; text < 8000*8; {
			text += len(good.until("response.output_text.delta").Delta)
			if late := time.Since(start) - time.Duration(text/8)*time.Millisecond; late > 3*time.Millisecond {
				t.Fatalf("%d bytes came %v late", text, late)
			}
		}
		if end := good.until("response.completed"); len(end.Response.text()) != 8000*8 {
			t.Errorf("the text has %d bytes", len(end.Response.text()))
		}
	})
}

// TestStuckHTTPClient is TestStuckClient over server-sent events.
func TestStuckHTTPClient(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		r.engine.Play(steady("12345678", 30_000))
		conn, err := r.netDial(context.Background(), "tcp", "example.com")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.(interface{ SetReadBufferSize(int) }).SetReadBufferSize(4096)
		payload := `{"stream":true,"input":"hi"}`
		fmt.Fprintf(conn, "POST /v1/responses HTTP/1.1\r\nHost: example.com\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(payload), payload)
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if r.engine.Open() != 1 {
			t.Fatal("dropped before its time")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if r.engine.Open() != 0 {
			t.Error("the stream of a stuck client is open")
		}
	})
}

// TestSlowClientIsDropped: one that reads, but never catches up, is closed with 1013 at a bounded
// backlog.
func TestSlowClientIsDropped(t *testing.T) {
	inBubble(t, Options{MaxBacklog: 32 << 10}, func(r *rig) {
		r.engine.Play(steady(strings.Repeat("x", 64), 60_000))
		c := r.dialNarrow(4096)
		start := time.Now()
		c.send(ask)
		for {
			_, _, err := c.ws.ReadMessage()
			if websocket.IsCloseError(err, websocket.CloseTryAgainLater) {
				break
			}
			if err != nil {
				t.Fatalf("after %v: %v", time.Since(start), err)
			}
			time.Sleep(400 * time.Millisecond)
		}
		synctest.Wait()
		if r.engine.Open() != 0 {
			t.Error("its stream is open")
		}
	})
}

// TestLateClientGetsJoinedDeltas: what waited comes as few frames with the whole text, in order.
func TestLateClientGetsJoinedDeltas(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		r.engine.Play(steady("äbc ", 5000))
		c := r.dialNarrow(4096)
		c.send(ask)
		time.Sleep(6 * time.Second)
		text, deltas, last := "", 0, -1
		for {
			f := c.recv()
			if f.Sequence <= last {
				t.Fatalf("event %d after %d", f.Sequence, last)
			}
			last = f.Sequence
			if len(f.raw) > maxJoined+1000 && f.Type == "response.output_text.delta" {
				t.Errorf("a delta has %d bytes", len(f.raw))
			}
			if text += f.Delta; f.Delta != "" {
				deltas++
			}
			if f.Type == "response.completed" {
				break
			}
		}
		if text != strings.Repeat("äbc ", 5000) || deltas > 200 {
			t.Errorf("%d bytes came in %d deltas", len(text), deltas)
		}
	})
}

// TestReplayIsNoBacklog: a long answer that is resumed may wait for its reader.
func TestReplayIsNoBacklog(t *testing.T) {
	inBubble(t, Options{MaxBacklog: 1000}, func(r *rig) {
		r.engine.Play(steady(strings.Repeat("y", 100), 2000))
		o := r.object("POST", "/v1/responses", `{"input":"hi"}`)
		c := r.dialNarrow(4096)
		c.send(`{"type":"response.resume","response_id":"` + o.ID + `"}`)
		time.Sleep(5 * time.Second)
		all := c.turn()
		if end := all[len(all)-1]; end.Type != "response.completed" || end.Response.text() != o.text() {
			t.Errorf("the replay ends with %.200s", end.raw)
		}
	})
}

// slowConn reads at a limited number of bytes per second.
type slowConn struct {
	net.Conn
	rate int
}

func (c slowConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p[:min(len(p), 4096)])
	time.Sleep(time.Duration(n) * time.Second / time.Duration(c.rate))
	return n, err
}

// TestLargeEvents: a client that reads slowly, but reads, gets events whole that each take it
// longer than a write may, over a WebSocket and as server-sent events.
func TestLargeEvents(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		r.engine.Play(enginetest.Text(strings.Repeat("z", 1<<20)))
		o := r.object("POST", "/v1/responses", `{"input":"hi"}`)
		dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := r.netDial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			conn.(interface{ SetReadBufferSize(int) }).SetReadBufferSize(4096)
			return slowConn{conn, 32 << 10}, nil
		}
		start := time.Now()
		dialer := websocket.Dialer{NetDialContext: dial}
		ws, _, err := dialer.Dial("ws://example.com/v1/responses", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer ws.Close()
		c := &client{t: t, ws: ws}
		c.send(`{"type":"response.resume","response_id":"` + o.ID + `"}`)
		if all := c.turn(); all[len(all)-1].Response.text() != o.text() {
			t.Error("the text came in pieces that do not fit")
		}
		if took := time.Since(start); took < 2*time.Minute {
			t.Errorf("it took %v: not slow", took)
		}
		slow := &http.Client{Transport: &http.Transport{DialContext: dial}}
		defer slow.CloseIdleConnections()
		res, err := slow.Get("http://example.com/v1/responses/" + o.ID + "?stream=true")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		data, err := io.ReadAll(res.Body)
		if err != nil || strings.Count(string(data), "event: ") != 10 || !strings.Contains(string(data), "response.completed") {
			t.Errorf("%d bytes: %v", len(data), err)
		}
	})
}

// TestChurn: clients on a real network that come, stream and go at random leave nothing behind: no
// stream, no response, no goroutine.
func TestChurn(t *testing.T) {
	before := runtime.NumGoroutine()
	e := enginetest.New()
	e.Choose(func(req *engine.Request) (enginetest.Script, error) {
		if strings.Contains(string(req.Prompt.Chat.Messages), "forever") {
			return steady("x", 1<<30), nil
		}
		return enginetest.Text(strings.Split("a b c d e f g h", " ")...), nil
	})
	d := New(e, Options{WriteWait: 200 * time.Millisecond, MaxBacklog: 64})
	server := httptest.NewServer(d.Handler())
	var clients sync.WaitGroup
	for i := range 60 {
		clients.Add(1)
		go func() {
			defer clients.Done()
			churn(t, server.URL, rand.New(rand.NewPCG(uint64(i), 7)))
		}()
	}
	clients.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := e.WaitOpen(ctx, 0); err != nil {
		t.Error(err)
	}
	if err := d.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	server.Close()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

// churn is one client's visit.
func churn(t *testing.T, url string, random *rand.Rand) {
	ws, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(url, "http")+"/v1/responses", nil)
	if err != nil {
		t.Error(err)
		return
	}
	defer ws.Close()
	if tcp, ok := ws.NetConn().(*net.TCPConn); ok && random.IntN(2) == 0 {
		_ = tcp.SetReadBuffer(1024)
	}
	for range 1 + random.IntN(3) {
		text := []string{"short", "forever"}[random.IntN(2)]
		if err := ws.WriteMessage(websocket.TextMessage, []byte(`{"type":"response.create","input":"`+text+`"}`)); err != nil {
			return // closed for being slow
		}
		for range random.IntN(30) {
			_, data, err := ws.ReadMessage()
			if err != nil {
				return
			}
			if f := parseFrame(t, data); f.Type == "response.completed" {
				if f.Response.text() != "abcdefgh" {
					t.Errorf("an answer is %q", f.Response.text())
				}
				break
			}
		}
		if random.IntN(4) == 0 { // stays without reading
			time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
		}
	}
}
