package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krater/cmd/krater/keyring"
	"krater/transport/api"
	"krater/transport/enginetest"
	"krater/transport/server"
)

// TestKeys: with a file of keys every route but the probes wants one, and
// nothing of a key or a prompt is written to the log.
func TestKeys(t *testing.T) {
	file := write(t, "keys", "# two of them\nfirst-secret-key\n\n  second-secret-key  \n")
	s := open(t, "--api-keys", file)
	_, _, text := s.do("GET", "/openapi.json", "")
	every := append(documentedRoutes(t, text), documented{"GET", "/trace/ws", false}, documented{"GET", "/trace/export", false}, documented{"POST", "/v1/embeddings", false})
	for key, want := range map[string]int{"": 401, "wrong-secret-key": 401, "first-secret-key": 200, "second-secret-key": 200, "# two of them": 401} {
		s.key = key
		for _, r := range everyRoute() {
			_, err := s.ask(r, greedy("secret-prompt", 2))
			var refused *refusal
			switch {
			case want == 200 && err != nil:
				t.Errorf("%s with a key: %v", r.name, err)
			case want == 401 && (!errors.As(err, &refused) || refused.status != 401):
				t.Errorf("%s with the key %q: %v", r.name, key, err)
			}
		}
		for _, path := range openRoutes {
			if status, _, _ := s.do("GET", path, ""); status != 200 {
				t.Errorf("%s with the key %q: %d", path, key, status)
			}
		}
		for _, r := range every {
			if slices.Contains(openRoutes, r.path) {
				continue
			}
			if status, _, _ := s.do(r.method, r.path, ""); (status == 401) != (want == 401) || status >= 500 {
				t.Errorf("%s %s with the key %q: %d", r.method, r.path, key, status)
			}
		}
	}
	s.key = "first-secret-key"
	made := post200[responseObject](t, s, "/v1/responses", map[string]any{"input": "hi", "max_output_tokens": 1})
	for key, want := range map[string]int{"first-secret-key": 200, "second-secret-key": 404} {
		s.key = key
		if status, _, _ := s.do("GET", "/v1/responses/"+made.ID, ""); status != want {
			t.Errorf("the response of the first key is %d to %s", status, key)
		}
	}
	if offer := s.out.String(); !strings.Contains(offer, "Authorization: Bearer KEY") {
		t.Errorf("it offers %q", offer)
	}
	for line := range strings.Lines(s.log.String()) {
		decode[map[string]any](t, line)
	}
	if log := s.log.String(); strings.Contains(log, "secret") || !strings.Contains(log, "/v1/chat/completions") {
		t.Errorf("the log shows a secret or no requests:\n%s", log)
	}
}

func TestOpenMetrics(t *testing.T) {
	s := open(t, "--api-keys", write(t, "keys", "first-secret-key\n"), "--open-metrics")
	for path, want := range map[string]int{"/metrics": 200, "/version": 200, "/v1/models": 401} {
		if status, _, _ := s.do("GET", path, ""); status != want {
			t.Errorf("%s: %d, want %d", path, status, want)
		}
	}
}

func TestBadKeyFiles(t *testing.T) {
	for text, words := range map[string]string{
		"": "no key", "# only this\n\n": "no key", "long-enough\nshort\n": "line 2", strings.Repeat("x", 1<<17): "--api-keys",
		"long-enough priority=high\n": "line 1", "long-enough priority=5..1\n": "line 1", "\nlong-enough priority=-1001..0\n": "line 2",
		"long-enough priority=0..1001\n": "line 1", "long-enough concurrent=0\n": "line 1", "long-enough tokens-per-minute=many\n": "tokens-per-minute", "long-enough priority=1\n": "LOW..HIGH", "short priority=0..1\n": "fewer than 8",
	} {
		file := write(t, "keys", text)
		refuses(t, 1, []string{"serve", "--listen", "127.0.0.1:0", "--api-keys", file}, "--api-keys", words)
	}
}

// TestPriorityRanges: every door that takes a priority clips it into the range of the key, which
// is logged once a key. Lines without a range mean what they always have.
func TestPriorityRanges(t *testing.T) {
	var log bytes.Buffer
	file := write(t, "keys", "ranged-secret-key   priority=-5..10\nplain-secret-key\na key of words\nother-secret-key priority=0..0\n")
	ring, err := keyring.Read(file, zerolog.New(&log))
	if err != nil {
		t.Fatal(err)
	}
	e := enginetest.New()
	late := newLoadingEngine("test-model", ring, nil)
	late.set(e)
	srv, door := openDoors(late, server.Options{Keys: ring.Hashes}, 0, zerolog.Nop())
	web := httptest.NewServer(srv.Handler())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(door.Shutdown(ctx), srv.Shutdown(ctx)); err != nil {
			t.Error(err)
		}
		web.Close()
	})
	s := &site{t: t, base: web.URL, http: web.Client(), log: newLines(), out: newLines()}
	for _, c := range []struct {
		key       string
		asks, has int
	}{
		{"ranged-secret-key", 1000, 10}, {"ranged-secret-key", -1000, -5}, {"ranged-secret-key", 7, 7},
		{"plain-secret-key", 1000, 1000}, {"a key of words", -1000, -1000}, {"other-secret-key", 1, 0},
	} {
		s.key = c.key
		last := func(door string) {
			t.Helper()
			all := e.Requests()
			if got := all[len(all)-1].Priority; got != c.has {
				t.Errorf("%s, %s asks for priority %d: it has %d, want %d", c.key, door, c.asks, got, c.has)
			}
		}
		for _, r := range routes {
			q := greedy("hi", 2)
			q.fields["priority"] = c.asks
			if _, err := s.ask(r, q); err != nil {
				t.Fatalf("%s: %v", r.name, err)
			}
			last(r.name)
		}
		hash := server.HashKey(c.key)
		line := fmt.Sprintf(`{"prompt": "hi", "max_tokens": 2, "priority": %d}`, c.asks)
		req := httptest.NewRequestWithContext(api.Background(t.Context(), time.Now().Add(time.Hour)), "POST", "/v1/completions", strings.NewReader(line))
		req.Header.Set("Content-Type", "application/json")
		answer := httptest.NewRecorder()
		if srv.Inside(hex.EncodeToString(hash[:])).ServeHTTP(answer, req); answer.Code != 200 {
			t.Fatalf("a line of a batch: %d %s", answer.Code, answer.Body)
		}
		last("a line of a batch")
	}
	if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, `"line":1,"priority":1000,"low":-5,"high":10`) || !strings.Contains(text, `"line":4`) || strings.Contains(text, "secret") {
		t.Errorf("the log:\n%s", text)
	}
}

