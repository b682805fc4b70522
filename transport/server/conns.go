package server

import (
	"net"
	"sync"

	"krater/transport/api"
)

// guests is a listener that closes connections beyond a limit at once, or beyond an address's share
// of it: each costs memory and a file descriptor, whatever it sends.
type guests struct {
	net.Listener
	places *api.Shares
}

// Accept implements net.Listener.
func (l *guests) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if release := l.places.Take(addressOf(conn.RemoteAddr().String())); release != nil {
			return &guest{conn, sync.OnceFunc(release)}, nil
		}
		_ = conn.Close()
	}
}

// guest is a connection that has a place.
type guest struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *guest) Close() error {
	defer c.release()
	return c.Conn.Close()
}
