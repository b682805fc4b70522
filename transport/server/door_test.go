package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/transport/api"
	"krater/transport/enginetest"
)

func TestKeys(t *testing.T) {
	f := start(t, Options{Keys: []KeyHash{HashKey("first"), HashKey("second")}})
	chat := "/v1/chat/completions"
	for _, header := range [][]string{
		nil, {"Authorization", "Bearer wrong"}, {"Authorization", "first"}, {"Authorization", "Basic first"},
		{"Authorization", "Bearer "}, {"Authorization", "Bearer"}, {"X-Api-Key", "wrong"}, {"Authorization", "Bearer First"},
	} {
		res := f.send(t, "POST", chat, hello, header...)
		wantError(t, res, 401, api.TypeAuthentication, "invalid_api_key")
		if res.Header.Get("WWW-Authenticate") != "Bearer" {
			t.Error("no WWW-Authenticate")
		}
	}
	if n := len(f.engine.Requests()); n != 0 {
		t.Errorf("%d requests came past the keys", n)
	}
	for _, header := range [][]string{{"Authorization", "Bearer first"}, {"Authorization", "bearer second"}, {"X-Api-Key", "second"}} {
		if res := f.send(t, "POST", chat, hello, header...); res.StatusCode != 200 {
			t.Errorf("%v: %d", header, res.StatusCode)
		}
	}
	for path, status := range map[string]int{
		"/health": 200, "/ready": 200, "/metrics": 401, "/version": 401, "/v1/models": 401, "/models": 401, "/v1/models/test-model": 401,
	} {
		if res := f.send(t, "GET", path, ""); res.StatusCode != status {
			t.Errorf("%s: %d, want %d", path, res.StatusCode, status)
		}
	}
	open := start(t, Options{Keys: []KeyHash{HashKey("k")}, OpenMetrics: true})
	if res := open.send(t, "GET", "/metrics", ""); res.StatusCode != 200 {
		t.Errorf("open metrics: %d", res.StatusCode)
	}
	r, _ := http.NewRequest("GET", "/", nil)
	r.Header.Set("Authorization", "Bearer first")
	one := f.Owner(r)
	r.Header.Set("Authorization", "Bearer second")
	if two := f.Owner(r); one == two || one == "" || strings.Contains(one, "first") {
		t.Errorf("owners %q %q", one, two)
	}
	none := start(t, Options{})
	if owner := none.Owner(r); owner != "" {
		t.Errorf("owner %q without keys", owner)
	}
	if res := none.send(t, "POST", chat, hello, "Authorization", "Bearer anything"); res.StatusCode != 200 {
		t.Errorf("without keys the header must not matter: %d", res.StatusCode)
	}
}

func TestCORS(t *testing.T) {
	off := start(t, Options{})
	res := off.send(t, "GET", "/v1/models", "", "Origin", "https://a.example")
	if res.StatusCode != 200 || res.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("%d %v", res.StatusCode, res.Header)
	}
	res = off.send(t, "OPTIONS", "/v1/chat/completions", "", "Origin", "https://a.example", "Access-Control-Request-Method", "POST")
	wantError(t, res, 405, api.TypeInvalidRequest, "method_not_allowed")

	on := start(t, Options{Origins: []string{"https://a.example"}, Keys: []KeyHash{HashKey("k")}})
	res = on.send(t, "OPTIONS", "/v1/chat/completions", "", "Origin", "https://a.example",
		"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,x-stainless-os")
	if res.StatusCode != 204 || res.Header.Get("Access-Control-Allow-Origin") != "https://a.example" ||
		res.Header.Get("Access-Control-Allow-Headers") != "authorization,x-stainless-os" || res.Header.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("%d %v", res.StatusCode, res.Header)
	}
	res = on.send(t, "POST", "/v1/chat/completions", hello, "Origin", "https://a.example") // an error must be readable too
	if res.StatusCode != 401 || res.Header.Get("Access-Control-Allow-Origin") != "https://a.example" || !slices.Contains(res.Header.Values("Vary"), "Origin") {
		t.Errorf("%d %v", res.StatusCode, res.Header)
	}
	for _, origin := range []string{"https://b.example", "http://a.example", "https://a.example.evil", "null"} {
		if res := on.send(t, "GET", "/health", "", "Origin", origin); res.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s is allowed", origin)
		}
	}
}

func TestOriginAllowed(t *testing.T) {
	s := New(enginetest.New(), Options{Origins: []string{"https://a.example"}})
	for origin, want := range map[string]bool{
		"": true, "https://a.example": true, "http://here:8080": true, "http://HERE:8080": true,
		"http://here": false, "https://evil": false, "null": false, "file://": false, "https://a.example.evil": false,
	} {
		r, _ := http.NewRequest("GET", "http://here:8080/v1/responses", nil)
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		if got := s.OriginAllowed(r); got != want {
			t.Errorf("%q: %v", origin, got)
		}
	}
}

