package peers

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"krater/actors/hop"
)

// connected is two ends of a loopback connection.
func connected(t testing.TB, frameBytes int) (a, b *Conn) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	x, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	y, err := lis.Accept()
	if err != nil {
		t.Fatal(err)
	}
	a, b = NewConn(x, Options{Peer: "b", FrameBytes: frameBytes}), NewConn(y, Options{Peer: "a", FrameBytes: frameBytes})
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func randomBytes(r *rand.Rand, n int) []byte {
	if n == 0 {
		return nil
	}
	p := make([]byte, n+7)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(p[i:], r.Uint64())
	}
	return p[:n]
}

func randomFrame(r *rand.Rand, id uint64, bulk bool) *hop.Frame {
	f := &hop.Frame{
		Kind: hop.Kind(1 + r.IntN(4)), Batch: byte(r.Uint32()), Epoch: r.Uint32(), ID: id, Follows: r.Uint64(), Repeatable: r.IntN(2) > 0, Bulk: bulk, Sent: r.Int64(),
		Meta: randomBytes(r, r.IntN(500)),
	}
	for i := range f.Rows {
		n := r.IntN(20000)
		if bulk {
			n = r.IntN(3 * chunkBytes)
		}
		f.Rows[i] = randomBytes(r, n*r.IntN(2))
	}
	return f
}

func sameFrame(a, b *hop.Frame) bool {
	x, y := *a, *b
	equal := bytes.Equal(x.Meta, y.Meta)
	for i := range x.Rows {
		equal = equal && bytes.Equal(x.Rows[i], y.Rows[i])
	}
	return equal && x.Kind == y.Kind && x.Batch == y.Batch && x.Epoch == y.Epoch && x.ID == y.ID && x.Repeatable == y.Repeatable && x.Bulk == y.Bulk && x.Follows == y.Follows && x.Sent == y.Sent
}

// TestFrames: frames of all sizes arrive as they were sent, from several senders at once.
func TestFrames(t *testing.T) {
	a, b := connected(t, 4<<20)
	const senders, frames = 4, 20
	want := make([][]*hop.Frame, senders)
	var wg sync.WaitGroup
	for i := range want {
		r := rand.New(rand.NewPCG(1, uint64(i)))
		for j := range frames {
			want[i] = append(want[i], randomFrame(r, uint64(i*frames+j), i%2 > 0))
		}
	}
	for i := range want {
		wg.Go(func() {
			for _, f := range want[i] {
				if err := a.Send(f); err != nil {
					t.Error(err)
				}
			}
		})
	}
	next := make([]int, senders)
	for range senders * frames {
		f, err := b.Receive()
		if err != nil {
			t.Fatal(err)
		}
		i := int(f.ID) / frames
		if !sameFrame(f, want[i][next[i]]) {
			t.Fatalf("sender %d, frame %d: %+v", i, next[i], f)
		}
		next[i]++
		f.Release()
	}
	wg.Wait()
	if s, r := a.Stats(), b.Stats(); s.Sent != senders*frames || s.Sent != r.Received || s.SentBytes != r.ReceivedBytes {
		t.Errorf("counted %+v and %+v", s, r)
	}
}

// TestDecodeBeforeBulk: a frame of generated rows passes the chunks of a prompt that is being sent.
func TestDecodeBeforeBulk(t *testing.T) {
	x, y := net.Pipe() // takes nothing that is not read
	a, b := NewConn(x, Options{Peer: "b", FrameBytes: 64 << 20, Timeout: time.Minute}), NewConn(y, Options{Peer: "a", FrameBytes: 64 << 20})
	defer a.Close()
	defer b.Close()
	sent := make(chan error, 2)
	go func() {
		sent <- a.Send(&hop.Frame{Kind: hop.Step, ID: 1, Bulk: true, Rows: [3][]byte{make([]byte, 32<<20)}})
	}()
	for a.write.TryLock() { // until the first chunk is being written
		a.write.Unlock()
	}
	go func() { sent <- a.Send(&hop.Frame{Kind: hop.Step, ID: 2, Rows: [3][]byte{make([]byte, 14<<10)}}) }()
	for a.waiting.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	for _, want := range []uint64{2, 1} {
		f, err := b.Receive()
		if err != nil || f.ID != want {
			t.Fatalf("frame %d, %v; want %d", f.ID, err, want)
		}
	}
	for range 2 {
		if err := <-sent; err != nil {
			t.Error(err)
		}
	}
}

