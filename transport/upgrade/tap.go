package upgrade

import (
	"encoding/binary"
	"net"

	"github.com/gorilla/websocket"
)

// badGateway is close code 1014, which gorilla/websocket does not know.
const badGateway = 1014

// tap is a connection that follows the frames which the client sends, to see of close frames what
// the library takes for something else. Only the goroutine that reads uses it.
type tap struct {
	net.Conn
	head    [14]byte // of the frame that is being read
	got     int      // bytes of it
	key     [4]byte  // with which the payload is masked
	payload uint64   // bytes of the frame still to come
	at      int      // bytes of a close frame's payload that have come, up to 2

	short      bool // the close frame has one byte, half a code
	badGateway bool // its code is 1014; the library reads 1000
}

// Read implements net.Conn.
func (t *tap) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	t.follow(p[:n])
	return n, err
}

func (t *tap) follow(p []byte) {
	for len(p) > 0 {
		if t.payload == 0 {
			t.head[t.got] = p[0]
			t.got++
			p = p[1:]
			if t.got >= 2 && t.got == t.headLen() {
				t.begin()
			}
			continue
		}
		n := int(min(uint64(len(p)), t.payload))
		if t.closes() {
			t.close(p[:n])
		}
		t.payload -= uint64(n)
		p = p[n:]
	}
}

// headLen returns the length of the frame's header, of which two bytes have been read.
func (t *tap) headLen() int {
	n := 2
	switch t.head[1] & 0x7f {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if t.head[1]&0x80 != 0 {
		n += 4
	}
	return n
}

// begin is the end of a head.
func (t *tap) begin() {
	switch n := t.head[1] & 0x7f; n {
	case 126:
		t.payload = uint64(binary.BigEndian.Uint16(t.head[2:]))
	case 127:
		t.payload = binary.BigEndian.Uint64(t.head[2:])
	default:
		t.payload = uint64(n)
	}
	t.at = 0
	t.short = t.short || t.closes() && t.payload == 1
	if t.key = [4]byte{}; t.head[1]&0x80 != 0 {
		copy(t.key[:], t.head[t.got-4:])
	}
	t.got = 0
}

func (t *tap) closes() bool { return t.head[0]&0x0f == websocket.CloseMessage }

// close replaces the code 1014 of a close frame by 1000.
func (t *tap) close(p []byte) {
	const code, other = badGateway, websocket.CloseNormalClosure
	for i := range p {
		if t.at == 2 {
			return
		}
		switch c := p[i] ^ t.key[t.at]; {
		case t.at == 0 && c == code>>8:
		case t.at == 1 && c == code&0xff:
			t.badGateway = true
			p[i] ^= code&0xff ^ other&0xff
		default:
			t.at = 2
			return
		}
		t.at++
	}
}
