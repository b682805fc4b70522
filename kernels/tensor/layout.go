package tensor

import (
	"fmt"
	"slices"
)

// Layout is how a kind of device keeps a matrix [Rows, Cols] of a format. It is a comparable
// value. The format is that of the matrix (Format.Of).
type Layout struct {
	Format
	Rows, Cols int
	For        Kind
	// Joined says that a GPU has gate and up of a SwiGLU network here, rows 0..Rows/2-1 gate,
	// interleaved so that one thread has both of a feature.
	Joined bool
}

const (
	// TileRows is the number of rows in a band on a CPU.
	TileRows = 16
	// TileA is the number of rows in a band on a GPU, and of columns in a tile.
	TileA = 64
)

// Padded is a number of columns rounded up to 32, as rows of integer activations have them.
func Padded(cols int) int { return (cols + 31) / 32 * 32 }

// Check names the first thing that the layout cannot have.
func (l Layout) Check() error {
	switch {
	case l.Zero():
		return fmt.Errorf("matrix [%d, %d]: no number format", l.Rows, l.Cols)
	case l.Rows < 1 || l.Cols < 1:
		return fmt.Errorf("%s: matrix [%d, %d]", l.Format, l.Rows, l.Cols)
	case l.For >= kinds || l.packings[l.For] == nil:
		return fmt.Errorf("%s: no kernels of a %s multiply with it", l.Format, l.For)
	}
	if err := l.packings[l.For].Check(l); err != nil {
		return fmt.Errorf("%s: %w", l.Format, err)
	}
	return nil
}

// String is the format and the shape, for messages.
func (l Layout) String() string { return fmt.Sprintf("%s [%d, %d]", l.Format, l.Rows, l.Cols) }

// Scaling is the format by which GPUs choose kernels: with group 0 where one scale serves a
// whole row.
func (l Layout) Scaling() Format {
	if l.Group >= l.Cols {
		return l.By(0)
	}
	return l.Format
}

// tiled reports whether bands are a GPU's.
func (l Layout) tiled() bool { return l.For == GPU && !l.shared }

// PaddedCols is Cols filled up to what the kind of device reads at a time.
func (l Layout) PaddedCols() int {
	if l.tiled() {
		return (l.Cols + TileA - 1) / TileA * TileA
	}
	return Padded(l.Cols)
}

// Groups is the number of scales of a row.
func (l Layout) Groups() int {
	if l.Group >= l.Cols {
		return 1
	}
	return (l.PaddedCols() + l.Group - 1) / l.Group
}

// BandRows is the number of rows in a band.
func (l Layout) BandRows() int {
	if l.tiled() {
		return TileA
	}
	return TileRows
}

// Bands is the number of bands, the last one perhaps not full.
func (l Layout) Bands() int { return (l.Rows + l.BandRows() - 1) / l.BandRows() }

// BandBytes is the size of the values and of the scales of a band.
func (l Layout) BandBytes() (values, scales int) { return l.packings[l.For].BandBytes(l) }

// ValueBytes is the size of all values.
func (l Layout) ValueBytes() int {
	values, _ := l.BandBytes()
	return l.Bands() * values
}

// ScaleBytes is the size of all scales.
func (l Layout) ScaleBytes() int {
	_, scales := l.BandBytes()
	return l.Bands() * scales
}

// Bytes is the size of both.
func (l Layout) Bytes() int { return l.ValueBytes() + l.ScaleBytes() }

// Pack writes a matrix: ValueBytes of values, ScaleBytes of scales.
func (l Layout) Pack(values, scales []byte, m *Matrix) { l.PackBands(values, scales, m, 0, l.Bands()) }

// PackBands is Pack for bands [from, to). Several goroutines may pack different bands.
func (l Layout) PackBands(values, scales []byte, m *Matrix, from, to int) {
	v, s := l.BandBytes()
	for i := from; i < to; i++ {
		l.packings[l.For].Pack(l, values[i*v:(i+1)*v], scales[i*s:(i+1)*s], m, i)
	}
}

