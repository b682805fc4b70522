package main

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/cmd/krater/keyring"
	"krater/transport/enginetest"
	"krater/transport/server"
)

// TestBrowserKeys: a page, which can set no Authorization, opens WebSockets with its key as a
// subprotocol, in either form. Origins are checked all the same, and the key is not logged or sent back.
func TestBrowserKeys(t *testing.T) {
	s := open(t, "--api-keys", write(t, "keys", "first-secret-key\n"), "--origins", "https://app.example", "--log-level", "debug")
	encoded := func(key string) string { return "krater-key." + base64.RawURLEncoding.EncodeToString([]byte(key)) }
	for _, c := range []struct {
		protocols, origin string
		status            int
	}{
		{"realtime, " + encoded("first-secret-key"), s.base, 101},
		{encoded("first-secret-key") + ", realtime", "https://app.example", 101},
		{"realtime, openai-insecure-api-key.first-secret-key", "https://app.example", 101},
		{"realtime, " + encoded("first-secret-key"), "https://evil.example", 403},
		{"realtime, openai-insecure-api-key.first-secret-key", "null", 403},
		{"realtime, " + encoded("other-secret-key"), s.base, 401},
		{"realtime, krater-key.!!", s.base, 401},
		{"realtime", s.base, 401},
	} {
		// The headers of Chromium.
		h := http.Header{
			"Origin": {c.origin}, "Sec-Websocket-Protocol": {c.protocols}, "Pragma": {"no-cache"}, "Cache-Control": {"no-cache"},
			"User-Agent": {"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36"},
		}
		for _, path := range []string{"/v1/responses", "/responses"} {
			dialer := websocket.Dialer{EnableCompression: true}
			ws, res, err := dialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(s.base, "http")+path, h)
			if res == nil || res.StatusCode != c.status {
				t.Errorf("%s from %s: %v, %v", c.protocols, c.origin, res, err)
				continue
			}
			for name, values := range res.Header {
				if text := strings.Join(values, ","); strings.Contains(text, "secret") || strings.Contains(text, "krater-key") {
					t.Errorf("%s: %s is sent back", name, text)
				}
			}
			if err != nil {
				continue
			}
			if got := res.Header.Get("Sec-Websocket-Protocol"); got != "realtime" || res.Header.Get("X-Request-Id") == "" {
				t.Errorf("%s: %v", c.protocols, res.Header)
			}
			got, err := converse(ws, greedy("secret-prompt", 2), idle)
			if err != nil || got.completion != 2 {
				t.Errorf("%s: %v %v", c.protocols, got, err)
			}
			ws.Close()
		}
	}
	log := s.log.String()
	for _, secret := range []string{"secret", encoded("first-secret-key")[len("krater-key."):], "krater-key"} {
		if strings.Contains(log, secret) {
			t.Errorf("the log shows %q:\n%s", secret, log)
		}
	}
}

// TestKeyLimitsOverWebSocket: a key has its requests and tokens a minute and its answers at a time over
// WebSockets, too; the upgrade and each refusal say what is left.
func TestKeyLimitsOverWebSocket(t *testing.T) {
	ring, err := keyring.Read(write(t, "keys", "minute-secret requests-per-minute=2 tokens-per-minute=1000\ntokens-secret tokens-per-minute=30\nfew-secrets concurrent=2\n"), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	e := enginetest.New()
	late := newLoadingEngine("test-model", ring, nil)
	late.set(e)
	srv, door := openDoors(late, server.Options{Keys: ring.Hashes, Limits: ring.Limiter().Headers}, 0, zerolog.Nop())
	web := httptest.NewServer(srv.Handler())
	defer web.Close()
	defer func() {
		if err := door.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	c := dialAs(t, web.URL, "minute-secret")
	if header := c.header; header.Get("X-Ratelimit-Limit-Requests") != "2" || header.Get("X-Ratelimit-Remaining-Tokens") != "1000" || header.Get("X-Ratelimit-Reset-Tokens") == "" {
		t.Errorf("the upgrade says %v", header)
	}
	for range 2 {
		c.ask("a")
		c.until("response.completed")
	}
	c.ask("b")
	c.refused("x-ratelimit-remaining-requests", "0")

	c = dialAs(t, web.URL, "tokens-secret") // an answer has 3 tokens, its prompt 18
	for range 2 {
		c.ask("a")
		c.until("response.completed")
	}
	c.ask("a")
	c.refused("x-ratelimit-remaining-tokens", "0")

	gate := make(chan struct{})
	e.Play(enginetest.Gated(enginetest.Text("x"), 2, gate))
	c = dialAs(t, web.URL, "few-secrets")
	if header := c.header; header.Get("X-Ratelimit-Limit-Requests") != "" {
		t.Errorf("a key without limits a minute: %v", header)
	}
	other := dialAs(t, web.URL, "few-secrets") // another connection of the same key
	c.ask("a")
	c.until("response.in_progress")
	other.ask("b")
	other.until("response.in_progress")
	c.ask("c")
	c.refused("x-ratelimit-limit-requests", "")
	close(gate)
	c.until("response.completed")
	other.until("response.completed")
	e.Choose(func(*engine.Request) (enginetest.Script, error) { return enginetest.Text("y"), nil })
	c.ask("c")
	c.until("response.completed")
}

// laneClient is a client of one WebSocket, with several answers on it.
type laneClient struct {
	t      *testing.T
	ws     *websocket.Conn
	header http.Header // of the upgrade
}

func dialAs(t *testing.T, url, key string) *laneClient {
	t.Helper()
	ws, res, err := websocket.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(url, "http")+"/v1/responses", http.Header{"Authorization": {"Bearer " + key}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ws.Close() })
	return &laneClient{t, ws, res.Header}
}

// ask begins an answer.
func (c *laneClient) ask(lane string) {
	c.t.Helper()
	if err := c.ws.WriteMessage(websocket.TextMessage, []byte(`{"type":"response.create","input":"a","stream_id":"`+lane+`"}`)); err != nil {
		c.t.Fatal(err)
	}
}

// until reads events up to the first of a type.
func (c *laneClient) until(kind string) *responseEvent {
	c.t.Helper()
	for {
		event, err := readEvent(c.ws)
		if event == nil {
			c.t.Fatal(err)
		}
		if event.Type == kind {
			return event
		}
		if event.Type == "error" {
			c.t.Fatalf("%+v instead of %s", event, kind)
		}
	}
}

// refused reads the refusal of an answer, of which a header has a value.
func (c *laneClient) refused(header, want string) {
	c.t.Helper()
	event := c.until("error")
	wait, err := strconv.Atoi(event.Headers["retry-after"])
	if event.Status != 429 || err != nil || wait < 1 || wait > 60 || event.Headers[header] != want || event.Error.Headers["retry-after"] != event.Headers["retry-after"] {
		c.t.Errorf("%+v", event)
	}
}
