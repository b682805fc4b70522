package tensor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Some encodings come from files: rows of blocks hold quantised values, scales and, in
// some, minima. Nobody makes such a matrix of floats here; it is taken as a file has it
// (Matrix.Blocks), and a device lays its bits out in another order without changing any.
//
// The values of a block are integers, each with the scale of its 16 or 32 columns, and in some
// encodings 32 columns share a minimum, which is subtracted:
//
//	value[c] = integer[c] * scale[c/sub] - minimum[c/32]
//
// Every scale and minimum is exact in float32, so that the value has the bits that package
// stages/weights/gguf decodes. Where a row begins with factors, a scale is rounded once, when it is
// made of a block's scale and a factor, as package stages/weights/scaled does.

// stored has the properties of an encoding of blocks.
type stored struct {
	columns, bytes int  // of a block
	sub            int  // columns that share a scale: 16 or 32
	mins           bool // there are minima
	share          int  // columns that share a factor at the beginning of a row; 0: there are none
	fields         func(p *fields)
	// integers reads a block.
	integers func(x *IntegerRow, b []byte)
	// scales calls f with every floating-point scale of a block, to refuse what is not finite.
	scales func(b []byte, f func(float32))
	// scale makes a scale of a block's and a factor.
	scale func(s, factor float32) float32
}

// wholeRow as stored.share says that a row has one factor.
const wholeRow = math.MaxInt32

// BlockGroup is the number of columns of activations that share a scale where an encoding of blocks
// is multiplied.
const BlockGroup = 32

// IntegerRow is a row, or a block of one, as a product sees it.
type IntegerRow struct {
	Values []int32
	Scales []float32 // one for Sub columns
	Mins   []float32 // one for BlockGroup columns; nil: none
	Sub    int
}

// Native stands for the encoding that a file has a tensor in. Loading a model replaces it, tensor by
// tensor (stages/load); no kernels know it.
var Native = &Encoding{name: "native", bits: 8, groups: []int{BlockGroup}}

// Mixed stands for INT4 or INT8, whichever suits the bits of a tensor in a file. Loading a model replaces
// it as it replaces Native.
var Mixed = &Encoding{name: "mixed", bits: 8, groups: []int{128, 64, 32, 0}}

// PerTensor reports whether the encoding stands for one of each tensor: Native and Mixed.
func (e *Encoding) PerTensor() bool { return e == Native || e == Mixed }

// Stored reports whether the encoding is blocks of a file: Matrix.Blocks holds its values.
func (e *Encoding) Stored() bool { return e != nil && e.stored != nil }

// Block is the unit of an encoding of blocks: Columns of a row take Bytes.
func (e *Encoding) Block() (columns, bytes int) { return e.stored.columns, e.stored.bytes }

// Sub is the number of columns that share a scale of an encoding of blocks: 16 or 32.
func (e *Encoding) Sub() int { return e.stored.sub }

// HasMins reports whether an encoding of blocks has minima.
func (e *Encoding) HasMins() bool { return e.stored.mins }

// blocks registers an encoding of blocks.
func blocks(name string, bits int, s stored) *Encoding {
	e := &Encoding{name: name, bits: bits, groups: []int{BlockGroup}, widen: widenBlocks, stored: &s, shared: true}
	e.packings[CPU] = newBlockBands(&s)
	e.packings[GPU] = e.packings[CPU]
	return register(e)
}

// factors is the number of factors of a row.
func (s *stored) factors(cols int) int {
	if s.share == 0 {
		return 0
	}
	return (cols-1)/s.share + 1
}

// Factors is the number of float32 factors at the beginning of a row of cols columns, and how many
// columns share one.
func (e *Encoding) Factors(cols int) (n, share int) { return e.stored.factors(cols), e.stored.share }

// Scale is a scale of a row with factors: made of a block's scale and a factor.
func (e *Encoding) Scale(s, factor float32) float32 { return e.stored.scale(s, factor) }

// rowBytes is the size of a row of cols columns.
func (s *stored) rowBytes(cols int) int { return 4*s.factors(cols) + cols/s.columns*s.bytes }

// factor is that of column c of a row.
func (s *stored) factor(row []byte, c int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(row[c/s.share*4:]))
}

// RowBytes is the size of a row of cols columns in an encoding of blocks.
func (e *Encoding) RowBytes(cols int) int { return e.stored.rowBytes(cols) }

