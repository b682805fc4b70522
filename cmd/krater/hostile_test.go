package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krater/transport/enginetest"
	"krater/transport/server"
)

// documented is a route of /openapi.json.
type documented struct {
	method, path string
	body         bool // it takes one
}

// documentedRoutes reads /openapi.json; parameters in paths have some value.
func documentedRoutes(t testing.TB, text string) []documented {
	t.Helper()
	doc := decode[struct {
		Paths map[string]map[string]struct {
			RequestBody any `json:"requestBody"`
		}
	}](t, text)
	var out []documented
	for path, methods := range doc.Paths {
		for method, of := range methods {
			path := strings.NewReplacer("{id}", "x", "{item}", "y").Replace(path)
			out = append(out, documented{strings.ToUpper(method), path, of.RequestBody != nil})
		}
	}
	if len(out) < 30 {
		t.Fatalf("%d routes are documented", len(out))
	}
	return out
}

// openRoutes want no key, and answer GET with 200.
var openRoutes = []string{"/health", "/ready", "/openapi.json", "/docs", "/trace", "/"}

// TestHostileRequestsEverywhere: what is too large, too slow or malformed is refused early on every
// documented route, and so is a request without a key.
func TestHostileRequestsEverywhere(t *testing.T) {
	e := enginetest.New()
	late := newLoadingEngine("test-model", nil, nil)
	late.set(e)
	srv, door := openDoors(late, server.Options{
		Keys: []server.KeyHash{server.HashKey("the-secret-key")}, HeaderTimeout: time.Second, BodyTimeout: time.Second, WriteTimeout: time.Second,
		MaxBody: 100 << 10, MaxConcurrent: 1 << 12,
	}, 0, zerolog.Nop())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	defer func() {
		if err := door.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := srv.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	document := httptest.NewRecorder()
	srv.Handler().ServeHTTP(document, httptest.NewRequest("GET", "/openapi.json", nil))
	routes := documentedRoutes(t, document.Body.String())
	for _, path := range openRoutes {
		routes = append(routes, documented{"GET", path, false}, documented{"POST", path, false})
	}
	var all sync.WaitGroup
	for _, r := range routes {
		for name, h := range hostilities {
			if !r.body && h.withheld {
				continue // GET /v1/responses/{id} waits 10 s for it
			}
			all.Go(func() {
				status, err := h.send(l.Addr().String(), r)
				if err != nil || status/100 == 5 && status != http.StatusNotImplemented || (r.body || h.always) && status != h.status {
					t.Errorf("%s %s, %s: %d, want %d: %v", r.method, r.path, name, status, h.status, err)
				}
			})
		}
	}
	all.Wait()
	if n := len(e.Requests()); n != 0 {
		t.Errorf("the engine got %d requests", n)
	}
}

// hostility follows the first line of a request.
type hostility struct {
	always   bool // on routes without a body, too
	withheld bool // the body does not come
	status   int
	parts    []string
}

// longHeader stands for as many bytes as the server reads of a header. With more, it would close the
// connection on bytes that it has not read, which resets the connection and may lose the answer.
const (
	longHeader  = "*"
	headerBytes = 64<<10 + 4096
)

const (
	keyLine  = "X-Api-Key: the-secret-key\r\nContent-Type: application/json\r\n"
	tooLarge = 200 << 10
)

var hostilities = map[string]hostility{
	"a long header":             {true, false, 431, []string{"X-Long: ", longHeader}},
	"a header without end":      {true, false, 0, []string{keyLine}},
	"two lengths":               {true, false, 400, []string{keyLine, "Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}"}},
	"a packed transfer":         {true, false, 501, []string{keyLine, "Transfer-Encoding: gzip\r\n\r\n"}},
	"no key":                    {false, false, 401, []string{"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"}},
	"a body without end":        {false, true, 408, []string{keyLine, "Content-Length: 100\r\n\r\n{"}},
	"a body that says too much": {false, true, 413, []string{keyLine, fmt.Sprintf("Content-Length: %d\r\n\r\n", tooLarge)}},
	"chunks that are too much":  {false, false, 413, []string{keyLine, "Transfer-Encoding: chunked\r\n\r\n", strings.Repeat("400\r\n"+strings.Repeat(" ", 1024)+"\r\n", 101)}},
	"a chunk of any size":       {false, false, 400, []string{keyLine, "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n"}},
	"a packed body":             {false, false, 415, []string{keyLine, "Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00"}},
	"deep JSON":                 {false, false, 400, []string{keyLine, "Content-Length: 50000\r\n\r\n", strings.Repeat("[", 50000)}},
	"another type":              {false, false, 415, []string{"X-Api-Key: the-secret-key\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}"}},
}

// send sends it on a connection of its own and returns the status of the answer, 0 if the connection
// ends without one.
func (h hostility) send(addr string, r documented) (int, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	go func() {
		sent := 0
		for _, p := range append([]string{r.method + " " + r.path + " HTTP/1.1\r\nHost: x\r\n"}, h.parts...) {
			if p == longHeader {
				p = strings.Repeat("x", headerBytes-sent)
			}
			sent += len(p)
			if _, err := io.WriteString(conn, p); err != nil {
				return // it was refused before its end
			}
		}
	}()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
		return 0, fmt.Errorf("there is neither an answer nor an end: %w", err)
	}
	if err != nil {
		return 0, nil
	}
	return res.StatusCode, res.Body.Close()
}