// TestKeyLimits: a key has what its line says, in answers' headers and as 429.
func TestKeyLimits(t *testing.T) {
	ring, err := keyring.Read(write(t, "keys", "limited-secret priority=-5..5 requests-per-minute=2 tokens-per-minute=1000\nother-secret\n"), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	e := enginetest.New()
	late := newLoadingEngine("test-model", ring, nil)
	late.set(e)
	srv, _ := openDoors(late, server.Options{Keys: ring.Hashes, Limits: ring.Limiter().Headers}, 0, zerolog.Nop())
	s := httptest.NewServer(srv.Handler())
	defer s.Close()
	ask := func(key, path, body string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Api-Key", key)
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res
	}
	const chat = `{"messages":[{"role":"user","content":"a"}]}`
	if res := ask("limited-secret", "/v1/chat/completions", chat); res.StatusCode != 200 || res.Header.Get("X-Ratelimit-Remaining-Requests") != "1" || res.Header.Get("X-Ratelimit-Limit-Tokens") != "1000" {
		t.Errorf("%d %v", res.StatusCode, res.Header)
	}
	if res := ask("limited-secret", "/v1/responses", `{"input":"a"}`); res.StatusCode != 200 {
		t.Errorf("responses: %d", res.StatusCode)
	}
	if res := ask("limited-secret", "/v1/messages", `{"max_tokens":1,"messages":[{"role":"user","content":"a"}]}`); res.StatusCode != 429 || res.Header.Get("Retry-After") == "" || res.Header.Get("Anthropic-Ratelimit-Requests-Remaining") != "0" {
		t.Errorf("%d %v", res.StatusCode, res.Header)
	}
	if res := ask("other-secret", "/v1/chat/completions", chat); res.StatusCode != 200 || res.Header.Get("X-Ratelimit-Limit-Tokens") != "" {
		t.Errorf("another key: %d %v", res.StatusCode, res.Header)
	}
}

// certificate makes files of a certificate for 127.0.0.1 and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// TestTLS: every route over https and wss; plain HTTP is refused.
func TestTLS(t *testing.T) {
	cert, key := certificate(t)
	s := open(t, "--tls-cert", cert, "--tls-key", key)
	for _, r := range everyRoute() {
		if got := s.reply(t, r, greedy(lighthouse, 4)); got.completion != 4 {
			t.Errorf("%s: %v", r.name, got)
		}
	}
	for _, path := range append([]string{"/tokenizer_info", "/api/tags", "/api/ps", "/api/version", "/metrics"}, openRoutes...) {
		if status, _, _ := s.do("GET", path, ""); status != 200 {
			t.Errorf("%s over TLS: %d", path, status)
		}
	}
	if out := s.out.String(); !strings.Contains(out, s.base) {
		t.Errorf("it offers %q, the address is %s", out, s.base)
	}
	res, err := http.Get("http" + strings.TrimPrefix(s.base, "https") + "/health")
	if err == nil {
		res.Body.Close()
		if res.StatusCode != http.StatusBadRequest {
			t.Errorf("plain HTTP: %d", res.StatusCode)
		}
	}
	if res, err := http.Get(s.base + "/health"); err == nil {
		res.Body.Close()
		t.Error("a client trusts an unknown certificate")
	}
	refuses(t, 1, []string{"serve", "--tls-cert", cert}, "--tls-cert", "--tls-key")
	refuses(t, 1, []string{"serve", "--tls-key", key}, "--tls-cert", "--tls-key")
	refuses(t, 1, []string{"serve", "--tls-key", key, "--tls-cert", key}, "--tls-cert")
	refuses(t, 2, []string{"serve", "--tls-key", key, "--tls-cert", "/nowhere"}, "--tls-cert", "/nowhere")
}

// TestOrigins: pages of listed origins may call, others may not.
func TestOrigins(t *testing.T) {
	s := open(t, "--origins", "https://app.example")
	for origin, want := range map[string]string{"https://app.example": "https://app.example", "https://evil.example": ""} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", s.base+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Origin", origin)
		res, err := s.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if got := res.Header.Get("Access-Control-Allow-Origin"); got != want {
			t.Errorf("%s: allowed is %q", origin, got)
		}
	}
}