// wireOf returns the bytes that a connection writes for frames.
func wireOf(t testing.TB, frames ...*hop.Frame) []byte {
	t.Helper()
	var out bytes.Buffer
	c := NewConn(fakeConn{nil, &out}, Options{FrameBytes: 8 << 20})
	for _, f := range frames {
		if err := c.Send(f); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

// fakeConn is a connection over memory.
type fakeConn struct {
	io.Reader
	io.Writer
}

func (fakeConn) Close() error                     { return nil }
func (fakeConn) LocalAddr() net.Addr              { return nil }
func (fakeConn) RemoteAddr() net.Addr             { return nil }
func (fakeConn) SetDeadline(time.Time) error      { return nil }
func (fakeConn) SetReadDeadline(time.Time) error  { return nil }
func (fakeConn) SetWriteDeadline(time.Time) error { return nil }

// TestDamage: no single bit of a frame can change without being noticed.
func TestDamage(t *testing.T) {
	f := randomFrame(rand.New(rand.NewPCG(3, 1)), 9, false)
	f.Rows = [3][]byte{randomBytes(rand.New(rand.NewPCG(4, 1)), 300), {1, 2, 3, 4}, nil}
	good := wireOf(t, f)
	for bit := range 8 * len(good) {
		bad := slices.Clone(good)
		bad[bit/8] ^= 1 << (bit % 8)
		c := NewConn(fakeConn{bytes.NewReader(bad), nil}, Options{FrameBytes: 1 << 20})
		if got, err := c.Receive(); err == nil {
			t.Fatalf("bit %d: %+v", bit, got)
		}
	}
	for n := range good {
		c := NewConn(fakeConn{bytes.NewReader(good[:n]), nil}, Options{FrameBytes: 1 << 20})
		if _, err := c.Receive(); !errors.Is(err, io.ErrUnexpectedEOF) && (n > 0 || !errors.Is(err, io.EOF)) && !errors.Is(err, ErrWire) {
			t.Fatalf("%d of %d bytes: %v", n, len(good), err)
		}
	}
}

// TestTooLong: neither end sends or allocates more than the limit.
func TestTooLong(t *testing.T) {
	f := &hop.Frame{Kind: hop.Step, Rows: [3][]byte{make([]byte, 1000)}}
	c := NewConn(fakeConn{bytes.NewReader(wireOf(t, f)), nil}, Options{FrameBytes: 1000})
	if _, err := c.Receive(); !errors.Is(err, ErrTooLong) {
		t.Errorf("received: %v", err)
	}
	if err := c.Send(f); !errors.Is(err, ErrTooLong) {
		t.Errorf("sent: %v", err)
	}
}

// TestStuckPeer: a peer that takes nothing is noticed.
func TestStuckPeer(t *testing.T) {
	x, y := net.Pipe()
	defer y.Close()
	c := NewConn(x, Options{Peer: "y", FrameBytes: 1 << 20, Timeout: 20 * time.Millisecond})
	err := c.Send(&hop.Frame{Kind: hop.Step})
	if e, ok := errors.AsType[net.Error](err); !ok || !e.Timeout() {
		t.Errorf("sent: %v", err)
	}
	if err := c.Send(&hop.Frame{Kind: hop.Step}); err == nil {
		t.Error("a connection with half a chunk is used again")
	}
}

func FuzzReceive(f *testing.F) {
	r := rand.New(rand.NewPCG(5, 1))
	f.Add(wireOf(f, randomFrame(r, 1, false), randomFrame(r, 2, false)))
	f.Add(wireOf(f, &hop.Frame{Kind: hop.Forget}))
	f.Add(wireOf(f, &hop.Frame{Kind: hop.Step, Bulk: true, Rows: [3][]byte{make([]byte, chunkBytes)}}))
	f.Fuzz(func(t *testing.T, wire []byte) {
		c := NewConn(fakeConn{bytes.NewReader(wire), nil}, Options{FrameBytes: 1 << 20})
		for {
			f, err := c.Receive()
			if err != nil {
				return
			}
			if n := bodyBytes(f); n > 1<<20 || n > len(wire) {
				t.Fatalf("a frame of %d bytes from %d", n, len(wire))
			}
			f.Release()
		}
	})
}
