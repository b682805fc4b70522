// Package mail is the mailbox by which a GPU calls the host in the middle of a step; a
// host call is a letter here. It has the layout of the mailbox's memory, the launches that
// send a letter and wait for its answer, and the host's side. It needs no driver: the
// maker of a Box gives it host memory that the GPU has mapped, and some of the GPU's own.
//
// A round trip costs some microseconds, not the bytes, as long as they are few. Launches
// depend on shapes only, so a list of them can be repeated as it is: letters are numbered by
// the card, and the host follows.
//
// Letters and answers of few rows consist of tagged words: 4 bytes of data below the letter's
// number. Whoever finds a word with the number has its data too, so nobody waits for writes to
// be there before a flag, nor looks for a flag before data; bytes double, and the host puts
// words together and takes them apart. What has more rows lies there plain, behind a flag.
//
// Functions given shapes that do not fit panic with *device.ShapeError.
package mail

import (
	"fmt"
	"time"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var (
	kPost    = launch.Named("kr_post")
	kTake    = launch.Named("kr_take")
	kPostFew = launch.Named("kr_post_few")
	kTakeFew = launch.Named("kr_take_few")
)

// Size bounds the letters of a mailbox.
type Size struct {
	device.MailSize
	RowType tensor.DType // of x: BF16 or F32
}

// StateBytes is what the card keeps of a mailbox in its own memory: its count of letters
// (I32), rows asked for, whether an answer was late, a turn.
const StateBytes = 16

// lateAt is where that word of the state lies.
const lateAt = 8

// Words that a card and the host wait for, each on lines of its own: the host reads posted
// while the card writes it, and the other way round.
const (
	postedAt   = 0   // U64: the number of the last letter, above its rows
	answeredAt = 128 // U32: the number of the last answer
	gaveUpAt   = 256 // U32: not 0 if the card has given up a wait
	headBytes  = 512
)

// The bytes of x, and of an answer, that go as tagged words at most. Beyond them the host's
// part, and a bus that carries twice the bytes, cost more than the microsecond that is saved: on
// an H100 4 KB there and 8 KB back take 12.4 us so, and 7.5 in the plain way.
const (
	mostTaggedX   = 1 << 10
	mostTaggedOut = 2 << 10
)

// A launch for tagged words has one block, which takes them all at once.
const _ = uint(pieceBytes - 2*max(mostTaggedX, mostTaggedOut))

// few is how many rows a letter and an answer of tagged words have at most; 0: none does.
func (s *Size) few() (x, out int) {
	return min(s.Rows, mostTaggedX/(s.Hidden*s.RowType.Size())), min(s.Rows, mostTaggedOut/(4*s.Hidden))
}

// taggedWords is how many a letter of rows rows has: ids, weights, x.
func (s *Size) taggedWords(rows int) int { return rows * (2*s.TopK + s.Hidden*s.RowType.Size()/4) }

// parts are where the rest lies. What holds tagged words never holds anything else: any number
// could look like a tag.
type parts struct{ ids, weights, x, out, taggedX, taggedOut, bytes int }

func (s *Size) parts() parts {
	p := parts{bytes: headBytes}
	cut := func(n int) int {
		at := p.bytes
		p.bytes += (n + 255) &^ 255
		return at
	}
	p.ids, p.weights = cut(4*s.Rows*s.TopK), cut(4*s.Rows*s.TopK)
	p.x, p.out = cut(s.Rows*s.Hidden*s.RowType.Size()), cut(4*s.Rows*s.Hidden)
	x, out := s.few()
	p.taggedX, p.taggedOut = cut(8*s.taggedWords(x)), cut(8*out*s.Hidden)
	return p
}

// Bytes is the host's memory that a mailbox needs.
func (s *Size) Bytes() int { return s.parts().bytes }

// Check refuses what letters cannot be.
func (s *Size) Check() error {
	switch {
	case s.Rows < 1 || s.TopK < 1 || s.Hidden < 1 || s.Hidden%8 != 0:
		return fmt.Errorf("letters of %d rows of %d, %d choices a row", s.Rows, s.Hidden, s.TopK)
	case s.RowType != tensor.BF16 && s.RowType != tensor.F32:
		return fmt.Errorf("letters of %s", s.RowType)
	case s.Limit < time.Microsecond || s.Limit > time.Hour:
		return fmt.Errorf("answers within %v", s.Limit)
	}
	return nil
}

// Box is a mailbox as launches see it.
type Box struct {
	Size
	Host  launch.Ptr // Bytes of host memory by the card's addresses, aligned to 256; zeros at first
	State launch.Ptr // StateBytes of the card's memory, aligned to 16; zeros at first
}

// A block's threads, and the bytes that it has on their way at once.
const (
	threads    = 256
	pieceBytes = threads * 4 * 16
)

// mostBlocks bounds the blocks of a launch. A bus carries some 50 bytes in a nanosecond and
// a load takes a microsecond or two: with 16 KB of each of 4 blocks on their way it is full,
// and what more blocks would add is waiting for the same word.
const mostBlocks = 8

func config(bytes int) launch.Config {
	n := max(1, min(mostBlocks, (bytes+pieceBytes-1)/pieceBytes))
	return launch.Config{Grid: launch.Dim{X: uint32(n)}, Block: launch.Dim{X: threads}, PDL: true}
}

// Post sends a letter: x [T, H] and what of ids [T, K] I32 and weights [T, K] F32 belongs to
// experts that where [1, E] I32 has below 0. If that is nothing, the letter says so. One
// launch. A Take follows before the next Post.
func Post(l *launch.List, b *Box, x, ids, weights, where launch.Mat) {
	const op = "Post"
	switch {
	case x.Zero() || x.DType != b.RowType || x.Rows < 1 || x.Rows > b.Rows || x.Cols != b.Hidden || !aligned(x):
		refuse(op, "x %v for letters of %d rows of %d %s", x, b.Rows, b.Hidden, b.RowType)
	case ids.Zero() || ids.DType != tensor.I32 || ids.Rows != x.Rows || ids.Cols != b.TopK || !ids.Dense():
		refuse(op, "ids %v for x %v, %d choices a row", ids, x, b.TopK)
	case weights.Zero() || weights.DType != tensor.F32 || weights.Rows != x.Rows || weights.Cols != ids.Cols || !weights.Dense():
		refuse(op, "weights %v for ids %v", weights, ids)
	case where.Zero() || where.DType != tensor.I32 || where.Rows != 1 || where.Cols < 1:
		refuse(op, "where %v", where)
	}
	p, row := b.parts(), x.Cols*x.DType.Size()
	if few, _ := b.few(); x.Rows <= few {
		l.Add(kPostFew, config(x.Rows*row),
			launch.P(b.Host+launch.Ptr(p.taggedX)), launch.P(b.Host+postedAt), launch.P(b.State),
			launch.P(x.At), launch.I64(int64(x.Stride*x.DType.Size())), launch.I32(row/8),
			launch.P(ids.At), launch.P(weights.At), launch.P(where.At), launch.I32(where.Cols), launch.I32(x.Rows), launch.I32(ids.Cols))
		return
	}
	l.Add(kPost, config(x.Rows*row),
		launch.P(b.Host+launch.Ptr(p.x)), launch.P(b.Host+launch.Ptr(p.ids)), launch.P(b.Host+launch.Ptr(p.weights)), launch.P(b.Host+postedAt), launch.P(b.State),
		launch.P(x.At), launch.I64(int64(x.Stride*x.DType.Size())), launch.I32(row/16),
		launch.P(ids.At), launch.P(weights.At), launch.P(where.At), launch.I32(where.Cols), launch.I32(x.Rows), launch.I32(ids.Cols))
}

// Take waits for the answer to the last letter, of so many rows too, and adds it: hidden
// [T, H] F32 += rows. One launch.
func Take(l *launch.List, b *Box, hidden launch.Mat) {
	if hidden.Zero() || hidden.DType != tensor.F32 || hidden.Rows < 1 || hidden.Rows > b.Rows || hidden.Cols != b.Hidden || !aligned(hidden) {
		refuse("Take", "hidden %v for letters of %d rows of %d", hidden, b.Rows, b.Hidden)
	}
	p, row := b.parts(), 4*hidden.Cols
	if _, few := b.few(); hidden.Rows <= few {
		l.Add(kTakeFew, config(hidden.Rows*row),
			launch.P(hidden.At), launch.I64(int64(4*hidden.Stride)), launch.I32(row/8), launch.I32(hidden.Rows),
			launch.P(b.Host+launch.Ptr(p.taggedOut)), launch.P(b.Host+gaveUpAt), launch.P(b.State), launch.U32(uint32(b.Limit.Microseconds())))
		return
	}
	l.Add(kTake, config(hidden.Rows*row),
		launch.P(hidden.At), launch.I64(int64(4*hidden.Stride)), launch.I32(row/16), launch.I32(hidden.Rows),
		launch.P(b.Host+launch.Ptr(p.out)), launch.P(b.Host+answeredAt), launch.P(b.Host+gaveUpAt), launch.P(b.State),
		launch.U32(uint32(b.Limit.Microseconds())))
}

// Clear has the card ask and wait again, after an answer that was late.
func Clear(l *launch.List, b *Box) { l.Fill(b.State+lateAt, 4, 0) }

// aligned reports whether every row is made of units of 16 bytes.
func aligned(m launch.Mat) bool {
	size := m.DType.Size()
	return m.At%16 == 0 && m.Cols*size%16 == 0 && (m.Rows == 1 || m.Stride*size%16 == 0)
}

func refuse(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}