// newIntegerRow makes room for columns of the encoding.
func (e *Encoding) newIntegerRow(cols int) *IntegerRow {
	x := &IntegerRow{Values: make([]int32, cols), Scales: make([]float32, cols/e.stored.sub), Sub: e.stored.sub}
	if e.stored.mins {
		x.Mins = make([]float32, cols/BlockGroup)
	}
	return x
}

// NewIntegerRow makes room for one block of the encoding, for ReadBlock.
func (e *Encoding) NewIntegerRow() *IntegerRow { return e.newIntegerRow(e.stored.columns) }

// ReadBlock reads a block as a file has it.
func (e *Encoding) ReadBlock(x *IntegerRow, block []byte) { e.stored.integers(x, block) }

// Integers is row r.
func (m *Matrix) Integers(r int) *IntegerRow {
	if m.stored == nil {
		x := &IntegerRow{Values: make([]int32, m.Cols), Scales: m.Scales[r*m.Groups() : (r+1)*m.Groups()], Sub: m.Group}
		for c, v := range m.Values[r*m.Cols : (r+1)*m.Cols] {
			x.Values[c] = int32(v)
		}
		return x
	}
	x := m.newIntegerRow(m.Cols)
	for i, b := range m.rowBlocks(r) {
		part := IntegerRow{Values: x.Values[i*m.stored.columns:][:m.stored.columns], Scales: x.Scales[i*m.stored.columns/x.Sub:], Sub: x.Sub}
		if x.Mins != nil {
			part.Mins = x.Mins[i*m.stored.columns/BlockGroup:]
		}
		m.stored.integers(&part, b)
	}
	if m.stored.share > 0 {
		row := m.rowOf(r)
		for i, s := range x.Scales {
			x.Scales[i] = m.stored.scale(s, m.stored.factor(row, i*x.Sub))
		}
	}
	return x
}

// rowOf is the bytes of row r.
func (m *Matrix) rowOf(r int) []byte {
	n := m.stored.rowBytes(m.Cols)
	return m.Blocks[r*n : (r+1)*n]
}

// rowBlocks goes over the blocks of row r.
func (m *Matrix) rowBlocks(r int) func(func(int, []byte) bool) {
	row := m.rowOf(r)[4*m.stored.factors(m.Cols):]
	return func(yield func(int, []byte) bool) {
		for i := range m.Cols / m.stored.columns {
			if !yield(i, row[i*m.stored.bytes:][:m.stored.bytes]) {
				return
			}
		}
	}
}

// widenBlocks is the definition: the product is rounded before the minimum is subtracted.
func widenBlocks(dst []float32, m *Matrix, r int) {
	x := m.Integers(r)
	for c, v := range x.Values {
		dst[c] = float32(v) * x.Scales[c/x.Sub]
		if x.Mins != nil {
			dst[c] = float32(dst[c]) - x.Mins[c/BlockGroup]
		}
	}
}

// ErrScale: a block's scale is an infinity or no number.
var ErrScale = errors.New("a scale is not finite")

// CheckBlocks refuses blocks with a scale or a value that is an infinity or no number; it names the row. Rows
// have cols columns.
func (e *Encoding) CheckBlocks(b []byte, cols int) error {
	s := e.stored
	if cols%s.columns != 0 || len(b)%s.rowBytes(cols) != 0 {
		return fmt.Errorf("%s: %d bytes are not rows of %d columns", e.name, len(b), cols)
	}
	bad, n := false, s.rowBytes(cols)
	for at := 0; at < len(b); at += n {
		row := b[at : at+n]
		for i := range cols / s.columns {
			s.scales(row[4*s.factors(cols)+i*s.bytes:][:s.bytes], func(v float32) {
				if s.share > 0 {
					v = s.scale(v, s.factor(row, i*s.columns))
				}
				bad = bad || !(math.Abs(float64(v)) <= math.MaxFloat32)
			})
			if bad {
				return fmt.Errorf("%s: row %d, block %d: %w", e.name, at/n, i, ErrScale)
			}
		}
	}
	return nil
}

// FromBlocks is a matrix of rows of blocks, which stay the caller's.
func (e *Encoding) FromBlocks(b []byte, rows, cols int) (*Matrix, error) {
	if e.stored == nil || rows < 1 || cols < 1 || cols%e.stored.columns != 0 || len(b) != rows*e.stored.rowBytes(cols) {
		return nil, fmt.Errorf("%s: %d bytes are not blocks of [%d, %d]", e.name, len(b), rows, cols)
	}
	return &Matrix{Format: e.By(BlockGroup), Rows: rows, Cols: cols, Blocks: b}, nil
}
