package responses

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"krater/transport/enginetest"
)

const ask = `{"type":"response.create","input":"hi"}`

// TestBadFrames: what is wrong with a frame becomes an error event and the socket stays open.
func TestBadFrames(t *testing.T) {
	for _, c := range []struct {
		name, frame        string
		status             int
		code, param, lane_ string
	}{
		{"not json", `hello`, 400, "invalid_json", "", ""},
		{"empty", ``, 400, "invalid_json", "", ""},
		{"half", `{"type":"response.create","input":"a`, 400, "invalid_json", "input", ""},
		{"trailing bytes", ask + `{}`, 400, "invalid_json", "", ""},
		{"not an object", `[1]`, 400, "invalid_type", "", ""},
		{"no type", `{"input":"hi"}`, 400, "missing_required_parameter", "type", ""},
		{"type is a number", `{"type":3}`, 400, "invalid_type", "type", ""},
		{"unknown type", `{"type":"session.update","stream_id":"a"}`, 400, "unknown_event_type", "type", "a"},
		{"unknown field", `{"type":"response.create","input":"hi","inptu":1,"stream_id":"b"}`, 400, "unknown_parameter", "inptu", "b"},
		{"duplicate key", `{"type":"response.create","input":"hi","input":"ho"}`, 400, "invalid_json", "input", ""},
		{"lone surrogate", `{"type":"response.create","input":"\ud800"}`, 400, "invalid_json", "input", ""},
		{"bad stream id", `{"type":"response.create","input":"hi","stream_id":"a b"}`, 400, "invalid_value", "stream_id", ""},
		{"empty stream id", `{"type":"response.create","input":"hi","stream_id":""}`, 400, "invalid_value", "stream_id", ""},
		{"no such model", `{"type":"response.create","model":"gpt-4","input":"hi"}`, 404, "model_not_found", "model", ""},
		{"no input", `{"type":"response.create"}`, 400, "missing_required_parameter", "input", ""},
		{"unknown previous", `{"type":"response.create","input":"hi","previous_response_id":"resp_x"}`, 400, "previous_response_not_found", "previous_response_id", ""},
		{"too long", `{"type":"response.create","input":"` + strings.Repeat("x", 300) + `"}`, 400, "context_length_exceeded", "input", ""},
		{"cancel nothing", `{"type":"response.cancel"}`, 409, "response_cancel_not_active", "", ""},
		{"cancel unknown", `{"type":"response.cancel","response_id":"resp_x","stream_id":"c"}`, 404, "response_not_found", "response_id", "c"},
		{"cancel field", `{"type":"response.cancel","id":"resp_x"}`, 400, "unknown_parameter", "id", ""},
		{"resume nothing", `{"type":"response.resume"}`, 400, "missing_required_parameter", "response_id", ""},
		{"resume unknown", `{"type":"response.resume","response_id":"resp_x"}`, 404, "response_not_found", "response_id", ""},
		{"deep", `{"type":"response.create","input":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`, 400, "invalid_json", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, Options{}, func(r *rig) {
				ws := r.dial()
				ws.send(c.frame)
				f := ws.wantError(c.status, c.code)
				if f.Error.Param != c.param || f.StreamID != c.lane_ {
					t.Errorf("got the param %q and the stream_id %q, want %q and %q: %s", f.Error.Param, f.StreamID, c.param, c.lane_, f.raw)
				}
				ws.send(ask)
				ws.until("response.completed")
			})
		})
	}
}

func TestBinaryFrameKeepsTheSocketOpen(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		c := r.dial()
		if err := c.ws.WriteMessage(websocket.BinaryMessage, []byte(ask)); err != nil {
			t.Fatal(err)
		}
		c.wantError(400, "invalid_json")
		c.send(ask)
		c.turn()
	})
}

func TestInvalidUTF8Closes1007(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		c := r.dial()
		c.send("{\"type\":\"response.create\",\"input\":\"\xff\"}")
		c.wantClose(websocket.CloseInvalidFramePayloadData)
		if n := len(r.engine.Requests()); n != 0 {
			t.Errorf("the engine took %d requests", n)
		}
	})
}

