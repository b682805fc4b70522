package server

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// raw sends bytes on a connection of its own and gives the status that comes back, 0 if the
// connection ends without one.
func (f *fixture) raw(t *testing.T, parts ...string) int {
	t.Helper()
	conn, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	go func() {
		for _, p := range parts {
			if _, err := io.WriteString(conn, p); err != nil {
				return // it was refused before its end
			}
		}
	}()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
			t.Error("there is neither an answer nor an end")
		}
		return 0
	}
	res.Body.Close()
	return res.StatusCode
}

// TestHostileRequests: what is too large, too slow or malformed is refused early, whatever follows, by
// the doors of all APIs. Each server is hasty only about what does not come: on a loaded machine the rest may come slowly,
// and would be refused for that.
func TestHostileRequests(t *testing.T) {
	const soon = 100 * time.Millisecond
	patient := start(t, Options{HeaderTimeout: patience, BodyTimeout: patience, MaxBody: 100 << 10})
	hasty := map[string]*fixture{
		"a header without end": start(t, Options{HeaderTimeout: soon, BodyTimeout: patience}),
		"a body without end":   start(t, Options{HeaderTimeout: patience, BodyTimeout: soon}),
	}
	hasty["chunks without end"] = hasty["a body without end"]
	for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/api/chat"} {
		t.Run(path, func(t *testing.T) { hostile(t, patient, hasty, path) })
	}
	workEnds(t, patient)
	for _, f := range hasty {
		workEnds(t, f)
	}
}

func hostile(t *testing.T, patient *fixture, hasty map[string]*fixture, path string) {
	post := "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	megabyte := strings.Repeat("x", 1<<20)
	var chunks strings.Builder
	for range 200 {
		fmt.Fprintf(&chunks, "400\r\n%s\r\n", strings.Repeat(" ", 1024))
	}
	for name, c := range map[string]struct {
		parts  []string
		status int
	}{
		"a long header":             {[]string{post, "X-Long: ", megabyte, "\r\n\r\n"}, 431},
		"many headers":              {[]string{post, strings.Repeat("X-A: b\r\n", 100_000), "\r\n"}, 431},
		"a long path":               {[]string{"GET /", megabyte, " HTTP/1.1\r\nHost: x\r\n\r\n"}, 431},
		"a header without end":      {[]string{post}, 0},
		"a body without end":        {[]string{post, "Content-Length: 100\r\n\r\n{"}, 408},
		"chunks without end":        {[]string{post, "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"}, 408},
		"a body that says too much": {[]string{post, "Content-Length: 200000\r\n\r\n"}, 413},
		"chunks that are too much":  {[]string{post, "Transfer-Encoding: chunked\r\n\r\n", chunks.String()}, 413},
		"a chunk of any size":       {[]string{post, "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n"}, 400},
		"a chunk's long extension":  {[]string{post, "Transfer-Encoding: chunked\r\n\r\n1;", megabyte, "\r\n"}, 400},
		"two lengths":               {[]string{post, "Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}"}, 400},
		"a packed body":             {[]string{post, "Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00"}, 415},
		"a packed transfer":         {[]string{post, "Transfer-Encoding: gzip\r\n\r\n"}, 501},
		"an endless line":           {[]string{megabyte}, 431},
	} {
		t.Run(name, func(t *testing.T) {
			f := cmp.Or(hasty[name], patient)
			if got := f.raw(t, c.parts...); got != c.status {
				t.Errorf("%d, want %d", got, c.status)
			}
		})
	}
}

// TestConnectionsAreBounded: beyond the limit connections are closed at once, and those that end make room.
func TestConnectionsAreBounded(t *testing.T) {
	f := start(t, Options{MaxConnections: 3})
	ask := func(conn net.Conn) int {
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(conn, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return 0
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode
	}
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	var idle []net.Conn
	for range 3 {
		conn := dial()
		if status := ask(conn); status != 200 {
			t.Fatalf("%d", status)
		}
		idle = append(idle, conn)
	}
	if status := ask(dial()); status != 0 {
		t.Errorf("one too many: %d", status)
	}
	if status := ask(idle[0]); status != 200 {
		t.Errorf("one of those that were there: %d", status)
	}
	idle[1].Close()
	for late := time.Now().Add(patience); ask(dial()) != 200; {
		if time.Now().After(late) {
			t.Fatal("one that ended makes no room")
		}
	}
}

// TestAnswersOfOneRequestCount: a request for many answers takes as many places, so that a few of
// one key do not fill the queue.
func TestAnswersOfOneRequestCount(t *testing.T) {
	a, b := HashKey("key-of-many"), HashKey("key-of-one")
	f := start(t, Options{MaxConcurrent: 16, Keys: []KeyHash{a, b}})
	many := ownerOf("key-of-many")
	if ok, _ := f.places.Try(many, 9); !ok {
		t.Fatal("there is no room at the start")
	}
	body := `{"prompt":["a","b"],"n":2}`
	if res := f.send(t, "POST", "/v1/completions", body, "X-Api-Key", "key-of-many"); res.StatusCode != 429 || res.Header.Get("Retry-After") == "" {
		t.Errorf("four answers where three have room: %d", res.StatusCode)
	}
	if res := f.send(t, "POST", "/v1/completions", body, "X-Api-Key", "key-of-one"); res.StatusCode != 200 {
		t.Errorf("another key's: %d", res.StatusCode)
	}
	f.places.Give(many, 9)
	if res := f.send(t, "POST", "/v1/completions", `{"prompt":"a","n":100}`, "X-Api-Key", "key-of-many"); res.StatusCode != 200 {
		t.Errorf("more answers than places, where nobody else is: %d", res.StatusCode)
	}
}
