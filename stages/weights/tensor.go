package weights

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"krater/kernels/tensor"
	"krater/scheduler/files"
)

// Tensor is one weight: plain numbers in Data, or values that Coded gives.
type Tensor struct {
	DType tensor.DType // of Data; with Coded a type that holds its values exactly: F32, or BF16
	Shape []int        // empty for a scalar; not to be changed
	Data  []byte       // little endian, row-major, at any address; read-only, valid until Set.Close
	Coded Coded        // nil: Data has the values
}

// Coded is the values of a tensor that is not stored as plain numbers in its order: quantised
// blocks, values with scales in another tensor, rows in another order. It is valid until Set.Close
// and safe for concurrent use.
type Coded interface {
	// Encoding names how values are stored: "q4_k", "mxfp4", "f8_e4m3_128x128", "int4_g32".
	Encoding() string
	// Floats writes the whole rows that dst has room for, from firstRow on, as the file gives them:
	// dequantised in float32 and not rounded to a smaller type. A row is a run along the last
	// dimension; rows of all dimensions before it count on.
	Floats(dst []float32, firstRow int) error
	// Blocks returns the stored bytes, rows in order, if they are all that Encoding needs to give
	// the values. The bytes are read-only.
	Blocks() (data []byte, ok bool)
	// Stored lists the memory that the values are read from. Not to be changed.
	Stored() [][]byte
}

// Integers is a Coded that may have the integers and scales of a number format, or bits that it takes
// as they are.
type Integers interface {
	Coded
	// IntegerRow writes a row to row at of dst, if dst's format has its values exactly. Else it
	// reports false, and that row of dst is undefined.
	IntegerRow(dst *tensor.Matrix, at, row int) bool
}

// IntegersOf returns the rows of tensors, one after the other, as a matrix of a format that has their
// values exactly; nil: it does not, or one of the tensors is not stored as integers.
func IntegersOf(f tensor.Format, cols int, list ...Tensor) *tensor.Matrix {
	rows := 0
	for _, t := range list {
		n, width := t.Rows()
		x, ok := t.Coded.(Integers)
		if !ok || width != cols || !x.IntegerRow(tensor.NewMatrix(f.Of(cols), 1, cols), 0, 0) {
			return nil
		}
		rows += n
	}
	m, at := tensor.NewMatrix(f.Of(cols), rows, cols), 0
	for _, t := range list {
		n, _ := t.Rows()
		for r := range n {
			if !t.Coded.(Integers).IntegerRow(m, at+r, r) {
				return nil
			}
		}
		at += n
	}
	return m
}

// FormatOf returns the format that takes the bytes of an encoded matrix as they are; zero: there is none.
func FormatOf(t Tensor) tensor.Format {
	if t.Coded == nil || len(t.Shape) != 2 {
		return tensor.Format{}
	}
	for _, e := range encodingsOf(t.Coded.Encoding()) {
		if f := e.By(tensor.BlockGroup); takes(f, t) {
			return f
		}
	}
	return tensor.Format{}
}

// encodingsOf are the encodings that may have the bytes of a kind of stored values.
func encodingsOf(name string) (list []*tensor.Encoding) {
	if strings.HasPrefix(name, "f8_e4m3_") {
		return []*tensor.Encoding{tensor.FP8}
	}
	if e := tensor.EncodingOf(name); e != nil && (e.Stored() || e == tensor.Q8_0) {
		list = append(list, e)
	}
	if name == tensor.NVFP4.Name() {
		list = append(list, tensor.NVFP4Scaled)
	}
	return list
}

// takes reports whether a format has the bytes of a matrix as they are.
func takes(f tensor.Format, t Tensor) bool {
	rows, cols := t.Shape[0], t.Shape[1]
	if f.Encoding == tensor.Q8_0 {
		return cols%tensor.BlockGroup == 0
	}
	if _, err := f.On(tensor.CPU, rows, cols); err != nil {
		return false
	}
	switch f.Encoding {
	case tensor.MXFP4, tensor.NVFP4, tensor.NVFP4Scaled, tensor.FP8: // a file may have codes and scales apart
		b, ok := t.Coded.Blocks()
		x, integers := t.Coded.(Integers)
		return ok && len(b) == rows*f.RowBytes(cols) || integers && x.IntegerRow(tensor.NewMatrix(f, 1, cols), 0, 0)
	}
	return true
}

