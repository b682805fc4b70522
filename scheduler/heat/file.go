package heat

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"krater/scheduler/files"
)

// A file, little-endian:
//
//	 0  [8] magic
//	 8  u32 version
//	12  u32 layers, experts, top_k
//	24  [32] identity
//	56  [layers] u32 the model's numbers of the layers
//	    [layers] u64 tokens
//	    [layers, experts] u64 counts
//	    [32] SHA-256 of all before
const (
	magic      = "KRTRHEAT"
	version    = 1
	headerSize = 56
)

// fileSize is that of a map of a checked shape.
func fileSize(layers, experts int) int {
	return headerSize + 12*layers + 8*layers*experts + sha256.Size
}

// encode returns the bytes of a file.
func (m *Map) encode() []byte {
	b := make([]byte, 0, fileSize(len(m.shape.Layers), m.shape.Experts))
	b = append(b, magic...)
	for _, n := range []int{version, len(m.shape.Layers), m.shape.Experts, m.shape.TopK} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	b = append(b, m.Identity[:]...)
	for _, l := range m.shape.Layers {
		b = binary.LittleEndian.AppendUint32(b, uint32(l))
	}
	for _, list := range [][]uint64{m.tokens, m.counts} {
		for _, n := range list {
			b = binary.LittleEndian.AppendUint64(b, n)
		}
	}
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

// WriteTo writes the map in the format of a file.
func (m *Map) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(m.encode())
	return int64(n), err
}

// Read reads a map to the end of r. It returns ErrFormat if the bytes are not a map of this version, and
// ErrDamaged if they were cut or changed. Its memory grows with the bytes read, to 9 MiB.
func Read(r io.Reader) (*Map, error) {
	header := make([]byte, headerSize)
	if _, err := io.ReadFull(r, header); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("%w: shorter than its header", ErrFormat)
		}
		return nil, err
	}
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(header[at:]) }
	if string(header[:8]) != magic {
		return nil, ErrFormat
	}
	if v := word(8); v != version {
		return nil, fmt.Errorf("%w of version %d: it has %d", ErrFormat, version, v)
	}
	layers, experts := word(12), word(16)
	if layers > layersMost || experts > expertsMost || layers*experts > cellsMost {
		return nil, fmt.Errorf("%w: %w: %d layers of %d experts", ErrDamaged, ErrShape, layers, experts)
	}
	size := fileSize(int(layers), int(experts))
	file := bytes.NewBuffer(header)
	if _, err := io.Copy(file, io.LimitReader(r, int64(size-headerSize+1))); err != nil {
		return nil, err
	}
	if file.Len() != size {
		return nil, fmt.Errorf("%w: not the %d bytes that its header says", ErrDamaged, size)
	}
	b := file.Bytes()
	if sum := sha256.Sum256(b[:size-sha256.Size]); !bytes.Equal(sum[:], b[size-sha256.Size:]) {
		return nil, fmt.Errorf("%w: its checksum differs", ErrDamaged)
	}
	return decode(b, int(layers), int(experts))
}

// decode makes a map of a file's bytes, whose size and checksum are right.
func decode(b []byte, layers, experts int) (*Map, error) {
	s := Shape{Experts: experts, TopK: int(binary.LittleEndian.Uint32(b[20:]))}
	id := Identity(b[24:headerSize])
	b = b[headerSize:]
	for range layers {
		s.Layers = append(s.Layers, int32(binary.LittleEndian.Uint32(b)))
		b = b[4:]
	}
	m, err := New(id, s)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	counts := b[8*layers:]
	for i := range m.tokens {
		m.tokens[i] = binary.LittleEndian.Uint64(b[8*i:])
		if m.tokens[i] > countMost {
			return nil, fmt.Errorf("%w: %w: %d tokens", ErrDamaged, ErrCounts, m.tokens[i])
		}
	}
	for i := range m.counts {
		m.counts[i] = binary.LittleEndian.Uint64(counts[8*i:])
		if m.counts[i] > m.tokens[i/experts] {
			return nil, fmt.Errorf("%w: %w: %d of %d tokens", ErrDamaged, ErrCounts, m.counts[i], m.tokens[i/experts])
		}
	}
	return m, nil
}

// Save writes a file, or replaces it. If the process or the machine stops meanwhile,
// the file is the old or the new one. A process that is killed meanwhile leaves a file
// path.NUMBER.part behind.
func (m *Map) Save(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.part")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // does nothing once it has its name
	_, err = m.WriteTo(f)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// Load reads a file. Errors contain its name.
func Load(path string) (*Map, error) {
	f, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}
