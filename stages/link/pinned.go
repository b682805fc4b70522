package link

import "krater/kernels/device"

// Rows that are larger than a piece are copied in pieces, so that both copies of different pieces run
// at the same time. A link has room for some pieces.
const pieces = 4

var pieceBytes = 2 << 20 // smaller in tests

// roomBytes returns the pinned memory of a link for rows of that many bytes.
func roomBytes(largest int) int {
	if largest <= pieceBytes {
		return (largest + lineBytes - 1) / lineBytes * lineBytes
	}
	return pieces * pieceBytes
}

// Each of the matrices of a hop, of which there are mostMats at most, begins on a line.
const lineBytes, mostMats = 256, 3

// pinned copies through pinned memory, on streams of its own. The host does not wait.
type pinned struct {
	flight  Flight
	bridge  device.Bridge
	out, in device.Stream // of the sender and of the receiver
	room    []byte
	pieces  []piece // reused
	taken   [pieces]device.Event
}

// piece is rows of one matrix and their place in a part of the room.
type piece struct {
	src, dst device.Mat
	part, at int
}

func newPinned(w Way) (Link, bool) {
	l := &pinned{bridge: w.Bridge, room: w.Bridge.Host()[device.SumBytes:]}
	var err error
	if l.out, err = w.From.Accelerator().NewCopyStream(); err != nil {
		return nil, false
	}
	if l.in, err = w.To.Accelerator().NewCopyStream(); err != nil {
		l.out.Close()
		return nil, false
	}
	return l, true
}

func (l *pinned) Flight() *Flight { return &l.flight }

func (*pinned) Name() string { return "bounce" }

func (l *pinned) Close() {
	l.out.Close()
	l.in.Close()
}

func (l *pinned) Carry(from, to device.Stream, src, dst []device.Mat) error {
	l.cut(src, dst)
	f := &l.flight
	f.sent = from.Record()
	l.out.Wait(f.sent)
	l.in.Wait(f.sent)
	f.begin(l.in)
	for first := 0; first < len(l.pieces); {
		part := l.pieces[first].part
		last := first
		for last < len(l.pieces) && l.pieces[last].part == part {
			last++
		}
		l.carry(l.pieces[first:last], part)
		first = last
	}
	f.end(l.in)
	return f.pass(l.bridge, to, l.in, l.out)
}

// carry copies the pieces that share a part of the room, once the receiver has what was there.
func (l *pinned) carry(list []piece, part int) {
	if part >= pieces {
		l.out.Wait(l.taken[part%pieces])
	}
	for _, p := range list {
		l.out.CopyOut(l.bytes(p), p.src)
	}
	l.in.Wait(l.out.Record())
	for _, p := range list {
		l.in.CopyIn(p.dst, l.bytes(p))
	}
	l.taken[part%pieces] = l.in.Record()
}

func (l *pinned) bytes(p piece) []byte {
	return l.room[p.part%pieces*pieceBytes+p.at:][:p.src.Bytes()]
}

// cut divides matrices into pieces, of which several fit in a part of the room.
func (l *pinned) cut(src, dst []device.Mat) {
	l.pieces = l.pieces[:0]
	size := min(pieceBytes, len(l.room))
	part, at := 0, 0
	for i, m := range src {
		for row := 0; row < m.Rows; {
			bytes := m.Cols * m.DType.Size()
			n := min(m.Rows-row, (size-at)/bytes)
			if n <= 0 {
				part, at = part+1, 0
				continue
			}
			l.pieces = append(l.pieces, piece{m.RowRange(row, row+n), dst[i].RowRange(row, row+n), part, at})
			row, at = row+n, (at+n*bytes+lineBytes-1)/lineBytes*lineBytes
		}
	}
}
