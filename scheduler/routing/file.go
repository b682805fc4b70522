package routing

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"krater/scheduler/files"
	"krater/scheduler/heat"
)

// A file, little-endian:
//
//	 0  [8] magic
//	 8  u32 version
//	12  u32 layers, experts, top_k
//	24  [32] identity of the model
//	56  [layers] u32 the model's numbers of the layers
//	    u32 CRC-32C of all before
//
// and blocks until it ends:
//
//	0  u32 rows
//	4  u32 flags
//	8  [rows, layers, top_k] u16 experts
//	   u32 CRC-32C of the block before it
//
// A batch of many rows is several blocks, all but the last with the flag more.
const (
	magic      = "KRTRROUT"
	version    = 1
	headerSize = 56

	flagDecode = 1 << 0
	flagMore   = 1 << 1

	rowMost   = 1 << 16 // choices
	blockMost = 1 << 19 // choices of a block that has more than one row
)

var table = crc32.MakeTable(crc32.Castagnoli)

// Writer writes a trace. It is not safe for concurrent use.
type Writer struct {
	h    Header
	w    *bufio.Writer
	b    []byte
	size int64
}

// NewWriter writes the header to w.
func NewWriter(w io.Writer, h Header) (*Writer, error) {
	if err := h.check(); err != nil {
		return nil, err
	}
	t := &Writer{h: h, w: bufio.NewWriterSize(w, 1<<16)}
	b := append(t.b, magic...)
	for _, n := range []int{version, len(h.Layers), h.Experts, h.TopK} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	b = append(b, h.Identity[:]...)
	for _, l := range h.Layers {
		b = binary.LittleEndian.AppendUint32(b, uint32(l))
	}
	return t, t.put(b)
}

// put writes a piece with its checksum.
func (t *Writer) put(b []byte) error {
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, table))
	t.b = b[:0]
	t.size += int64(len(b))
	_, err := t.w.Write(b)
	return err
}

// Size returns the number of bytes written so far.
func (t *Writer) Size() int64 { return t.size }

// Write appends a batch.
func (t *Writer) Write(b *Batch) error {
	if err := t.h.checkBatch(b); err != nil {
		return err
	}
	row := t.h.row()
	most := max(1, blockMost/row)
	for from := 0; from < b.Rows; from += most {
		n := min(most, b.Rows-from)
		flags := uint32(0)
		if b.Decode {
			flags |= flagDecode
		}
		if from+n < b.Rows {
			flags |= flagMore
		}
		buf := binary.LittleEndian.AppendUint32(t.b[:0], uint32(n))
		buf = binary.LittleEndian.AppendUint32(buf, flags)
		for _, e := range b.IDs[from*row : (from+n)*row] {
			buf = binary.LittleEndian.AppendUint16(buf, e)
		}
		if err := t.put(buf); err != nil {
			return err
		}
	}
	return nil
}

// Flush writes what is buffered.
func (t *Writer) Flush() error { return t.w.Flush() }

// Reader reads a trace. Its memory is that of one batch and does not depend on numbers in the file
// that its data does not bear out.
type Reader struct {
	Header
	r *bufio.Reader
	b []byte
}

// NewReader reads the header from r.
func NewReader(r io.Reader) (*Reader, error) {
	t := &Reader{r: bufio.NewReaderSize(r, 1<<16)}
	b := make([]byte, headerSize)
	if _, err := io.ReadFull(t.r, b); err != nil {
		if short(err) {
			return nil, fmt.Errorf("%w: shorter than its header", ErrFormat)
		}
		return nil, err
	}
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	if string(b[:8]) != magic {
		return nil, ErrFormat
	}
	if v := word(8); v != version {
		return nil, fmt.Errorf("%w of version %d: it has %d", ErrFormat, version, v)
	}
	layers := word(12)
	if layers < 1 || layers > rowMost {
		return nil, fmt.Errorf("%w: %w: %d layers", ErrDamaged, heat.ErrShape, layers)
	}
	b, err := t.sealed(b, 4*int(layers))
	if err != nil {
		return nil, err
	}
	t.Experts, t.TopK, t.Identity = int(word(16)), int(word(20)), heat.Identity(b[24:headerSize])
	for i := range int(layers) {
		t.Layers = append(t.Layers, int32(binary.LittleEndian.Uint32(b[headerSize+4*i:])))
	}
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return t, nil
}

// short reports whether a file ended too early.
func short(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// sealed appends n bytes and a checksum to head, and compares it.
func (t *Reader) sealed(head []byte, n int) ([]byte, error) {
	at := len(head)
	head = append(head, make([]byte, n+4)...)
	if _, err := io.ReadFull(t.r, head[at:]); err != nil {
		if short(err) {
			return nil, fmt.Errorf("%w: it ends within a part", ErrDamaged)
		}
		return nil, err
	}
	end := len(head) - 4
	if crc32.Checksum(head[:end], table) != binary.LittleEndian.Uint32(head[end:]) {
		return nil, fmt.Errorf("%w: a checksum differs", ErrDamaged)
	}
	return head[:end], nil
}

// Next reads the next batch into b, whose memory it uses again. io.EOF: there is none.
func (t *Reader) Next(b *Batch) error {
	b.Rows, b.IDs = 0, b.IDs[:0]
	for {
		head := append(t.b[:0], make([]byte, 8)...)
		if _, err := io.ReadFull(t.r, head); err != nil {
			switch {
			case err == io.EOF && b.Rows == 0:
				return io.EOF
			case short(err):
				return fmt.Errorf("%w: it ends within a part", ErrDamaged)
			}
			return err
		}
		rows, flags := binary.LittleEndian.Uint32(head), binary.LittleEndian.Uint32(head[4:])
		if rows < 1 || int(rows) > max(1, blockMost/t.row()) || flags > flagDecode|flagMore {
			return fmt.Errorf("%w: a block of %d rows, flags %#x", ErrDamaged, rows, flags)
		}
		block, err := t.sealed(head, 2*int(rows)*t.row())
		if err != nil {
			return err
		}
		t.b = block
		b.Decode = flags&flagDecode != 0
		b.Rows += int(rows)
		for at := 8; at < len(block); at += 2 {
			b.IDs = append(b.IDs, binary.LittleEndian.Uint16(block[at:]))
		}
		if flags&flagMore == 0 {
			break
		}
	}
	if err := t.checkBatch(b); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

// Each calls f with every batch of a file, whose memory f must not keep. After the header was read it calls begin.
func Each(path string, begin func(Header) error, f func(*Batch) error) error {
	file, err := files.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	r, err := NewReader(file)
	if err == nil {
		err = begin(r.Header)
	}
	var b Batch
	for err == nil {
		if err = r.Next(&b); err == nil {
			err = f(&b)
		}
	}
	if err == io.EOF {
		return nil
	}
	return fmt.Errorf("%s: %w", path, err)
}

// Create makes a file for a trace, which must not exist yet unless it is a trace.
func Create(path string) (*os.File, error) {
	if old, err := files.Open(path); err == nil {
		_, err := NewReader(old)
		old.Close()
		if errors.Is(err, ErrFormat) {
			return nil, fmt.Errorf("%s: %w, so it is not overwritten", path, err)
		}
	}
	return os.Create(path)
}
