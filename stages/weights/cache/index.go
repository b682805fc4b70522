package cache

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"krater/kernels/tensor"
)

// The file of matrices that are not routed experts ("dense_cpu_{digest}.bin", the
// digest being that of the precision; little endian):
//
//	   0  header, 4096 bytes:
//	      0  "KRATERWD"
//	      8  u32 version, number of matrices
//	     16  u64 place of the index, its size: the file ends with it
//	     32  [32] fingerprint of the source
//	     64  [32] digest of the precision
//	     96  u32 checksum of the index
//	    100  u32 seal: checksum of the header with this field zero
//	4096  matrices packed for a CPU, one after the other: values, scales, each at
//	      a multiple of 64 bytes
//	      index, for each matrix in their order:
//	      u16 length of its name, its name, u16 length of its encoding's name, that
//	      name, u32 rows, columns, group, checksum
//
// Version 1 has no name of an encoding, but after the group u32 bits, 4 or 8 of integers.
//
// A build writes the matrices as the load asks for them, then the index and last
// the header: until then the file has no magic. What the index says of places
// follows from the shapes, so that it cannot point outside or twice to one place.
const (
	magicD    = "KRATERWD"
	versionD  = 2
	sumAtD    = 96
	sealAtD   = 100
	indexMost = 2 + 5*4 + maxName + nameBytes // bytes of a matrix

	maxMatrices = 1 << 20
	maxName     = 1 << 10
	maxSide     = 1 << 28 // rows, columns
)

// key names a matrix: in another format it is another matrix.
type key struct {
	name string
	tensor.Layout
}

// record is where a matrix lies.
type record struct {
	at  int64
	sum uint32
}

// scaleAt is where the scales of a matrix lie, in bytes from its values.
func scaleAt(f tensor.Layout) int { return round(f.ValueBytes(), line) }

// sizeOf returns the size of a matrix in the file, in bytes.
func sizeOf(f tensor.Layout) int { return scaleAt(f) + round(f.ScaleBytes(), line) }

// matrixIndex lists the matrices of a file.
type matrixIndex struct {
	records map[key]record
	end     int64 // of the matrices
}

func newIndex() matrixIndex { return matrixIndex{map[key]record{}, page} }

// keys are the matrices in the order of the file.
func (x *matrixIndex) keys() []key {
	return slices.SortedFunc(maps.Keys(x.records), func(a, b key) int { return int(x.records[a].at>>6 - x.records[b].at>>6) })
}

// checkKey refuses what no index can hold.
func checkKey(k key) error {
	if len(k.name) < 1 || len(k.name) > maxName {
		return fmt.Errorf("%w: a name of %d bytes", ErrShape, len(k.name))
	}
	if k.Rows > maxSide || k.Cols > maxSide {
		return fmt.Errorf("%w: matrix [%d, %d]", ErrShape, k.Rows, k.Cols)
	}
	if err := k.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrShape, err)
	}
	return nil
}

// encode returns the index and the header of a finished file.
func (x *matrixIndex) encode(source Fingerprint, precision [32]byte) (index, header []byte) {
	le := binary.LittleEndian
	for _, k := range x.keys() {
		index = le.AppendUint16(index, uint16(len(k.name)))
		index = append(index, k.name...)
		index = le.AppendUint16(index, uint16(len(k.Name())))
		index = append(index, k.Name()...)
		for _, v := range []int{k.Rows, k.Cols, k.Group, int(x.records[k].sum)} {
			index = le.AppendUint32(index, uint32(v))
		}
	}
	header = make([]byte, page)
	copy(header, magicD)
	le.PutUint32(header[8:], versionD)
	le.PutUint32(header[12:], uint32(len(x.records)))
	le.PutUint64(header[16:], uint64(x.end))
	le.PutUint64(header[24:], uint64(len(index)))
	copy(header[32:], source[:])
	copy(header[64:], precision[:])
	le.PutUint32(header[sumAtD:], checksum(index))
	putSeal(header, sealAtD)
	return index, header
}

// preamble is the header of a file of matrices, checked for itself.
type preamble struct {
	first         bool // of version 1
	count         int
	index, length int64
	sum           uint32
}

