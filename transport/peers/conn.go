// Package peers connects the members of a cluster over TCP with mutual TLS: frames of batches
// (actors/hop), each with a checksum.
package peers

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"krater/actors/hop"
)

// ErrTooLong reports a frame over Options.FrameBytes.
var ErrTooLong = errors.New("a frame over the limit")

// Options of a connection.
type Options struct {
	Peer string // name of the member at the other end
	// FrameBytes bounds the bytes of a frame in either direction: those of the largest batch.
	FrameBytes int
	// Timeout is how long the peer may take to accept a chunk (256 KiB); 0: DefaultTimeout.
	Timeout time.Duration
}

// DefaultTimeout is how long a peer may not answer.
const DefaultTimeout = 2 * time.Second

// Conn is a hop.Conn over a stream of bytes.
type Conn struct {
	opt Options
	c   net.Conn

	bulk    sync.Mutex   // held while a frame of prompts is sent
	write   sync.Mutex   // held while a chunk is written; protects scratch
	passed  *sync.Cond   // of write: no frame waits any more
	waiting atomic.Int32 // frames that a frame of prompts lets pass
	scratch []byte       // [chunkHeader + chunkBytes]

	in      *bufio.Reader
	header  [chunkHeader]byte
	partial [2]assembly // of frames, and of frames of prompts
	pool    sync.Pool   // of *received

	sent, received, sentBytes, receivedBytes atomic.Uint64
}

// assembly is a frame of which some chunks are here.
type assembly struct {
	r     *received
	total int
}

// received is a frame with its memory.
type received struct {
	frame   hop.Frame
	body    []byte
	release func()
}

// NewConn makes a connection of c, which it then owns. Both ends must agree on who they are before.
func NewConn(c net.Conn, opt Options) *Conn {
	if opt.Timeout == 0 {
		opt.Timeout = DefaultTimeout
	}
	p := &Conn{opt: opt, c: c, in: bufio.NewReaderSize(c, 64<<10)}
	p.passed = sync.NewCond(&p.write)
	p.pool.New = func() any {
		r := new(received)
		r.release = func() { p.pool.Put(r) }
		return r
	}
	return p
}

// Name implements hop.Conn.
func (c *Conn) Name() string { return c.opt.Peer }

// Close implements hop.Conn.
func (c *Conn) Close() error { return c.c.Close() }

// Stats are frames and bytes of a connection so far.
type Stats struct{ Sent, Received, SentBytes, ReceivedBytes uint64 }

// Stats counts what has passed. It is safe for concurrent use.
func (c *Conn) Stats() Stats {
	return Stats{c.sent.Load(), c.received.Load(), c.sentBytes.Load(), c.receivedBytes.Load()}
}

// Send implements hop.Conn. Frames of prompts (Bulk) are sent one at a time, and let other frames
// pass between two chunks.
func (c *Conn) Send(f *hop.Frame) error {
	n := bodyBytes(f)
	if n > c.opt.FrameBytes {
		return fmt.Errorf("%w: %d bytes for %s, of %d", ErrTooLong, n, c.opt.Peer, c.opt.FrameBytes)
	}
	if f.Bulk {
		c.bulk.Lock()
		defer c.bulk.Unlock()
	} else {
		c.waiting.Add(1)
	}
	c.write.Lock()
	defer c.write.Unlock()
	if !f.Bulk && c.waiting.Add(-1) == 0 {
		defer c.passed.Signal()
	}
	var header [frameHeader]byte
	putFrame(header[:], f)
	src := source{parts: [5][]byte{header[:], f.Meta, f.Rows[0], f.Rows[1], f.Rows[2]}}
	for left, flags := n, byte(chunkFirst); left > 0; flags = 0 {
		if f.Bulk {
			flags |= chunkBulk
			for c.waiting.Load() > 0 {
				c.passed.Wait()
			}
		}
		part := min(left, chunkBytes)
		if left -= part; left == 0 {
			flags |= chunkLast
		}
		if err := c.put(&src, part, flags); err != nil {
			c.c.Close()
			return fmt.Errorf("send to %s: %w", c.opt.Peer, err)
		}
	}
	c.sent.Add(1)
	c.sentBytes.Add(uint64(n))
	return nil
}