// Exactly returns the rows of tensors, one after the other, as a matrix of a format that has their
// values exactly, or takes their bytes as they are; nil: it does not. An error says what is wrong
// with the bytes.
func Exactly(f tensor.Format, cols int, list ...Tensor) (*tensor.Matrix, error) {
	if m := IntegersOf(f, cols, list...); m != nil {
		return m, nil
	}
	var all []byte
	rows := 0
	for i, t := range list {
		if FormatOf(t).Encoding != f.Encoding || f.Zero() || t.Shape[1] != cols {
			return nil, nil
		}
		b, ok := t.Coded.Blocks()
		if !ok {
			return nil, nil
		}
		if rows += t.Shape[0]; i == 0 && len(list) == 1 {
			all = b
		} else {
			all = append(all, b...)
		}
	}
	if f.Encoding == tensor.Q8_0 {
		return tensor.Q8Blocks(all, rows, cols)
	}
	m, err := f.FromBlocks(all, rows, cols)
	if err != nil {
		return nil, err
	}
	size := f.RowBytes(cols)
	check := func(from, n int) error { return f.CheckBlocks(all[from*size:][:n*size], cols) }
	if eachChunk(rows, cols, func() func(from, n int) error { return check }) != nil {
		return nil, check(0, rows) // it names the row
	}
	return m, nil
}

// Named is a tensor and its name.
type Named struct {
	Name string
	Tensor
}

// Rows returns the number of rows and the values of each: 1 row for a scalar or a vector.
func (t Tensor) Rows() (rows, width int) {
	rows, width = 1, 1
	for i, d := range t.Shape {
		if i == len(t.Shape)-1 {
			width = d
		} else {
			rows *= d
		}
	}
	return rows, width
}

// Floats writes the whole rows that dst has room for, from firstRow on, as float32. It is safe for
// concurrent use.
func (t Tensor) Floats(dst []float32, firstRow int) error {
	rows, width := t.Rows()
	if width == 0 || len(dst)%width != 0 || firstRow < 0 || firstRow > rows || len(dst)/width > rows-firstRow {
		return fmt.Errorf("%d values from row %d of %d rows of %d", len(dst), firstRow, rows, width)
	}
	if t.Coded != nil {
		return eachChunk(len(dst)/width, width, func() func(from, n int) error {
			return func(from, n int) error { return t.Coded.Floats(dst[from*width:][:n*width], firstRow+from) }
		})
	}
	size := t.DType.Size()
	if size == 0 || len(t.Data) != rows*width*size {
		return fmt.Errorf("%d bytes for a shape of %v of %s", len(t.Data), t.Shape, t.DType)
	}
	return tensor.Widen(dst, t.DType, t.Data[firstRow*width*size:][:len(dst)*size])
}

// Write writes all values to dst as numbers of type as, little endian: F32, or a type that is
// DType.
func (t Tensor) Write(dst []byte, as tensor.DType) error {
	rows, width := t.Rows()
	switch size := as.Size(); {
	case len(dst) != rows*width*size:
		return fmt.Errorf("%d bytes for a shape of %v of %s", len(dst), t.Shape, as)
	case t.Coded == nil && as == t.DType && len(t.Data) == len(dst):
		copy(dst, t.Data)
		return nil
	case as != tensor.F32 && (as != tensor.BF16 || as != t.DType):
		return fmt.Errorf("%s cannot be written as %s", t.DType, as)
	default:
		return eachChunk(rows, width, func() func(from, n int) error {
			x := make([]float32, chunkRows(rows, width)*width)
			return func(from, n int) error {
				x := x[:n*width]
				if err := t.Floats(x, from); err != nil {
					return err
				}
				narrow(dst[from*width*size:], x, as)
				return nil
			}
		})
	}
}

// narrow writes x as numbers of type F32 or BF16.
func narrow(dst []byte, x []float32, as tensor.DType) {
	le := binary.LittleEndian
	if as == tensor.BF16 {
		for i, v := range x {
			le.PutUint16(dst[2*i:], tensor.F32ToBF16(v))
		}
		return
	}
	for i, v := range x {
		le.PutUint32(dst[4*i:], math.Float32bits(v))
	}
}

// chunkValues is how many values a goroutine decodes between two looks for more work.
const chunkValues = 1 << 16

// chunkRows is that number in rows.
func chunkRows(rows, width int) int { return max(1, min(rows, chunkValues/max(1, width))) }

// eachChunk has all processors do rows, n from row from on at a time. Each makes a function of its
// own.
func eachChunk(rows, width int, worker func() func(from, n int) error) error {
	step := chunkRows(rows, width)
	var next atomic.Int64
	work := func() error {
		do := worker()
		for {
			from := int(next.Add(1)-1) * step
			if from >= rows {
				return nil
			}
			if err := do(from, min(step, rows-from)); err != nil {
				return err
			}
		}
	}
	if rows <= step {
		return work()
	}
	errs := make([]error, min(runtime.GOMAXPROCS(0), (rows+step-1)/step))
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = files.Guard(work) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Stored lists the memory that the values are read from. Not to be changed.
func (t Tensor) Stored() [][]byte {
	if t.Coded != nil {
		return t.Coded.Stored()
	}
	return [][]byte{t.Data}
}

// Bytes returns the size of the stored tensor.
func (t Tensor) Bytes() (n int64) {
	for _, piece := range t.Stored() {
		n += int64(len(piece))
	}
	return n
}

// Encoding names how the values are stored.
func (t Tensor) Encoding() string {
	if t.Coded != nil {
		return t.Coded.Encoding()
	}
	return t.DType.String()
}