func TestTooBigCloses1009(t *testing.T) {
	inBubble(t, Options{MaxMessage: 1000}, func(r *rig) {
		for _, fragments := range []int{1, 3} {
			c := r.dial()
			w, err := c.ws.NextWriter(websocket.TextMessage)
			if err != nil {
				t.Fatal(err)
			}
			for range fragments { // each larger than the write buffer: a frame of its own
				_, _ = w.Write(bytes.Repeat([]byte("x"), 5000))
			}
			_ = w.Close()
			c.wantClose(websocket.CloseMessageTooBig)
		}
	})
}

// TestFragments sends one message in many frames with a ping in between.
func TestFragments(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		dialer := websocket.Dialer{NetDialContext: r.netDial, WriteBufferSize: 16}
		ws, _, err := dialer.Dial("ws://example.com/v1/responses", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer ws.Close()
		c := &client{t: t, ws: ws}
		pongs := 0
		ws.SetPongHandler(func(data string) error {
			if data == "between" {
				pongs++
			}
			return nil
		})
		w, err := ws.NextWriter(websocket.TextMessage)
		if err != nil {
			t.Fatal(err)
		}
		long := strings.Repeat("schön ", 20)
		for i, piece := range []string{`{"type":"response.create",`, `"input":"` + long, `"}`} {
			if _, err := w.Write([]byte(piece)); err != nil {
				t.Fatal(err)
			}
			if i == 1 {
				if err := ws.WriteControl(websocket.PingMessage, []byte("between"), time.Now().Add(time.Second)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		c.turn()
		if got := r.messages(0); got != `[{"role":"user","content":"`+long+`"}]` {
			t.Errorf("the engine got %s", got)
		}
		if pongs != 1 {
			t.Errorf("%d pongs, want 1", pongs)
		}
	})
}

// TestPingDuringPrefill: a client's ping is answered while the engine is busy with the prompt, also
// while it has not even accepted the request.
func TestPingDuringPrefill(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		gate := make(chan struct{})
		r.engine.Play(enginetest.Gated(enginetest.Text("a"), 2, gate))
		c := r.dial()
		c.send(ask)
		c.want("response.created")
		pong := make(chan string, 1)
		c.ws.SetPongHandler(func(data string) error {
			pong <- data
			close(gate)
			return nil
		})
		if err := c.ws.WriteControl(websocket.PingMessage, []byte("there?"), time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		c.until("response.completed") // opens only with the pong
		if got := <-pong; got != "there?" {
			t.Errorf("the pong carries %q", got)
		}
	})
}

func TestServerPings(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		c := r.dial()
		start := time.Now()
		var times []time.Duration
		answer := c.ws.PingHandler()
		c.ws.SetPingHandler(func(data string) error {
			times = append(times, time.Since(start))
			if len(times) == 6 {
				return fmt.Errorf("enough")
			}
			return answer(data)
		})
		if _, _, err := c.ws.ReadMessage(); err == nil || err.Error() != "enough" {
			t.Fatalf("the connection ended with %v", err)
		}
		for i, at := range times {
			if want := time.Duration(i+1) * 25 * time.Second; at != want {
				t.Errorf("ping %d came after %v, want %v", i, at, want)
			}
		}
	})
}

// TestSilentClientIsDropped: no pong for 60 s ends the connection and the answer that only it
// wanted.
func TestSilentClientIsDropped(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		r.engine.Play(enginetest.Gated(enginetest.Text("a"), 2, make(chan struct{})))
		c := r.dial()
		c.send(ask)
		c.until("response.in_progress")
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if r.engine.Open() != 1 {
			t.Fatal("dropped before its time")
		}
		time.Sleep(2 * time.Second) // the client reads nothing, so it answers no ping
		synctest.Wait()
		if got := r.engine.Open(); got != 0 {
			t.Errorf("%d streams are open after the client fell silent", got)
		}
		if _, sockets := r.door.Running(); sockets != 0 {
			t.Errorf("%d sockets are left", sockets)
		}
	})
}

