package stages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"krater/kernels/device"
)

// The encoding of a Step, for a rank that is reached by messages: a version, then
// its fields up to Watched. Integers are varints, lists begin with their length, floats are 8 bytes, little-endian. What Fill derives is not sent: the
// receiver derives and checks it as the sender did.

const stepVersion = 3

// errWire reports bytes that do not encode a step.
var errWire = errors.New("not a step")

const (
	stepAllLogits = 1 << iota
	stepHalts
	stepWatched
	stepKnown = 1<<iota - 1
)

const (
	spanDecode = 1 << iota
	spanWant
	spanEvery
	spanKnown = 1<<iota - 1
)

// AppendBinary appends the encoding of st to dst. From must be nil, because tokens on a device cannot be
// encoded.
func (st *Step) AppendBinary(dst []byte) ([]byte, error) {
	if st.From != nil {
		return dst, fmt.Errorf("%w: its tokens are on a device", ErrBatch)
	}
	u, v := binary.AppendUvarint, binary.AppendVarint
	dst = append(dst, stepVersion, flags(st.AllLogits, st.UsesHost, st.Watched))
	dst = u(dst, uint64(st.Queue))
	dst = appendInts(dst, st.Tokens)
	dst = u(dst, uint64(len(st.Spans)))
	for i := range st.Spans {
		sp := &st.Spans[i]
		dst = append(dst, flags(sp.Decode, sp.Want, sp.Every))
		for _, n := range [...]uint64{sp.Seq, uint64(sp.Slot), uint64(sp.Row), uint64(sp.Len), uint64(sp.Pos), uint64(len(sp.Blocks))} {
			dst = u(dst, n)
		}
		for _, id := range sp.Blocks {
			dst = v(dst, int64(id))
		}
		dst = appendInts(dst, sp.Windows)
	}
	dst = u(dst, uint64(len(st.Moves)))
	for _, m := range st.Moves {
		dst = v(v(append(dst, byte(m.Kind)), int64(m.From)), int64(m.To))
	}
	dst = u(dst, uint64(len(st.Draws)))
	for i := range st.Draws {
		dst = appendDraw(dst, &st.Draws[i])
	}
	return dst, nil
}

func appendDraw(dst []byte, d *device.Draw) []byte {
	for _, f := range [...]float64{d.Temperature, d.TopP, d.MinP} {
		dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(f))
	}
	dst = binary.AppendVarint(dst, int64(d.TopK))
	dst = binary.AppendUvarint(binary.AppendUvarint(dst, d.Seed), d.N)
	dst = binary.AppendVarint(binary.AppendVarint(dst, int64(d.Slot)), int64(d.Stored))
	dst = appendInts(appendInts(dst, d.Change), d.Tokens)
	dst = binary.AppendUvarint(dst, uint64(len(d.Mask)))
	for _, w := range d.Mask {
		dst = binary.AppendUvarint(dst, uint64(w))
	}
	return append(dst, flags(d.Later))
}

// appendInts appends the length of a list and its numbers.
func appendInts(dst []byte, list []int32) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(list)))
	for _, n := range list {
		dst = binary.AppendVarint(dst, int64(n))
	}
	return dst
}