// lockedBuffer is a log sink that a test may read while the server writes.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func TestLogHoldsNoSecrets(t *testing.T) {
	var sink lockedBuffer
	logger := zerolog.New(&sink)
	e := enginetest.New()
	s := New(e, Options{Keys: []KeyHash{HashKey("hunter2")}, Log: &logger})
	f := startWith(t, e, s)
	f.engine.Play(enginetest.Text("private answer"))
	body := `{"messages":[{"role":"user","content":"private question"}]}`
	f.send(t, "POST", "/v1/chat/completions?token=private", body, "Authorization", "Bearer hunter2", "X-Request-Id", "my-id.1")
	f.send(t, "POST", "/v1/chat/completions", body, "Authorization", "Bearer hunter3")
	f.send(t, "POST", "/v1/chat/completions", `{"temprature":"private"}`, "Authorization", "Bearer hunter2", "X-Request-Id", "bad id!")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil { // every line is written
		t.Fatal(err)
	}
	text := sink.String()
	for _, want := range []string{`"status":200`, `"status":401`, `"status":400`, `"request":"my-id.1"`, `"request":"req_`, `"path":"/v1/chat/completions"`, `"code":"unknown_parameter","param":"temprature"`, `"code":"invalid_api_key","param":""`} {
		if !strings.Contains(text, want) {
			t.Errorf("the log lacks %s:\n%s", want, text)
		}
	}
	for _, secret := range []string{"private", "hunter", "bad id"} {
		if strings.Contains(text, secret) {
			t.Errorf("the log holds %q:\n%s", secret, text)
		}
	}
}

// selfSigned makes a certificate for 127.0.0.1.
func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(crand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Over TLS clients choose HTTP/2 by themselves; deadlines, drain and streams must work there as
// well.
func TestTLS(t *testing.T) {
	cert := selfSigned(t)
	f := start(t, Options{TLS: &tls.Config{Certificates: []tls.Certificate{cert}}})
	roots := x509.NewCertPool()
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(leaf)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	hc := &http.Client{Transport: transport}
	for range 2 {
		res, err := hc.Post("https://"+f.addr+"/v1/chat/completions", "application/json", strings.NewReader(helloStream))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.ProtoMajor != 2 {
			t.Errorf("protocol %s", res.Proto)
		}
		checkChatStream(t, readAll(t, res.Body), 1, false)
	}
	if res, err := http.Get(f.url + "/health"); err == nil {
		res.Body.Close()
		if res.StatusCode == 200 {
			t.Error("plain HTTP is answered")
		}
	}
}

func TestRequestIDs(t *testing.T) {
	f := start(t, Options{})
	if got := f.send(t, "GET", "/health", "", "X-Request-Id", "abc-1").Header.Get("X-Request-Id"); got != "abc-1" {
		t.Errorf("%q", got)
	}
	for _, bad := range []string{"a b", strings.Repeat("x", 129), "a\"b"} {
		if got := f.send(t, "GET", "/health", "", "X-Request-Id", bad).Header.Get("X-Request-Id"); !strings.HasPrefix(got, "req_") {
			t.Errorf("%q", got)
		}
	}
}

func TestDrain(t *testing.T) {
	f := start(t, Options{})
	gate := make(chan struct{})
	f.engine.Play(enginetest.Gated(enginetest.Text("a", "b"), 3, gate))
	res := f.send(t, "POST", "/v1/chat/completions", helloStream) // the header is out after "a"
	down := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		down <- f.Shutdown(ctx)
	}()
	<-f.Draining()
	if e := wantError(t, f.send(t, "GET", "/ready", ""), 503, api.TypeServer, "unavailable"); !strings.Contains(e.Message, "shutting down") {
		t.Errorf("%q", e.Message)
	}
	wantError(t, f.send(t, "POST", "/v1/chat/completions", hello), 503, api.TypeServer, "unavailable")
	if res := f.send(t, "GET", "/health", ""); res.StatusCode != 200 {
		t.Errorf("/health %d", res.StatusCode)
	}
	close(gate)
	if got := checkChatStream(t, readAll(t, res.Body), 1, false); got.texts[0] != "ab" {
		t.Errorf("%+v", got)
	}
	if err := <-down; err != nil {
		t.Error(err)
	}
	if err := f.Shutdown(context.Background()); err != nil {
		t.Errorf("twice: %v", err)
	}
}

func TestCutAtTheDrainsEnd(t *testing.T) {
	f := start(t, Options{})
	f.engine.Choose(func(r *engine.Request) (enginetest.Script, error) {
		return enginetest.Gated(enginetest.Text("a", "b"), 3, make(chan struct{})), nil
	})
	streamed := f.send(t, "POST", "/v1/chat/completions", helloStream)
	whole := make(chan string, 1)
	go func() {
		_, text := f.post(t, "/v1/chat/completions", hello)
		whole <- text
	}()
	f.waitOpen(t, 2)
	ctx, cancel := context.WithCancel(context.Background())
	down := make(chan error, 1)
	go func() { down <- f.Shutdown(ctx) }()
	<-f.Draining()
	cancel()
	if err := <-down; err == nil || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "2 requests") {
		t.Errorf("%v", err)
	}
	text := readAll(t, streamed.Body)
	if !strings.Contains(text, `"error"`) || !strings.Contains(text, "shutting down") || strings.Contains(text, "[DONE]") {
		t.Errorf("%s", text)
	}
	if text := <-whole; !strings.Contains(text, "shutting down") {
		t.Errorf("%s", text)
	}
	f.waitOpen(t, 0)
}

