package hop

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

const (
	pipeFrames = 64               // frames that a direction of a pipe holds
	pipeWait   = 10 * time.Second // for a peer that takes none
)

var errWait = errors.New("the peer took no frame in time")

// Pipe returns the two ends of a connection within the process, which have the names of their peers. It copies
// frames, so both sides own their memory as over a network.
func Pipe(first, second string) (Conn, Conn) {
	s := &shut{done: make(chan struct{})}
	a, b := make(chan *piped, pipeFrames), make(chan *piped, pipeFrames)
	return &pipe{s, a, b, make(chan *piped, pipeFrames), second}, &pipe{s, b, a, make(chan *piped, pipeFrames), first}
}

type shut struct {
	once sync.Once
	done chan struct{}
}

// pipe is one end.
type pipe struct {
	*shut
	in, out chan *piped
	free    chan *piped // sent before and released by the peer
	name    string
}

// piped is a frame with memory of its own, used again and again.
type piped struct {
	Frame
	meta []byte
	rows [len(Frame{}.Rows)][]byte
}

func (p *pipe) Name() string { return p.name }

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

// buffer returns a frame to copy into. It returns to this end when the peer releases it.
func (p *pipe) buffer() *piped {
	select {
	case c := <-p.free:
		return c
	default:
	}
	c := &piped{}
	c.Release = func() {
		select {
		case p.free <- c:
		default:
		}
	}
	return c
}

func (c *piped) copy(f *Frame) {
	release := c.Release
	c.Frame = *f
	c.Release = release
	c.meta = append(c.meta[:0], f.Meta...)
	c.Meta = c.meta
	for i, rows := range f.Rows {
		c.Rows[i] = nil
		if len(rows) > 0 {
			c.rows[i] = append(c.rows[i][:0], rows...)
			c.Rows[i] = c.rows[i]
		}
	}
}

func (p *pipe) Send(f *Frame) error {
	select {
	case <-p.done:
		return p.closed()
	default:
	}
	c := p.buffer()
	c.copy(f)
	select {
	case p.out <- c:
		return nil
	default:
	}
	late := time.NewTimer(pipeWait)
	defer late.Stop()
	select {
	case p.out <- c:
		return nil
	case <-p.done:
		return p.closed()
	case <-late.C:
		p.Close()
		return fmt.Errorf("hop to %s: %w", p.name, errWait)
	}
}

func (p *pipe) Receive() (*Frame, error) {
	select {
	case <-p.done:
		return nil, p.closed()
	default:
	}
	select {
	case c := <-p.in:
		return &c.Frame, nil
	case <-p.done:
		return nil, p.closed()
	}
}

func (p *pipe) closed() error { return fmt.Errorf("hop to %s: %w", p.name, net.ErrClosed) }
