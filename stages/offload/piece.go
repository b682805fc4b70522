package offload

import (
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/expert"
)

// line is the alignment of every piece of an expert, in bytes.
const line = 64

func aligned(n int) int { return (n + line - 1) / line * line }

// piece is some bytes of an expert and where they go in a slot.
type piece struct {
	buf   device.Buffer
	from  int // bytes from the start of buf
	bytes int
	at    int // bytes from the start of the slot
}

// host returns the piece's memory, nil where the host cannot address it.
func (p *piece) host() []byte {
	h := p.buf.Host()
	if len(h) < p.from+p.bytes {
		return nil
	}
	return h[p.from : p.from+p.bytes]
}

// place is where an expert names memory: a matrix, values or scales.
type place struct {
	buf   *device.Buffer
	at    *int
	bytes int
}

// places returns the places of an expert of one kind or the other, in the order of a slot.
func places(f *device.Expert, q *device.QExpert) []place {
	if f != nil {
		return append([]place{ofMat(&f.Gate), ofMat(&f.Up), ofMat(&f.Down)}, biases(&f.Extra)...)
	}
	return append([]place{
		{&q.W13.Values, &q.W13.ValueAt, q.W13.ValueBytes()}, {&q.W13.Scales, &q.W13.ScaleAt, q.W13.ScaleBytes()},
		{&q.W2.Values, &q.W2.ValueAt, q.W2.ValueBytes()}, {&q.W2.Scales, &q.W2.ScaleAt, q.W2.ScaleBytes()},
	}, biases(&q.Extra)...)
}

// biases lists the places of the biases, none without.
func biases(e *device.Extra) (list []place) {
	for _, m := range []*device.Mat{&e.B13, &e.B2} {
		if m.Rows > 0 {
			list = append(list, ofMat(m))
		}
	}
	return list
}

// ofMat returns a whole matrix, from its first element to its last.
func ofMat(m *device.Mat) place {
	n := 0
	if m.Rows > 0 {
		n = ((m.Rows-1)*m.Stride + m.Cols) * m.DType.Size()
	}
	return place{&m.Buf, &m.Off, n}
}

// of finds expert e of a bank.
func of(b *expert.Bank, e int) (*device.Expert, *device.QExpert) {
	if len(b.Integers) > 0 {
		return nil, &b.Integers[e]
	}
	return &b.Routed[e], nil
}

// pieces are the bytes of expert e, one behind the other in a slot.
func pieces(b *expert.Bank, e int) []piece {
	f, q := of(b, e)
	var list []piece
	at := 0
	for _, p := range places(f, q) {
		list = append(list, piece{*p.buf, *p.at, p.bytes, at})
		at += aligned(p.bytes)
	}
	return list
}

// join makes one piece of those that lie to one another in memory as they will in the slot,
// with what is between them.
func join(list []piece) []piece {
	out := list[:0]
	for _, p := range list {
		if n := len(out); n > 0 {
			last := &out[n-1]
			if last.buf == p.buf && p.from-last.from == p.at-last.at {
				last.bytes = p.at + p.bytes - last.at
				continue
			}
		}
		out = append(out, p)
	}
	return out
}

// bytesOf views n bytes of a buffer.
func bytesOf(buf device.Buffer, at, n int) device.Mat {
	m := device.NewMat(buf, tensor.U8, 1, n)
	m.Off = at
	return m
}