// UnmarshalBinary fills st from bytes that AppendBinary made. The bytes need not be trusted: a step that
// does not fit st's limits is ErrBatch, and UnmarshalBinary allocates no more than their length.
func (st *Step) UnmarshalBinary(data []byte) error {
	r := reader{rest: data}
	if v := r.byte(); v != stepVersion && !r.bad {
		return fmt.Errorf("%w: %w: version %d, known is %d", ErrBatch, errWire, v, stepVersion)
	}
	var b Step
	r.flags(stepKnown, &b.AllLogits, &b.UsesHost, &b.Watched)
	b.Queue = r.int()
	b.Tokens = r.int32s(st.bounds.Tokens)
	b.Spans = make([]Span, r.count(st.bounds.Seqs, 8))
	for i := range b.Spans {
		sp := &b.Spans[i]
		r.flags(spanKnown, &sp.Decode, &sp.Want, &sp.Every)
		sp.Seq, sp.Slot, sp.Row, sp.Len, sp.Pos = r.uint(), r.int(), r.int(), r.int(), r.int()
		sp.Blocks, sp.Windows = r.int32s(st.bounds.Blocks), r.int32s(st.bounds.Blocks)
	}
	b.Moves = make([]Move, r.count(math.MaxInt32, 3))
	for i := range b.Moves {
		b.Moves[i] = Move{MoveKind(r.byte()), r.int32(), r.int32()}
	}
	b.Draws = make([]device.Draw, r.count(st.bounds.LogitRows, 32))
	for i := range b.Draws {
		b.Draws[i] = r.draw(st.bounds.Context, (st.vocab+31)/32)
	}
	if r.bad || len(r.rest) > 0 {
		return fmt.Errorf("%w: %w: byte %d of %d", ErrBatch, errWire, len(data)-len(r.rest), len(data))
	}
	return st.Fill(&b)
}

// flags returns a byte with a bit for each.
func flags(list ...bool) (b byte) {
	for i, on := range list {
		if on {
			b |= 1 << i
		}
	}
	return b
}

// reader reads values off bytes. Once one is not there, bad is set and all are 0.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) fail() { r.bad, r.rest = true, nil }

func (r *reader) byte() byte {
	if len(r.rest) == 0 {
		r.fail()
		return 0
	}
	b := r.rest[0]
	r.rest = r.rest[1:]
	return b
}

func (r *reader) flags(known byte, list ...*bool) {
	b := r.byte()
	if b&^known != 0 {
		r.fail()
	}
	for i, on := range list {
		*on = b&(1<<i) != 0
	}
}

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// int returns a number that is not negative.
func (r *reader) int() int {
	v := r.uint()
	if v > math.MaxInt32 {
		r.fail()
		return 0
	}
	return int(v)
}

func (r *reader) int32() int32 {
	v, n := binary.Varint(r.rest)
	if n <= 0 || v != int64(int32(v)) {
		r.fail()
		return 0
	}
	r.rest = r.rest[n:]
	return int32(v)
}

// count reads the length of a list of at most most items, each of at least the given bytes.
func (r *reader) count(most, bytes int) int {
	n := r.int()
	if n > most || n*bytes > len(r.rest) {
		r.fail()
		return 0
	}
	return n
}

func (r *reader) int32s(most int) []int32 {
	list := make([]int32, r.count(most, 1))
	for i := range list {
		list[i] = r.int32()
	}
	return list
}

func (r *reader) float() float64 {
	if len(r.rest) < 8 {
		r.fail()
		return 0
	}
	f := math.Float64frombits(binary.LittleEndian.Uint64(r.rest))
	r.rest = r.rest[8:]
	return f
}

// draw reads a draw of a sequence of at most context tokens. Its mask has at most mask words.
func (r *reader) draw(context, mask int) (d device.Draw) {
	d.Temperature, d.TopP, d.MinP = r.float(), r.float(), r.float()
	d.TopK = int(r.int32())
	d.Seed, d.N = r.uint(), r.uint()
	d.Slot, d.Stored = int(r.int32()), int(r.int32())
	d.Change, d.Tokens = r.int32s(device.ChangeWords), r.int32s(context)
	d.Mask = make([]uint32, r.count(mask, 1))
	for i := range d.Mask {
		w := r.uint()
		if w > math.MaxUint32 {
			r.fail()
		}
		d.Mask[i] = uint32(w)
	}
	r.flags(1, &d.Later)
	if len(d.Change) == 0 {
		d.Change = nil // absent and empty differ
	}
	if len(d.Tokens) == 0 {
		d.Tokens = nil
	}
	if len(d.Mask) == 0 {
		d.Mask = nil
	}
	return d
}
