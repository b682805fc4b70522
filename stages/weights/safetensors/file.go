// Package safetensors reads the safetensors format: 8 bytes of little-endian
// header length, a JSON header, then the tensors' bytes back to back. It works
// on a file already in memory (mapped or embedded) and copies no tensor.
//
// Everything the header claims is checked against the file before anything is
// allocated by it: memory used is at most a small multiple of the header itself.
package safetensors

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"krater/kernels/tensor"
)

// MaxHeader is the largest header accepted, in bytes; it holds about a million
// tensors. The reference implementation has the same limit.
const MaxHeader = 100_000_000

// maxRank bounds the dimensions of a tensor.
const maxRank = 8

// Tensor is one entry of a file. Data lies within the bytes given to Parse and
// must not be written.
type Tensor struct {
	Name  string
	DType tensor.DType
	Shape []int  // empty for a scalar
	Data  []byte // at any address: files without padding in their header are read as they are
}

// entry is a tensor as the header states it: offsets count from the header's end.
type entry struct {
	name       string
	dtype      tensor.DType
	shape      []int
	begin, end uint64
}

// Parse checks a whole file and returns its tensors in the order of their bytes.
// An error wraps one of this package's and names the tensor at fault; the caller
// adds the file's name.
func Parse(file []byte) ([]Tensor, error) {
	if len(file) < 8 {
		return nil, fmt.Errorf("%w: %d bytes", ErrTooShort, len(file))
	}
	n := binary.LittleEndian.Uint64(file)
	if n > MaxHeader || n > uint64(len(file)-8) {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are possible in this file", ErrHeaderSize, n, min(MaxHeader, len(file)-8))
	}
	entries, err := readHeader(file[8 : 8+n])
	if err != nil {
		return nil, err
	}
	data := file[8+n:]
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	out := make([]Tensor, len(entries))
	at := uint64(0)
	for i, e := range entries {
		if err := e.check(at, data); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", clip(e.name), err)
		}
		out[i] = Tensor{Name: e.name, DType: e.dtype, Shape: e.shape, Data: data[e.begin:e.end:e.end]}
		at = e.end
	}
	if at != uint64(len(data)) {
		return nil, fmt.Errorf("%w: %d", ErrTrailing, uint64(len(data))-at)
	}
	return out, nil
}

// check holds an entry against the tensor before it, which ends at at, and the
// data section.
func (e entry) check(at uint64, data []byte) error {
	size, err := byteSize(e.dtype, e.shape)
	switch {
	case err != nil:
		return err
	case e.end < e.begin || e.end-e.begin != size:
		return fmt.Errorf("%w: bytes %d to %d for %s %v, which takes %d", ErrSize, e.begin, e.end, e.dtype, e.shape, size)
	case e.end > uint64(len(data)):
		return fmt.Errorf("%w: it ends at byte %d of %d", ErrTruncated, e.end, len(data))
	case e.begin < at:
		return fmt.Errorf("%w: starts at byte %d, the one before ends at %d", ErrOverlap, e.begin, at)
	case e.begin > at:
		return fmt.Errorf("%w: %d bytes from %d", ErrHole, e.begin-at, at)
	}
	return nil
}

// byteSize returns the number of bytes of a tensor, refused where it overflows.
func byteSize(dt tensor.DType, shape []int) (uint64, error) {
	n := uint64(dt.Size())
	for _, d := range shape {
		if d != 0 && n > math.MaxInt64/uint64(d) {
			return 0, fmt.Errorf("%w: %v", ErrShape, shape)
		}
		n *= uint64(d)
	}
	return n, nil
}
