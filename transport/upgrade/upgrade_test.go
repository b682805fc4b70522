package upgrade

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gorilla/websocket"
)

const patience = time.Minute

// serve starts a server whose sockets send back what they get, and gives its address.
func serve(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !Check(w, r, func(r *http.Request) bool { return r.Header.Get("Origin") != "http://evil" }) {
			return
		}
		ws, err := Do(w, r, Options{Timeout: patience, ReadBuffer: 256, WriteBuffer: 256, Protocol: r.Header.Get("Sec-Websocket-Protocol")})
		if err != nil {
			return
		}
		defer ws.Close()
		ws.SetReadLimit(1000)
		for {
			kind, data, err := ws.ReadMessage()
			if err != nil {
				Linger(ws, err, patience, 4000)
				return
			}
			_ = ws.WriteMessage(kind, data)
		}
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// line is a connection that speaks bytes.
type line struct {
	net.Conn
	in *bufio.Reader
	t  *testing.T
}

func dial(t *testing.T, addr string) *line {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return &line{conn, bufio.NewReader(conn), t}
}

var good = []string{"Host: x", "Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="}

// ask sends a handshake; lines that begin with a header's name take the place of its line.
func (l *line) ask(first string, lines ...string) *http.Response {
	l.t.Helper()
	all := slices.Clone(good)
	for _, add := range lines {
		name, _, _ := strings.Cut(add, ":")
		all = slices.DeleteFunc(all, func(s string) bool { return strings.HasPrefix(s, name+":") })
	}
	lines = slices.DeleteFunc(slices.Clone(lines), func(s string) bool { return strings.HasSuffix(s, ":-") })
	fmt.Fprint(l, first+"\r\n"+strings.Join(append(all, lines...), "\r\n")+"\r\n\r\n")
	res, err := http.ReadResponse(l.in, nil)
	if err != nil {
		l.t.Fatalf("%s %q: %v", first, lines, err)
	}
	return res
}

func TestHandshake(t *testing.T) {
	addr := serve(t)
	const get = "GET /ws HTTP/1.1"
	for _, c := range []struct {
		first  string
		lines  []string
		status int
		code   string
	}{
		{get, nil, 101, ""},
		{get, []string{"Connection: upgrade", "Upgrade: WebSocket"}, 101, ""},
		{get, []string{"Sec-WebSocket-Protocol: a"}, 101, ""},
		{"GET /ws HTTP/1.0", nil, 400, CodeInvalid},
		{"GET /ws HTTP/1.0", []string{"Connection:-"}, 426, CodeRequired},
		{get, []string{"Upgrade:-"}, 426, CodeRequired},
		{"PUT /ws HTTP/1.1", nil, 426, CodeRequired},
		{get, []string{"Connection: close"}, 426, CodeRequired},
		{get, []string{"Upgrade: h2c"}, 426, CodeRequired},
		{get, []string{"Sec-WebSocket-Version: 12"}, 426, CodeInvalid},
		{get, []string{"Sec-WebSocket-Version: 8"}, 426, CodeInvalid},
		{get, []string{"Sec-WebSocket-Version: 8, 13"}, 426, CodeInvalid},
		{get, []string{"Sec-WebSocket-Version: 013"}, 426, CodeInvalid},
		{get, []string{"Sec-WebSocket-Version:-"}, 400, CodeInvalid},
		{get, []string{"Sec-WebSocket-Version: 13", "Sec-WebSocket-Version: 13"}, 400, CodeInvalid},
		{get, []string{"Sec-WebSocket-Key:-"}, 400, CodeInvalid},
		{get, []string{"Sec-WebSocket-Key: abc"}, 400, CodeInvalid},
		{get, []string{"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="}, 400, CodeInvalid},
		{get, []string{"Content-Length: 5"}, 400, CodeInvalid},
		{get, []string{"Transfer-Encoding: chunked"}, 400, CodeInvalid},
		{get, []string{"Origin: http://evil"}, 403, "origin_not_allowed"},
	} {
		res := dial(t, addr).ask(c.first, c.lines...)
		if res.StatusCode != c.status {
			t.Errorf("%s %q: %s, want %d", c.first, c.lines, res.Status, c.status)
			continue
		}
		if c.status == 101 {
			if res.Header.Get("Sec-Websocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
				t.Errorf("%q: %v", c.lines, res.Header)
			}
			continue
		}
		want := ""
		if c.status == 426 {
			want = "13"
			if res.Header.Get("Upgrade") != "websocket" || res.Header.Get("Connection") == "" && !res.Close {
				t.Errorf("%q: %v", c.lines, res.Header)
			}
		}
		if got := res.Header.Get("Sec-Websocket-Version"); got != want {
			t.Errorf("%q: Sec-WebSocket-Version %q, want %q", c.lines, got, want)
		}
		if body, err := io.ReadAll(res.Body); !strings.Contains(string(body), `"code":"`+c.code+`"`) {
			t.Errorf("%q: %s %v", c.lines, body, err)
		}
	}
}

var key = [4]byte{0x37, 0xfa, 0x21, 0x3d}

// frame returns a frame of a client.
func frame(first byte, payload []byte) []byte {
	out := []byte{first}
	switch n := len(payload); {
	case n < 126:
		out = append(out, 0x80|byte(n))
	case n < 1<<16:
		out = binary.BigEndian.AppendUint16(append(out, 0x80|126), uint16(n))
	default:
		out = binary.BigEndian.AppendUint64(append(out, 0x80|127), uint64(n))
	}
	out = append(out, key[:]...)
	for i, b := range payload {
		out = append(out, b^key[i%4])
	}
	return out
}

func closeFrame(code int, reason string) []byte {
	return frame(0x88, append(binary.BigEndian.AppendUint16(nil, uint16(code)), reason...))
}

// answer reads frames up to the server's close frame and gives its code; 1005: it has none.
func (l *line) answer(name string) int {
	l.t.Helper()
	for {
		var head [2]byte
		if _, err := io.ReadFull(l.in, head[:]); err != nil {
			l.t.Fatalf("%s: no close frame: %v", name, err)
		}
		size := int(head[1])
		if size == 126 {
			var long [2]byte
			_, _ = io.ReadFull(l.in, long[:])
			size = int(binary.BigEndian.Uint16(long[:]))
		}
		payload := make([]byte, size)
		if _, err := io.ReadFull(l.in, payload); err != nil {
			l.t.Fatalf("%s: %v", name, err)
		}
		switch {
		case head[0] != 0x88:
		case len(payload) < 2:
			return websocket.CloseNoStatusReceived
		default:
			return int(binary.BigEndian.Uint16(payload))
		}
	}
}

// TestCloseCodes: a code that may be sent comes back, another one is a protocol error.
func TestCloseCodes(t *testing.T) {
	addr := serve(t)
	const wrong = websocket.CloseProtocolError
	for _, c := range []struct {
		name  string
		frame []byte
		want  int
	}{
		{"no code", frame(0x88, nil), websocket.CloseNoStatusReceived},
		{"one byte", frame(0x88, []byte{3}), wrong},
		{"0", closeFrame(0, ""), wrong},
		{"999", closeFrame(999, ""), wrong},
		{"1000", closeFrame(1000, ""), 1000},
		{"1001", closeFrame(1001, "reason"), 1001},
		{"1002", closeFrame(1002, ""), 1002},
		{"1003", closeFrame(1003, ""), 1003},
		{"1004", closeFrame(1004, ""), wrong},
		{"1005", closeFrame(1005, ""), wrong},
		{"1006", closeFrame(1006, ""), wrong},
		{"1007", closeFrame(1007, ""), 1007},
		{"1008", closeFrame(1008, ""), 1008},
		{"1009", closeFrame(1009, ""), 1009},
		{"1010", closeFrame(1010, ""), 1010},
		{"1011", closeFrame(1011, ""), 1011},
		{"1012", closeFrame(1012, ""), 1012},
		{"1013", closeFrame(1013, ""), 1013},
		{"1014", closeFrame(1014, ""), 1014},
		{"1014 with a reason", closeFrame(1014, strings.Repeat("x", 123)), 1014},
		{"1014 behind messages", slices.Concat(frame(0x81, []byte("a")), frame(0x81, bytes.Repeat([]byte("b"), 300)), frame(0x89, []byte{3, 246}), closeFrame(1014, "")), 1014},
		{"1000 behind 1014 in a message", slices.Concat(frame(0x82, closeFrame(1014, "")), closeFrame(1000, "")), 1000},
		{"1015", closeFrame(1015, ""), wrong},
		{"1016", closeFrame(1016, ""), wrong},
		{"2999", closeFrame(2999, ""), wrong},
		{"3000", closeFrame(3000, ""), 3000},
		{"4999", closeFrame(4999, ""), 4999},
		{"5000", closeFrame(5000, ""), wrong},
		{"65535", closeFrame(65535, ""), wrong},
		{"a reason that is not UTF-8", closeFrame(1000, "\xff"), wrong},
		{"126 bytes", frame(0x88, make([]byte, 126)), wrong},
		{"in fragments", frame(0x08, []byte{3, 232}), wrong},
		{"no mask", []byte{0x88, 2, 3, 232}, wrong},
		{"no mask and one byte", []byte{0x88, 1, 3}, wrong},
		{"reserved bit", frame(0xc1, []byte("a")), wrong},
		{"unknown opcode", frame(0x83, nil), wrong},
		{"too big", frame(0x81, make([]byte, 1001)), websocket.CloseMessageTooBig},
		{"impossible length", append([]byte{0x81, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0}, key[:]...), websocket.CloseMessageTooBig},
	} {
		for _, slow := range []bool{false, true} {
			l := dial(t, addr)
			if res := l.ask("GET /ws HTTP/1.1"); res.StatusCode != 101 {
				t.Fatal(res.Status)
			}
			if slow {
				for _, b := range c.frame {
					_, _ = l.Write([]byte{b}) // the server may have closed already
				}
			} else if _, err := l.Write(c.frame); err != nil {
				t.Fatal(err)
			}
			if got := l.answer(c.name); got != c.want {
				t.Errorf("%s, byte by byte %v: the answer is %d, want %d", c.name, slow, got, c.want)
			}
			l.Close() // the server reads on until then
		}
	}
}

// source is a connection that can only be read.
type source struct {
	net.Conn
	r io.Reader
}

func (s source) Read(p []byte) (int, error) { return s.r.Read(p) }

// FuzzTap: whatever a client sends, in whatever pieces, the tap changes nothing but the second byte
// of a close code.
func FuzzTap(f *testing.F) {
	f.Add(slices.Concat(frame(0x81, []byte("a")), closeFrame(1014, "x")))
	f.Add(frame(0x88, []byte{3}))
	f.Add([]byte{0x88, 2, 3, 246})
	f.Add([]byte{0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		whole, single := &tap{Conn: source{r: bytes.NewReader(data)}}, &tap{Conn: source{r: iotest.OneByteReader(bytes.NewReader(data))}}
		a, errA := io.ReadAll(whole)
		b, errB := io.ReadAll(single)
		if errA != nil || errB != nil || !bytes.Equal(a, b) || whole.short != single.short || whole.badGateway != single.badGateway {
			t.Fatalf("%x: %x %v, one at a time %x %v", data, a, errA, b, errB)
		}
		for i := range data {
			if a[i] != data[i] && (!whole.badGateway || a[i]^data[i] != 0x1e) {
				t.Fatalf("byte %d of %x became %x", i, data, a[i])
			}
		}
	})
}