// put writes the next bytes of a body as a chunk.
func (c *Conn) put(src *source, n int, flags byte) error {
	if cap(c.scratch) < chunkHeader+n {
		c.scratch = make([]byte, chunkHeader+n)
	}
	chunk := c.scratch[:chunkHeader+n]
	src.read(chunk[chunkHeader:])
	putChunk(chunk, flags)
	if err := c.c.SetWriteDeadline(time.Now().Add(c.opt.Timeout)); err != nil {
		return err
	}
	_, err := c.c.Write(chunk)
	return err
}

// source reads the parts of a body one after another.
type source struct {
	parts [5][]byte
	at    int
}

func (s *source) read(dst []byte) {
	for len(dst) > 0 {
		n := copy(dst, s.parts[s.at])
		dst, s.parts[s.at] = dst[n:], s.parts[s.at][n:]
		if len(s.parts[s.at]) == 0 {
			s.at++
		}
	}
}

// Receive implements hop.Conn. A frame whose checksum is wrong ends the connection.
func (c *Conn) Receive() (*hop.Frame, error) {
	f, err := c.receive()
	if err != nil {
		c.c.Close()
		return nil, fmt.Errorf("receive from %s: %w", c.opt.Peer, err)
	}
	return f, nil
}

func (c *Conn) receive() (*hop.Frame, error) {
	for {
		if _, err := io.ReadFull(c.in, c.header[:]); err != nil {
			return nil, err
		}
		sum, n, flags, err := getChunk(c.header[:])
		if err != nil {
			return nil, err
		}
		a := &c.partial[flags&chunkBulk/chunkBulk]
		part, err := c.room(a, n, flags)
		if err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(c.in, part); err != nil {
			return nil, noEOF(err)
		}
		if got := crc32.Update(crc32.Checksum(c.header[4:], castagnoli), castagnoli, part); got != sum {
			return nil, fmt.Errorf("%w: a chunk of %d bytes has checksum %08x, not %08x", ErrWire, n, got, sum)
		}
		if flags&chunkLast == 0 {
			continue
		}
		r := a.r
		a.r = nil
		if err := getFrame(&r.frame, r.body, flags&chunkBulk != 0); err != nil {
			return nil, err
		}
		c.received.Add(1)
		c.receivedBytes.Add(uint64(len(r.body)))
		r.frame.Release = r.release
		return &r.frame, nil
	}
}

// room is where the next n bytes of a frame go.
func (c *Conn) room(a *assembly, n int, flags byte) ([]byte, error) {
	if first := flags&chunkFirst != 0; first != (a.r == nil) {
		return nil, fmt.Errorf("%w: first chunk %t in the middle of a frame %t", ErrWire, first, a.r != nil)
	}
	if a.r == nil {
		// The lengths are in the header of the frame, which this chunk begins with.
		if n < frameHeader {
			return nil, fmt.Errorf("%w: its first chunk has %d bytes", ErrWire, n)
		}
		h, err := c.in.Peek(frameHeader)
		if err != nil {
			return nil, noEOF(err)
		}
		a.total = frameHeader
		for i := range 4 {
			if a.total += int(binary.LittleEndian.Uint32(h[lengthsAt+4*i:])); a.total > c.opt.FrameBytes {
				return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLong, c.opt.FrameBytes)
			}
		}
		a.r = c.pool.Get().(*received)
		if cap(a.r.body) < a.total {
			a.r.body = make([]byte, 0, a.total)
		}
		a.r.body = a.r.body[:0]
	}
	at := len(a.r.body)
	if last := flags&chunkLast != 0; at+n > a.total || last != (at+n == a.total) {
		return nil, fmt.Errorf("%w: %d bytes after %d of %d, last %t", ErrWire, n, at, a.total, last)
	}
	a.r.body = a.r.body[:at+n]
	return a.r.body[at:], nil
}

// noEOF is err, where an end of the stream is in the middle of a frame.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
