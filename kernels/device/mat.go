package device

import (
	"fmt"
	"unsafe"

	"krater/kernels/tensor"
)

// Mat is a row-major matrix view of a Buffer. It is a value: slicing makes a
// new view and never allocates. The zero Mat means "absent".
type Mat struct {
	Buf    Buffer
	Off    int // bytes from the start of Buf
	DType  tensor.DType
	Rows   int
	Cols   int
	Stride int // elements between the starts of two rows, >= Cols
}

// NewMat views the first rows*cols elements of buf as a dense matrix.
func NewMat(buf Buffer, dt tensor.DType, rows, cols int) Mat {
	return Mat{Buf: buf, DType: dt, Rows: rows, Cols: cols, Stride: cols}
}

// AllocMat allocates a zeroed dense matrix on d.
func AllocMat(d Device, dt tensor.DType, rows, cols int) (Mat, error) {
	return allocMat(d.Alloc, dt, rows, cols)
}

func allocMat(alloc func(n int) (Buffer, error), dt tensor.DType, rows, cols int) (Mat, error) {
	b, err := alloc(rows * cols * dt.Size())
	if err != nil {
		return Mat{}, fmt.Errorf("%s [%d, %d]: %w", dt, rows, cols, err)
	}
	return NewMat(b, dt, rows, cols), nil
}

// Zero reports whether m is the absent matrix.
func (m Mat) Zero() bool { return m.Buf == nil }

// Dense reports whether rows follow one another without a gap.
func (m Mat) Dense() bool { return m.Stride == m.Cols || m.Rows <= 1 }

// Bytes returns the size of the elements viewed, gaps not counted.
func (m Mat) Bytes() int { return m.Rows * m.Cols * m.DType.Size() }

// Overlaps reports whether the memory of two views, from the first element to the last, has a part in common.
func (m Mat) Overlaps(o Mat) bool {
	return m.Buf != nil && m.Buf == o.Buf && m.Off < o.end() && o.Off < m.end()
}

// end is behind the last element, in bytes.
func (m Mat) end() int { return m.Off + ((m.Rows-1)*m.Stride+m.Cols)*m.DType.Size() }

// RowRange views rows [from, to).
func (m Mat) RowRange(from, to int) Mat {
	m.Off += from * m.Stride * m.DType.Size()
	m.Rows = to - from
	return m
}

// ColRange views columns [from, to) of every row.
func (m Mat) ColRange(from, to int) Mat {
	m.Off += from * m.DType.Size()
	m.Cols = to - from
	return m
}

// String describes shape and type, for errors.
func (m Mat) String() string {
	if m.Zero() {
		return "absent"
	}
	return fmt.Sprintf("%s [%d, %d]", m.DType, m.Rows, m.Cols)
}

// HostSlice returns the memory of m as elements of type E, from its first element to
// its last (gaps between rows included). It panics when the buffer is not host
// memory or E has another size than m's dtype: both are programmer errors.
func HostSlice[E any](m Mat) []E {
	var e E
	size := int(unsafe.Sizeof(e))
	if size != m.DType.Size() {
		panic(fmt.Sprintf("device: %s read as %d-byte elements", m, size))
	}
	if m.Rows == 0 || m.Cols == 0 {
		return nil
	}
	host := m.Buf.Host()
	n := (m.Rows-1)*m.Stride + m.Cols
	if host == nil || m.Off+n*size > len(host) {
		panic(fmt.Sprintf("device: %s at byte %d is not within %d bytes of host memory", m, m.Off, len(host)))
	}
	return unsafe.Slice((*E)(unsafe.Pointer(&host[m.Off])), n)
}

// F32s is HostSlice of float32.
func (m Mat) F32s() []float32 { return HostSlice[float32](m) }

// I32s is HostSlice of int32.
func (m Mat) I32s() []int32 { return HostSlice[int32](m) }
