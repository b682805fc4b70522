// Package link carries rows from the memory of one rank to that of the next.
package link

import (
	"errors"
	"time"

	"krater/kernels/device"
)

// Link carries rows of a batch between two devices. It belongs to one batch.
type Link interface {
	// Name returns the kind of the link: "direct", "peer", "bounce".
	Name() string
	// Carry copies src[i] of the sending device to dst[i], of equal size; all are dense. Work
	// enqueued on to afterwards finds the rows. The copy may still be under way when Carry
	// returns; then src must not change before that work has run. Between two accelerators the copy
	// follows the work of from, and Carry does not wait. Between other devices Carry waits for the
	// work of from. An error means only that the rows were not copied.
	Carry(from, to device.Stream, src, dst []device.Mat) error
	// Flight returns the latest copies of a link that does not wait for them, else nil.
	Flight() *Flight
	// Close frees what the link holds. None of its copies may be under way.
	Close()
}

// Way is where links lead. Bridge is nil unless both devices are accelerators that have one. Largest
// is the bytes of the largest rows.
type Way struct {
	From, To device.Device
	Bridge   device.Bridge
	Largest  int
}

// Kind makes links of one kind; ok is false if it cannot connect the devices.
type Kind func(w Way) (l Link, ok bool)

// Kinds are all of them, the fastest first.
func Kinds() []Kind { return []Kind{Direct, Peer, Bounce} }

// Direct links copy within memory that the host addresses.
func Direct(w Way) (Link, bool) {
	for _, dev := range []device.Device{w.From, w.To} {
		b, err := dev.Alloc(4)
		if err != nil {
			return nil, false
		}
		addressable := b.Host() != nil
		b.Free()
		if !addressable {
			return nil, false
		}
	}
	return direct{}, true
}

type direct struct{}

func (direct) Name() string { return "direct" }

func (direct) Close() {}

func (direct) Flight() *Flight { return nil }

func (direct) Carry(from, to device.Stream, src, dst []device.Mat) error {
	if err := from.Synchronize(); err != nil {
		return err
	}
	for i := range src {
		to.CopyIn(dst[i], host(src[i]))
	}
	return to.Synchronize() // the next step writes src
}

// host returns the memory of a dense matrix that the host addresses.
func host(m device.Mat) []byte { return m.Buf.Host()[m.Off:][:m.Bytes()] }

// Peer links are copies that one accelerator makes from the memory of another.
func Peer(w Way) (Link, bool) {
	if w.Bridge == nil || !w.Bridge.Peer() {
		return nil, false
	}
	in, err := w.To.Accelerator().NewCopyStream()
	if err != nil {
		return nil, false
	}
	return &peer{bridge: w.Bridge, in: in}, true
}

type peer struct {
	flight Flight
	bridge device.Bridge
	in     device.Stream // of the receiver, so that a copy that hangs holds up nothing else
}

func (*peer) Name() string { return "peer" }

func (l *peer) Flight() *Flight { return &l.flight }

func (l *peer) Close() { l.in.Close() }

func (l *peer) Carry(from, to device.Stream, src, dst []device.Mat) error {
	f := &l.flight
	f.sent = from.Record()
	l.in.Wait(f.sent)
	f.begin(l.in)
	l.bridge.CopyPeer(l.in, dst, src)
	f.end(l.in)
	return f.pass(l.bridge, to, l.in)
}

// Flight is the latest copies of a link: sent is when the rows are ready, last when they are copied.
type Flight struct {
	sent, last  device.Event
	count       int  // of Carry
	timed       bool // the receiver's device times the copies
	began, done device.Timestamp
}

// settled reports whether no copy is under way.
func (f *Flight) settled() bool { return f == nil || f.last == nil || f.last.Done() }

// begin is before the first copy on s, the receiver's stream, and end behind the last one.
func (f *Flight) begin(s device.Stream) {
	f.took() // releases what a lost hop has left
	f.began = f.stamp(s)
}

func (f *Flight) end(s device.Stream) { f.done = f.stamp(s) }

func (f *Flight) stamp(s device.Stream) device.Timestamp {
	if c := s.Clock(); f.timed && c != nil {
		return c.Timestamp()
	}
	return nil
}

// took returns the time of the copies, 0 if they were not timed.
func (f *Flight) took() (d time.Duration) {
	if f.began != nil && f.done != nil {
		var ago [1]time.Duration
		if f.done.Ago([]device.Timestamp{f.began}, ago[:]); ago[0] > 0 {
			d = ago[0]
		}
	}
	for _, t := range []device.Timestamp{f.began, f.done} {
		if t != nil {
			t.Release()
		}
	}
	f.began, f.done = nil, nil
	return d
}

// pass makes to wait until the copies on in[0] are done. After an error all of in are usable again.
func (f *Flight) pass(b device.Bridge, to device.Stream, in ...device.Stream) error {
	err := b.Open(in[0])
	if f.last = in[0].Record(); err == nil {
		b.Pass(to)
		return nil
	}
	for _, s := range in {
		err = errors.Join(err, s.Recover())
	}
	return err
}

// Bounce links copy through host memory, which is pinned between accelerators.
func Bounce(w Way) (Link, bool) {
	if w.Bridge == nil {
		return new(bounce), true
	}
	return newPinned(w)
}

type bounce struct{ room [][]byte }

func (*bounce) Name() string { return "bounce" }

func (*bounce) Close() {}

func (*bounce) Flight() *Flight { return nil }

func (l *bounce) Carry(from, to device.Stream, src, dst []device.Mat) error {
	for len(l.room) < len(src) {
		l.room = append(l.room, nil)
	}
	for i, m := range src {
		n := m.Bytes()
		if cap(l.room[i]) < n {
			l.room[i] = make([]byte, n)
		}
		from.CopyOut(l.room[i][:n], m)
	}
	if err := from.Synchronize(); err != nil {
		return err
	}
	for i, m := range dst {
		to.CopyIn(m, l.room[i][:m.Bytes()])
	}
	return nil
}