// A WebSocket door of another package lives behind the same middleware.
func TestRouteTakesWebSockets(t *testing.T) {
	e := enginetest.New()
	s := New(e, Options{Keys: []KeyHash{HashKey("k")}, WriteTimeout: 50 * time.Millisecond})
	cut := make(chan error, 1)
	s.Route("GET /v1/echo", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		up := websocket.Upgrader{CheckOrigin: s.OriginAllowed}
		conn, err := up.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer conn.Close()
		kind, data, err := conn.ReadMessage()
		if err != nil {
			return
		}
		_ = conn.WriteMessage(kind, data)
		<-r.Context().Done()
		cut <- context.Cause(r.Context())
	}))
	f := startWith(t, e, s)
	ws := "ws" + strings.TrimPrefix(f.url, "http")
	if _, res, err := websocket.DefaultDialer.Dial(ws+"/v1/echo", nil); err == nil || res.StatusCode != 401 {
		t.Fatalf("%v: came past the keys", err)
	}
	header := http.Header{"Authorization": {"Bearer k"}, "Origin": {"https://evil.example"}}
	if _, res, err := websocket.DefaultDialer.Dial(ws+"/echo", header); err == nil || res.StatusCode != 403 {
		t.Fatalf("%v: a foreign origin is let in", err)
	}
	header.Del("Origin")
	conn, _, err := websocket.DefaultDialer.Dial(ws+"/echo", header)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.WriteMessage(websocket.TextMessage, []byte("hi")); err != nil {
		t.Fatal(err)
	}
	if _, data, err := conn.ReadMessage(); err != nil || string(data) != "hi" {
		t.Fatalf("%q %v", data, err)
	}
	res := f.send(t, "POST", "/v1/echo", "{}", "Authorization", "Bearer k")
	wantError(t, res, 405, api.TypeInvalidRequest, "method_not_allowed")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Shutdown(ctx); err == nil {
		t.Error("the open socket was not counted")
	}
	if err := <-cut; !errors.Is(err, errShutdown) {
		t.Errorf("cause %v", err)
	}
}

// TestPlacesOfKeys: with several keys none takes all places, nor keeps more than it has.
func TestPlacesOfKeys(t *testing.T) {
	a, b := HashKey("first-key"), HashKey("second-key")
	s := New(enginetest.New(), Options{MaxConcurrent: 8, Keys: []KeyHash{a, b}})
	var held []func()
	for range 6 {
		release, err := s.Acquire("a")
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, release)
	}
	if _, err := s.Acquire("a"); err == nil || err.Status != 429 || err.RetryAfter == 0 || !strings.Contains(err.Message, "of this key or address") {
		t.Errorf("the seventh place of one key: %v", err)
	}
	for range 2 {
		if _, err := s.Acquire("b"); err != nil {
			t.Errorf("another key's: %v", err)
		}
	}
	held[0]()
	if _, err := s.Acquire("b"); err != nil {
		t.Errorf("the one that was given back: %v", err)
	}
	if _, err := s.Acquire("b"); err == nil || err.Status != 429 {
		t.Errorf("a ninth place: %v", err)
	}
	alone := New(enginetest.New(), Options{MaxConcurrent: 8, Keys: []KeyHash{a}})
	for range 8 {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-Api-Key", "first-key")
		if _, err := alone.Acquire(alone.Peer(r)); err != nil {
			t.Errorf("the only key: %v", err)
		}
	}
}

func TestAcquire(t *testing.T) {
	e := enginetest.New()
	s := New(e, Options{MaxConcurrent: 2})
	one, err := s.Acquire("")
	if err != nil {
		t.Fatal(err)
	}
	two, err := s.Acquire("")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acquire(""); err == nil || err.Status != 429 || err.RetryAfter == 0 {
		t.Errorf("%v", err)
	}
	one()
	if _, err := s.Acquire(""); err != nil {
		t.Errorf("%v", err)
	}
	two()
	e.SetReady(&engine.Error{Kind: engine.Unavailable, Message: "loading"})
	if _, err := s.Acquire(""); err == nil || err.Status != 503 {
		t.Errorf("%v", err)
	}
}

func TestRouteNeedsAMethod(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a pattern without a method is taken")
		}
	}()
	New(enginetest.New(), Options{}).Route("/x", http.NotFoundHandler())
}

// TestPlacesOfManyKeys: keys that take all they can leave places to one that comes later.
func TestPlacesOfManyKeys(t *testing.T) {
	p := api.NewQuota(256)
	var got []int
	for _, owner := range []string{"a", "b", "c", "d"} {
		n := 0
		for ok, _ := p.Try(owner, 1); ok; ok, _ = p.Try(owner, 1) {
			n++
		}
		got = append(got, n)
	}
	if want := []int{192, 48, 12, 3}; !slices.Equal(got, want) {
		t.Errorf("keys have %v places, want %v", got, want)
	}
}
