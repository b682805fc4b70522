// Package hostcall is the mailbox by which a GPU calls the host in the middle of a step. It has
// the layout of the mailbox's memory, the launches that send a call and wait for its answer, and
// the host's side. It needs no driver: the maker of a Box gives it host memory that the GPU has
// mapped, and some of the GPU's own.
//
// The time of a round trip is some microseconds and hardly depends on the bytes, if they are few.
// Launches depend on shapes only, so a list of them can be replayed: the GPU numbers the calls,
// and the host counts along.
//
// Calls and answers of few rows consist of tagged words: 4 bytes of data below the call's number.
// A reader that finds the number in a word has its data too. So no writer has to wait until data
// is visible before it sets a flag, and no reader reads a flag before the data. The price is twice
// the bytes, and that the host packs and unpacks the words. Larger calls and answers lie in plain
// memory, behind a flag.
//
// Functions panic with *device.ShapeError if shapes do not fit.
package hostcall

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
	kRows    = launch.Named("kr_take_rows")
)

// Size bounds the calls of a mailbox.
type Size struct {
	device.HostCallSize
	RowType tensor.DType // of x: BF16 or F32
}

// StateBytes is the size of a mailbox's state in the GPU's own memory: the number of calls (I32), the
// rows of the last one, whether an answer was late, and a counter of blocks.
const StateBytes = 16

// lateAt is the offset of the word for a late answer.
const lateAt = 8

// Words that the GPU and the host poll, each on cache lines of its own: one side reads a word
// while the other writes it.
const (
	postedAt   = 0   // U64: the number of the last call, above its rows
	answeredAt = 128 // U32: the number of the last answer
	gaveUpAt   = 256 // U32: not 0 if the GPU has given up a wait
	headBytes  = 512
)

// The most bytes of x, and of an answer, that are sent as tagged words. Beyond them the work of the
// host, and twice the bytes on the bus, cost more than the microsecond that is saved: on an H100,
// 4 KB to the host and 8 KB back take 12.4 us as tagged words and 7.5 us in plain memory.
const (
	mostTaggedX   = 1 << 10
	mostTaggedOut = 2 << 10
)

// A launch for tagged words has one block, which loads all of them at once.
const _ = uint(pieceBytes - 2*max(mostTaggedX, mostTaggedOut))

// answers returns the number of rows of the answer to a call with the given number of rows.
func (s *Size) answers(rows int) int {
	if s.Each {
		return rows * s.TopK
	}
	return rows
}

// few is the most rows that a call, and an answer, has as tagged words; 0: none are used.
func (s *Size) few() (x, out int) {
	if s.Each {
		return min(s.Rows, mostTaggedX/(s.Hidden*s.RowType.Size())), 0
	}
	return min(s.Rows, mostTaggedX/(s.Hidden*s.RowType.Size())), min(s.Rows, mostTaggedOut/(4*s.Hidden))
}

// taggedWords is the number of tagged words of a call: ids, weights, x.
func (s *Size) taggedWords(rows int) int { return rows * (2*s.TopK + s.Hidden*s.RowType.Size()/4) }

// parts are the offsets of the rest of the mailbox. Memory of tagged words holds nothing else,
// because any number could look like a tag.
type parts struct{ ids, weights, x, out, taggedX, taggedOut, bytes int }

func (s *Size) parts() parts {
	p := parts{bytes: headBytes}
	cut := func(n int) int {
		at := p.bytes
		p.bytes += (n + 255) &^ 255
		return at
	}
	p.ids, p.weights = cut(4*s.Rows*s.TopK), cut(4*s.Rows*s.TopK)
	p.x, p.out = cut(s.Rows*s.Hidden*s.RowType.Size()), cut(4*s.answers(s.Rows)*s.Hidden)
	x, out := s.few()
	p.taggedX, p.taggedOut = cut(8*s.taggedWords(x)), cut(8*out*s.Hidden)
	return p
}

// Bytes is the size of a mailbox in host memory.
func (s *Size) Bytes() int { return s.parts().bytes }

// Check refuses sizes that calls cannot have.
func (s *Size) Check() error {
	switch {
	case s.Rows < 1 || s.TopK < 1 || s.Hidden < 1 || s.Hidden%8 != 0:
		return fmt.Errorf("host calls of %d rows of %d, with %d choices for each row", s.Rows, s.Hidden, s.TopK)
	case s.RowType != tensor.BF16 && s.RowType != tensor.F32:
		return fmt.Errorf("host calls of %s", s.RowType)
	case s.Limit < time.Microsecond || s.Limit > time.Hour:
		return fmt.Errorf("answers within %v", s.Limit)
	}
	return nil
}

// Box is a mailbox as launches see it.
type Box struct {
	Size
	Host  launch.Ptr // Bytes of host memory by the GPU's addresses, aligned to 256; zeros at first
	State launch.Ptr // StateBytes of the GPU's memory, aligned to 16; zeros at first
}

// The threads of a block, and the bytes that it loads at once.
const (
	threads    = 256
	pieceBytes = threads * 4 * 16
)

// mostBlocks bounds the blocks of a launch. The bus carries some 50 bytes in a nanosecond and a load
// takes a microsecond or two, so 4 blocks with 16 KB of loads each fill it. More blocks would only
// poll the same word.
const mostBlocks = 8