func TestConnectionLife(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		gate := make(chan struct{})
		r.engine.Play(enginetest.Gated(enginetest.Text("a"), 2, gate))
		c := r.dial()
		start := time.Now()
		answered := make(chan struct{})
		go func() { // keeps the connection alive by reading
			defer close(answered)
			c.send(`{"type":"response.create","input":"hi","stream_id":"long"}`)
			c.until("response.created")
			c.until("response.in_progress")
			c.wantError(400, "websocket_connection_limit_reached")
			c.send(ask)
			c.wantError(400, "websocket_connection_limit_reached")
			close(gate)
			c.until("response.completed")
			c.wantClose(websocket.CloseNormalClosure)
		}()
		<-answered
		if took := time.Since(start); took != time.Hour {
			t.Errorf("the connection lived %v, want an hour", took)
		}
	})
}

func TestUpgradeRules(t *testing.T) {
	allow := func(req *http.Request) bool {
		return sameOrigin(req) || req.Header.Get("Origin") == "https://app.example"
	}
	inBubble(t, Options{AllowOrigin: allow, MaxSockets: 2}, func(r *rig) {
		for origin, ok := range map[string]bool{
			"": true, "http://example.com": true, "https://EXAMPLE.com": true, "https://app.example": true,
			"https://evil.example": false, "null": false, "http://example.com.evil": false, "https://app.example:8443": false,
		} {
			header := http.Header{"Openai-Beta": {"responses_websockets=2026-02-06"}}
			if origin != "" {
				header.Set("Origin", origin)
			}
			c, answer, err := r.dialWith(header)
			if (err == nil) != ok {
				t.Errorf("origin %q: %v", origin, err)
			}
			if err != nil && answer.StatusCode != http.StatusForbidden {
				t.Errorf("origin %q: status %d", origin, answer.StatusCode)
			}
			if err == nil {
				c.ws.Close()
				synctest.Wait()
			}
		}
		c, answer, err := r.dialWith(http.Header{"Sec-Websocket-Protocol": {"openai-insecure-api-key.sk-1, realtime, other"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := answer.Header.Get("Sec-Websocket-Protocol"); got != "realtime" {
			t.Errorf("the subprotocol is %q", got)
		}
		if got := answer.Header.Get("Sec-Websocket-Extensions"); got != "" {
			t.Errorf("the extension %q was agreed to", got)
		}
		r.dial()
		if _, answer, err := r.dialWith(nil); err == nil || answer.StatusCode != http.StatusServiceUnavailable || answer.Header.Get("Retry-After") == "" {
			t.Errorf("the third of two connections: %v", err)
		}
		c.ws.Close()
		synctest.Wait()
		r.dial()
		if status, _, _, _ := r.refusal("GET", "/v1/responses", ""); status != http.StatusUpgradeRequired {
			t.Errorf("GET without Upgrade: %d", status)
		}
	})
}

// TestErrorFlood: a client that sends rubbish and reads nothing is closed.
func TestErrorFlood(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		s := &socket{door: r.door, wake: make(chan struct{}, 1)}
		for range maxErrors + 1 {
			s.handle([]byte("{}"), func() {})
		}
		if len(s.errors) != maxErrors || s.ending == nil || s.ending.code != websocket.ClosePolicyViolation {
			t.Errorf("%d errors wait, ending %v", len(s.errors), s.ending)
		}
	})
}

// TestRFC6455: the handshake and the close codes follow package upgrade.
func TestRFC6455(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		req, err := http.NewRequest("GET", "http://example.com/v1/responses", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{
			"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}, "Sec-Websocket-Version": {"8"},
		}
		res, err := r.server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusUpgradeRequired || res.Header.Get("Sec-Websocket-Version") != "13" {
			t.Errorf("version 8: %s %v", res.Status, res.Header)
		}
		c := r.dial()
		if err := c.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1014, ""), time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		// The client's library does not know the code that comes back.
		if _, _, err := c.ws.ReadMessage(); err == nil || !strings.Contains(err.Error(), "1014") {
			t.Errorf("close code 1014 was answered with %v", err)
		}
	})
}