// Unpack is the inverse of Pack.
func (l Layout) Unpack(values, scales []byte) *Matrix {
	m := NewMatrix(l.Format, l.Rows, l.Cols)
	l.UnpackRows(m, values, scales, 0, l.Rows)
	return m
}

// UnpackRows is Unpack for rows [from, to) of m.
func (l Layout) UnpackRows(m *Matrix, values, scales []byte, from, to int) {
	for r := from; r < to; r++ {
		l.packings[l.For].Unpack(l, values, scales, r, m, r)
	}
}

// Row widens row r of a packed matrix into dst [Cols].
func (l Layout) Row(dst []float32, values, scales []byte, r int) {
	m := NewMatrix(l.Format, 1, l.Cols)
	l.packings[l.For].Unpack(l, values, scales, r, m, 0)
	m.Row(dst, 0)
}

// Matrix is a matrix of the layout's format and shape, of given integers and scales.
func (l Layout) Matrix(values []int8, scales []float32) *Matrix {
	return &Matrix{Format: l.Format, Rows: l.Rows, Cols: l.Cols, Values: values, Scales: scales}
}

// Matrix is a matrix before it is packed for a kind of device.
type Matrix struct {
	Format     // of a matrix of Cols columns
	Rows, Cols int
	Values     []int8    // [Rows, Cols] integers of the encoding
	Scales     []float32 // [Rows, Groups]; INT4 has negative ones too
	// Blocks is all that an encoding of blocks has: rows as a file has them (Encoding.RowBytes).
	Blocks []byte
}

// NewMatrix makes room for a matrix.
func NewMatrix(f Format, rows, cols int) *Matrix {
	m := new(Matrix)
	m.Reset(f, rows, cols)
	return m
}

// Reset makes m a matrix of another shape, or of another group size of its encoding. Its memory is
// used again where it suffices; the content is arbitrary.
func (m *Matrix) Reset(f Format, rows, cols int) {
	m.Format, m.Rows, m.Cols = f, rows, cols
	if f.stored != nil {
		m.Blocks = room(m.Blocks, rows*f.stored.rowBytes(cols))
		return
	}
	m.Values, m.Scales = room(m.Values, rows*cols), room(m.Scales, rows*m.Groups())
}

// room is n elements, in the memory of s if it suffices.
func room[T any](s []T, n int) []T { return slices.Grow(s[:0], n)[:n] }

// String is the format and the shape, for messages.
func (m *Matrix) String() string { return fmt.Sprintf("%s [%d, %d]", m.Format, m.Rows, m.Cols) }

// Groups is the number of scales of a row.
func (m *Matrix) Groups() int {
	if m.Group >= m.Cols {
		return 1
	}
	return (Padded(m.Cols) + m.Group - 1) / m.Group
}

// Fits reports whether a layout is one of m.
func (m *Matrix) Fits(l Layout) bool {
	return m.Format == l.Format && m.Rows == l.Rows && m.Cols == l.Cols
}

// row is row r of a matrix of integers.
func (m *Matrix) row(r int) (values []int8, scales []float32) {
	n := m.Groups()
	return m.Values[r*m.Cols : (r+1)*m.Cols], m.Scales[r*n : (r+1)*n]
}

// Quantize makes row r from x [Cols] by the encoding's own rule.
func (m *Matrix) Quantize(x []float32, r int) { m.quantize(m, x, r) }

// Row widens row r into dst [Cols].
func (m *Matrix) Row(dst []float32, r int) { m.widen(dst[:m.Cols], m, r) }

// Dequantize is the matrix as float32 [Rows, Cols].
func (m *Matrix) Dequantize() []float32 {
	out := make([]float32, m.Rows*m.Cols)
	for r := range m.Rows {
		m.Row(out[r*m.Cols:(r+1)*m.Cols], r)
	}
	return out
}