func config(bytes int) launch.Config {
	n := max(1, min(mostBlocks, (bytes+pieceBytes-1)/pieceBytes))
	return launch.Config{Grid: launch.Dim{X: uint32(n)}, Block: launch.Dim{X: threads}, PDL: true}
}

// Post adds the launch that sends a call: x [T, H], and those ids [T, K] I32 with their weights
// [T, K] F32 for which slots [1, E] I32 has a value below 0. If there are none, the call says so.
// A Take follows before the next Post.
func Post(l *launch.List, b *Box, x, ids, weights, slots launch.Mat) {
	const op = "Post"
	switch {
	case x.Zero() || x.DType != b.RowType || x.Rows < 1 || x.Rows > b.Rows || x.Cols != b.Hidden || !aligned(x):
		refuse(op, "x %v for host calls of %d rows of %d %s", x, b.Rows, b.Hidden, b.RowType)
	case ids.Zero() || ids.DType != tensor.I32 || ids.Rows != x.Rows || ids.Cols != b.TopK || !ids.Dense():
		refuse(op, "ids %v for x %v, %d choices for each row", ids, x, b.TopK)
	case weights.Zero() || weights.DType != tensor.F32 || weights.Rows != x.Rows || weights.Cols != ids.Cols || !weights.Dense():
		refuse(op, "weights %v for ids %v", weights, ids)
	case slots.Zero() || slots.DType != tensor.I32 || slots.Rows != 1 || slots.Cols < 1:
		refuse(op, "slots %v", slots)
	}
	p, row := b.parts(), x.Cols*x.DType.Size()
	if few, _ := b.few(); x.Rows <= few {
		l.Add(kPostFew, config(x.Rows*row),
			launch.P(b.Host+launch.Ptr(p.taggedX)), launch.P(b.Host+postedAt), launch.P(b.State),
			launch.P(x.At), launch.I64(int64(x.Stride*x.DType.Size())), launch.I32(row/8),
			launch.P(ids.At), launch.P(weights.At), launch.P(slots.At), launch.I32(slots.Cols), launch.I32(x.Rows), launch.I32(ids.Cols))
		return
	}
	l.Add(kPost, config(x.Rows*row),
		launch.P(b.Host+launch.Ptr(p.x)), launch.P(b.Host+launch.Ptr(p.ids)), launch.P(b.Host+launch.Ptr(p.weights)), launch.P(b.Host+postedAt), launch.P(b.State),
		launch.P(x.At), launch.I64(int64(x.Stride*x.DType.Size())), launch.I32(row/16),
		launch.P(ids.At), launch.P(weights.At), launch.P(slots.At), launch.I32(slots.Cols), launch.I32(x.Rows), launch.I32(ids.Cols))
}

// Take adds the launch that waits for the answer to the last call, of as many rows, and adds it:
// hidden [T, H] F32 += rows.
func Take(l *launch.List, b *Box, hidden launch.Mat) {
	if hidden.Zero() || b.Each || hidden.DType != tensor.F32 || hidden.Rows < 1 || hidden.Rows > b.Rows || hidden.Cols != b.Hidden || !aligned(hidden) {
		refuse("Take", "hidden %v for host calls of %d rows of %d", hidden, b.Rows, b.Hidden)
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

// TakeRows adds the launch that waits for the answer to the last call, of a row for each choice: rows of y
// [T*K, H] F32 or BF16 whose choice of ids [T, K] has a value below 0 in slots [1, E] become the answer's.
func TakeRows(l *launch.List, b *Box, y, ids, slots launch.Mat) {
	switch {
	case !b.Each || ids.Zero() || ids.DType != tensor.I32 || ids.Cols != b.TopK || ids.Rows < 1 || ids.Rows > b.Rows || !ids.Dense():
		refuse("TakeRows", "ids %v for host calls of %d rows", ids, b.Rows)
	case y.Zero() || y.DType != tensor.F32 && y.DType != tensor.BF16 || y.Rows != ids.Rows*ids.Cols || y.Cols != b.Hidden || !aligned(y):
		refuse("TakeRows", "y %v for host calls of %d rows of %d", y, b.Rows, b.Hidden)
	case slots.Zero() || slots.DType != tensor.I32 || slots.Rows != 1 || slots.Cols < 1:
		refuse("TakeRows", "slots %v", slots)
	}
	p, wide := b.parts(), 0
	if y.DType == tensor.F32 {
		wide = 1
	}
	l.Add(kRows, config(4*y.Rows*y.Cols),
		launch.P(y.At), launch.I32(wide), launch.I64(int64(y.Stride*y.DType.Size())), launch.I32(y.Cols/4), launch.I32(y.Rows),
		launch.P(ids.At), launch.P(slots.At), launch.I32(slots.Cols),
		launch.P(b.Host+launch.Ptr(p.out)), launch.P(b.Host+answeredAt), launch.P(b.Host+gaveUpAt), launch.P(b.State),
		launch.U32(uint32(b.Limit.Microseconds())))
}

// Clear makes the GPU call the host again, after an answer that was late.
func Clear(l *launch.List, b *Box) { l.Fill(b.State+lateAt, 4, 0) }

// aligned reports whether every row is made of units of 16 bytes.
func aligned(m launch.Mat) bool {
	size := m.DType.Size()
	return m.At%16 == 0 && m.Cols*size%16 == 0 && (m.Rows == 1 || m.Stride*size%16 == 0)
}

func refuse(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}
