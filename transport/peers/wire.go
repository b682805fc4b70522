package peers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"krater/actors/hop"
)

// The wire form of frames. A frame is a body in chunks of at most chunkBytes. A chunk is
//
//	4 bytes  CRC-32C of all that follows of the chunk
//	4 bytes  length of what follows the header
//	1 byte   flags: chunkFirst, chunkLast, chunkBulk
//	3 bytes  zero
//
// and its part of the body. Chunks of one frame follow each other, but other frames may come
// between the chunks of a frame of prompts (chunkBulk). The body begins with the frame's header:
//
//	1 byte   hop.Kind
//	1 byte   flags: frameRepeatable
//	1 byte   batch
//	1 byte   zero
//	4 bytes  epoch
//	8 bytes  number of the step
//	8 bytes  number of the step that it follows
//	8 bytes  time of sending
//	4 x 4 bytes  lengths of Meta and of Rows, which follow in this order
//
// Integers are little-endian.

const (
	chunkHeader = 12
	chunkBytes  = 256 << 10
	frameHeader = 48
	lengthsAt   = 32 // in a frame's header
)

const (
	chunkFirst = 1 << iota
	chunkLast
	chunkBulk
	chunkKnown = 1<<iota - 1
)

const (
	frameRepeatable = 1 << iota
	frameKnown      = 1<<iota - 1
)

// castagnoli is the checksum that processors have an instruction for.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrWire reports bytes that are not a frame, or that differ from the bytes sent.
var ErrWire = errors.New("not a frame")

// sections are the parts of a frame after its header.
func sections(f *hop.Frame) [4][]byte { return [4][]byte{f.Meta, f.Rows[0], f.Rows[1], f.Rows[2]} }

// bodyBytes returns the size of a frame's body.
func bodyBytes(f *hop.Frame) int { return frameHeader + f.Bytes() }

// putFrame writes the header of a frame's body.
func putFrame(dst []byte, f *hop.Frame) {
	flags := byte(0)
	if f.Repeatable {
		flags |= frameRepeatable
	}
	dst[0], dst[1], dst[2], dst[3] = byte(f.Kind), flags, f.Batch, 0
	le := binary.LittleEndian
	le.PutUint32(dst[4:], f.Epoch)
	le.PutUint64(dst[8:], f.ID)
	le.PutUint64(dst[16:], f.Follows)
	le.PutUint64(dst[24:], uint64(f.Sent))
	for i, s := range sections(f) {
		le.PutUint32(dst[lengthsAt+4*i:], uint32(len(s)))
	}
}

// getFrame reads a body, which the frame's memory then is.
func getFrame(f *hop.Frame, body []byte, bulk bool) error {
	if len(body) < frameHeader {
		return fmt.Errorf("%w: a body of %d bytes", ErrWire, len(body))
	}
	le := binary.LittleEndian
	kind, flags := hop.Kind(body[0]), body[1]
	if kind < hop.Step || kind > hop.Forgotten || flags&^frameKnown != 0 || body[3] != 0 {
		return fmt.Errorf("%w: kind %d, flags %#x", ErrWire, kind, flags)
	}
	*f = hop.Frame{
		Kind: kind, Repeatable: flags&frameRepeatable != 0, Bulk: bulk, Batch: body[2],
		Epoch: le.Uint32(body[4:]), ID: le.Uint64(body[8:]), Follows: le.Uint64(body[16:]), Sent: int64(le.Uint64(body[24:])),
	}
	rest := body[frameHeader:]
	for i, to := range [4]*[]byte{&f.Meta, &f.Rows[0], &f.Rows[1], &f.Rows[2]} {
		n := int(le.Uint32(body[lengthsAt+4*i:]))
		if n > len(rest) {
			return fmt.Errorf("%w: a part of %d bytes where %d are left", ErrWire, n, len(rest))
		}
		if n > 0 {
			*to, rest = rest[:n:n], rest[n:]
		}
	}
	if len(rest) > 0 {
		return fmt.Errorf("%w: %d bytes too many", ErrWire, len(rest))
	}
	return nil
}

// putChunk writes the header of a chunk whose part of the body lies behind it.
func putChunk(chunk []byte, flags byte) {
	le := binary.LittleEndian
	le.PutUint32(chunk[4:], uint32(len(chunk)-chunkHeader))
	chunk[8], chunk[9], chunk[10], chunk[11] = flags, 0, 0, 0
	le.PutUint32(chunk, crc32.Checksum(chunk[4:], castagnoli))
}

// getChunk reads a chunk's header: its checksum, the length of its part and its flags.
func getChunk(h []byte) (sum uint32, n int, flags byte, err error) {
	le := binary.LittleEndian
	sum, n, flags = le.Uint32(h), int(le.Uint32(h[4:])), h[8]
	if n < 1 || n > chunkBytes || flags&^chunkKnown != 0 || h[9]|h[10]|h[11] != 0 {
		err = fmt.Errorf("%w: a chunk of %d bytes, flags %#x", ErrWire, n, flags)
	}
	return sum, n, flags, err
}