// parsePreamble reads the header of a file of size bytes that was made from
// source in a precision.
func parsePreamble(b []byte, size int64, source Fingerprint, precision [32]byte) (p preamble, err error) {
	le := binary.LittleEndian
	switch {
	case len(b) >= page && !slices.ContainsFunc(b[:page], func(c byte) bool { return c != 0 }):
		return p, ErrUnfinished
	case len(b) < len(magicD) || string(b[:len(magicD)]) != magicD:
		return p, ErrForeign
	case len(b) < page:
		return p, fmt.Errorf("%w: %d bytes", ErrTruncated, size)
	}
	b = b[:page]
	v := le.Uint32(b[8:])
	if v != versionD && v != 1 {
		return p, fmt.Errorf("%w: %d, want %d", ErrVersion, v, versionD)
	}
	if le.Uint32(b[sealAtD:]) != sealOf(b, sealAtD) {
		return p, fmt.Errorf("%w: header", ErrDamaged)
	}
	switch {
	case [32]byte(b[64:96]) != precision:
		return p, fmt.Errorf("%w: in another precision", ErrStale)
	case Fingerprint(b[32:64]) != source:
		return p, fmt.Errorf("%w: made from other weights: %s, these are %s", ErrStale, Fingerprint(b[32:64]), source)
	}
	p = preamble{v == 1, int(le.Uint32(b[12:])), int64(le.Uint64(b[16:])), int64(le.Uint64(b[24:])), le.Uint32(b[sumAtD:])}
	switch {
	case p.count > maxMatrices || p.index < page || p.index > maxBytes || p.length < 0 || p.length > int64(p.count)*indexMost:
		return p, fmt.Errorf("%w: an index of %d matrices in %d bytes at %d", ErrDamaged, p.count, p.length, p.index)
	case p.index+p.length != size:
		return p, fmt.Errorf("%w: %d bytes, want %d", ErrTruncated, size, p.index+p.length)
	}
	return p, nil
}

// parseIndex reads the index itself.
func (p preamble) parseIndex(b []byte) (matrixIndex, error) {
	x := newIndex()
	if checksum(b) != p.sum {
		return x, fmt.Errorf("%w: index", ErrDamaged)
	}
	r := indexReader{b: b}
	for range p.count {
		k, sum := r.next(p.first)
		if r.short {
			return x, fmt.Errorf("%w: index", ErrDamaged)
		}
		if k.Encoding == nil {
			return x, fmt.Errorf("%w: %.80q is in a format that this program does not know", ErrVersion, k.name)
		}
		if err := checkKey(k); err != nil {
			return x, fmt.Errorf("%w: index: %w", ErrDamaged, err)
		}
		if _, twice := x.records[k]; twice || int64(sizeOf(k.Layout)) > p.index-x.end {
			return x, fmt.Errorf("%w: index: %.80q", ErrDamaged, k.name)
		}
		x.records[k] = record{x.end, sum}
		x.end += int64(sizeOf(k.Layout))
	}
	if len(r.b) != 0 || x.end != p.index {
		return x, fmt.Errorf("%w: index", ErrDamaged)
	}
	return x, nil
}

// indexReader reads the records of an index. Past its end all is zero and short is set.
type indexReader struct {
	b     []byte
	short bool
}

func (r *indexReader) take(n int) []byte {
	if n > len(r.b) {
		r.b, r.short = nil, true
		return make([]byte, n)
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *indexReader) number() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *indexReader) text() string {
	return string(r.take(int(binary.LittleEndian.Uint16(r.take(2)))))
}

// next reads a matrix and its checksum. Its encoding is nil if nobody knows it.
func (r *indexReader) next(first bool) (k key, sum uint32) {
	k.name = r.text()
	if !first {
		k.Encoding = tensor.EncodingOf(r.text())
	}
	k.Rows, k.Cols, k.Group = int(r.number()), int(r.number()), int(r.number())
	if first {
		k.Encoding = tensor.Integers(int(r.number()))
	}
	return k, r.number()
}
