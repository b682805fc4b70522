package peers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"krater/transport/certs"
)

// The protocols of a member's address, by TLS's ALPN.
const (
	protocolControl = "h2"           // gRPC: control
	protocolHop     = "krater-hop/1" // frames
)

const (
	// handshakes bounds connections whose peer is not known yet.
	handshakes = 64
	// greetingTimeout bounds TLS's handshake and the token after it.
	greetingTimeout = 5 * time.Second
)

// Token says which hop a connection is for. The leader makes one at random for each hop of a cluster.
type Token [16]byte

// Listener accepts connections of members: of control, and of hops by their tokens.
type Listener struct {
	lis     net.Listener
	tls     *tls.Config
	log     zerolog.Logger
	control chan net.Conn
	places  chan struct{} // one for each handshake

	mu     sync.Mutex
	hops   map[Token]chan net.Conn
	closed chan struct{}
	once   sync.Once
	wg     sync.WaitGroup
}

// Listen listens on a TCP address with mutual TLS.
func Listen(addr string, id *certs.Identity, log zerolog.Logger) (*Listener, error) {
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	l := &Listener{
		lis: lis, tls: id.Server(protocolHop, protocolControl), log: log, control: make(chan net.Conn),
		places: make(chan struct{}, handshakes), hops: map[Token]chan net.Conn{}, closed: make(chan struct{}),
	}
	l.wg.Go(l.accept)
	return l, nil
}

// Addr is where it listens.
func (l *Listener) Addr() net.Addr { return l.lis.Addr() }

// Close ends the listener and what waits for it. Connections that it gave away stay.
func (l *Listener) Close() (err error) {
	l.once.Do(func() {
		close(l.closed)
		err = l.lis.Close()
	})
	l.wg.Wait()
	return err
}

// Expect waits for the connection of a hop, or until ctx ends.
func (l *Listener) Expect(ctx context.Context, t Token) (net.Conn, error) {
	ch := make(chan net.Conn)
	l.mu.Lock()
	l.hops[t] = ch
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.hops, t)
		l.mu.Unlock()
	}()
	select {
	case c := <-ch:
		return c, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("no peer has connected: %w", ctx.Err())
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *Listener) accept() {
	for {
		c, err := l.lis.Accept()
		if err != nil {
			select {
			case <-l.closed:
				return
			case <-time.After(100 * time.Millisecond): // too many open files, perhaps
				l.log.Warn().Err(err).Msg("a connection of a member is not accepted")
			}
			continue
		}
		select {
		case l.places <- struct{}{}:
			l.wg.Go(func() {
				defer func() { <-l.places }()
				l.greet(c)
			})
		default:
			c.Close()
		}
	}
}

// greet finds out who called.
func (l *Listener) greet(raw net.Conn) {
	tune(raw)
	c := tls.Server(raw, l.tls)
	ctx, cancel := context.WithTimeout(context.Background(), greetingTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	defer stop()
	to, err := l.receiver(ctx, c)
	if err == nil {
		select {
		case to <- c:
			return
		case <-ctx.Done():
			err = errors.New("nobody takes it")
		case <-l.closed:
		}
	}
	raw.Close()
	if err != nil {
		l.log.Warn().Stringer("from", raw.RemoteAddr()).Err(err).Msg("a connection of a member is refused")
	}
}

// receiver is who takes a new connection.
func (l *Listener) receiver(ctx context.Context, c *tls.Conn) (chan net.Conn, error) {
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	if c.ConnectionState().NegotiatedProtocol != protocolHop {
		return l.control, nil
	}
	var t Token
	if _, err := io.ReadFull(c, t[:]); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	ch := l.hops[t]
	if ch == nil {
		return nil, errors.New("it is for no hop that is expected")
	}
	_, err := c.Write([]byte{accepted})
	return ch, err
}

// accepted is the answer to a token that is expected.
const accepted = 1

// Dial connects to a member's listener for a hop.
func Dial(ctx context.Context, addr, peer string, id *certs.Identity, t Token) (net.Conn, error) {
	c, err := dial(ctx, addr, peer, id, protocolHop)
	if err != nil {
		return nil, err
	}
	answer := [1]byte{}
	err = c.SetDeadline(time.Now().Add(greetingTimeout))
	if err == nil {
		_, err = c.Write(t[:])
	}
	if err == nil {
		_, err = io.ReadFull(c, answer[:])
	}
	if err == nil && answer[0] != accepted {
		err = fmt.Errorf("answer %d", answer[0])
	}
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("%s at %s refuses the connection: %w", peer, addr, err)
	}
	return c, nil
}

func dial(ctx context.Context, addr, peer string, id *certs.Identity, protocol string) (*tls.Conn, error) {
	raw, err := (&net.Dialer{Timeout: greetingTimeout}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	tune(raw)
	c := tls.Client(raw, id.Client(peer, protocol))
	if err := c.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, fmt.Errorf("%s at %s: %w", peer, addr, err)
	}
	if got := c.ConnectionState().NegotiatedProtocol; got != protocol {
		raw.Close()
		return nil, fmt.Errorf("%s at %s is no member of this version: it speaks %q", peer, addr, got)
	}
	return c, nil
}

// tune prepares a TCP connection for peers that are gone. What fails here costs time only.
func tune(c net.Conn) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second, Count: 3})
}

// NameOf returns the name in the certificate of the peer; c is from Dial or Expect.
func NameOf(c net.Conn) string {
	if t, ok := c.(*tls.Conn); ok {
		if list := t.ConnectionState().PeerCertificates; len(list) > 0 && len(list[0].DNSNames) > 0 {
			return list[0].DNSNames[0]
		}
	}
	return ""
}
