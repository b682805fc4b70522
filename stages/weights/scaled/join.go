package scaled

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"krater/kernels/tensor"
	"krater/stages/model"
)

// matrix joins the tensors of a group. end is that of the codes.
func (g group) matrix(end string, q *model.Quantization) (*Matrix, error) {
	if g.has(orderEnd) {
		return nil, ErrOrder
	}
	if slices.ContainsFunc(g[zeroEnd].Data, func(b byte) bool { return b != 0 }) {
		return nil, ErrZeroPoint
	}
	codes := g[end]
	m := &Matrix{codes: codes.Data}
	var err error
	switch {
	case end == plainEnd && codes.DType == tensor.F8E4M3:
		m.scheme.Codes, m.values = model.FP8, e4m3Values
		err = m.setShape(codes.Shape, 1)
	case end == plainEnd && codes.DType == tensor.I8 && g[powerEnd].DType == tensor.F8E8M0:
		m.halves, m.values = true, e2m1Values
		err = m.setShape(codes.Shape, 2)
	case end == plainEnd && codes.DType == tensor.I8:
		m.scheme.Codes, m.values = model.INT8, int8Values
		err = m.setShape(codes.Shape, 1)
	case end == packedEnd && codes.DType == tensor.I32:
		err = m.integers(codes.Shape, g)
	case end != blocksEnd && codes.DType == tensor.U8:
		m.halves, m.values = true, e2m1Values
		err = m.setShape(codes.Shape, 2)
	case end == blocksEnd && codes.DType == tensor.U8:
		m.halves, m.values = true, e2m1Values
		if n := len(codes.Shape); n < 3 || codes.Shape[n-1] != 16 {
			return nil, fmt.Errorf("%w: %v has no blocks of 16 bytes", ErrShape, codes.Shape)
		} else {
			err = m.setShape(append(slices.Clone(codes.Shape[:n-2]), codes.Shape[n-2]*16), 2)
		}
	default:
		err = fmt.Errorf("%w: codes of %s", ErrType, codes.DType)
	}
	var scales []int
	if err == nil {
		scales, err = m.setScales(g)
	}
	if err == nil {
		err = m.setScheme(q, scales)
	}
	return m, err
}

// setShape sets the shape from that of the codes, each element of which has per values.
func (m *Matrix) setShape(codes []int, per int) error {
	n := len(codes)
	if n < 2 || slices.Contains(codes, 0) {
		return fmt.Errorf("%w: codes %v are no matrix", ErrShape, codes)
	}
	m.shape = slices.Clone(codes)
	m.shape[n-1] *= per
	m.lead, m.rows, m.cols, m.stride = 1, codes[n-2], m.shape[n-1], codes[n-1]
	for _, d := range codes[:n-2] {
		m.lead *= d
	}
	return nil
}

// integers sets the shape of packed integers, which weight_shape gives: their number in a word
// follows from it.
func (m *Matrix) integers(packed []int, g group) error {
	t, ok := g[shapeEnd]
	if !ok {
		return fmt.Errorf("%w: %s", ErrMissing, shapeEnd[1:])
	}
	var dims [2]int
	le, size := binary.LittleEndian, t.DType.Size()
	switch {
	case t.DType != tensor.I32 && t.DType != tensor.I64:
		return fmt.Errorf("%w: %s of %s", ErrType, shapeEnd[1:], t.DType)
	case len(t.Data) != 2*size || len(packed) != 2:
		return fmt.Errorf("%w: codes %v, %s %v", ErrShape, packed, shapeEnd[1:], t.Shape)
	case t.DType == tensor.I32:
		dims = [2]int{int(int32(le.Uint32(t.Data))), int(int32(le.Uint32(t.Data[4:])))}
	default:
		dims = [2]int{int(le.Uint64(t.Data)), int(le.Uint64(t.Data[8:]))}
	}
	if err := m.setShape(packed, 1); err != nil {
		return err
	}
	m.stride *= 4
	cols := dims[1]
	switch words := func(per int) int { return (cols-1)/per + 1 }; {
	case dims[0] != packed[0] || cols < 1:
	case words(8) == packed[1]:
		m.scheme.Codes, m.values, m.halves = model.INT4, packedInt4Values, true
	case words(4) == packed[1]:
		m.scheme.Codes, m.values = model.INT8, packedInt8Values
	}
	if m.scheme.Codes == 0 {
		return fmt.Errorf("%w: codes %v, %s says %v; integers have 4 or 8 bits", ErrShape, packed, shapeEnd[1:], dims)
	}
	m.cols, m.shape[1] = cols, cols
	return nil
}

// setScales finds the scales and returns their shape. The type of those of 4-bit floats says which
// floats they are.
func (m *Matrix) setScales(g group) (shape []int, err error) {
	t, ok := g[scaleEnd]
	for _, end := range []string{inverseEnd, blockScaleEnd, powerEnd} {
		if !ok {
			t, ok = g[end]
		}
	}
	if !ok {
		return nil, fmt.Errorf("%w: its scales", ErrMissing)
	}
	m.scales, m.scaleType = t.Data, t.DType
	number := t.DType == tensor.F32 || t.DType == tensor.BF16 || t.DType == tensor.F16
	power := t.DType == tensor.U8 || t.DType == tensor.F8E8M0
	switch {
	case m.scheme.Codes != 0 && number, m.scheme.Codes == model.FP8 && power:
	case m.scheme.Codes == 0 && power:
		m.scheme.Codes = model.MXFP4
	case m.scheme.Codes == 0 && t.DType == tensor.F8E4M3:
		m.scheme.Codes = model.NVFP4
		err = m.setGlobal(g)
	default:
		err = fmt.Errorf("%w: scales of %s", ErrType, t.DType)
	}
	return t.Shape, err
}

// setGlobal finds the scale of the whole tensor.
func (m *Matrix) setGlobal(g group) error {
	t, ok := g[dividesEnd]
	if m.divides = ok; !ok {
		if t, ok = g[timesEnd]; !ok {
			return fmt.Errorf("%w: %s or %s", ErrMissing, dividesEnd[1:], timesEnd[1:])
		}
	}
	if t.DType != tensor.F32 || len(t.Data) != 4 {
		return fmt.Errorf("%w: the scale of the tensor is %s %v", ErrType, t.DType, t.Shape)
	}
	m.global, m.factor = t.Data, math.Float32frombits(binary.LittleEndian.Uint32(t.Data))
	if !(m.factor > 0) || math.IsInf(float64(m.factor), 0) {
		return fmt.Errorf("%w: %v of the tensor", ErrScale, m.factor)
	}
	return nil
}

// setScheme finds the scheme of q whose blocks there are as many of as scales.
func (m *Matrix) setScheme(q *model.Quantization, scales []int) error {
	var known []model.Scheme
	for _, s := range q.Schemes {
		if s.Codes != m.scheme.Codes {
			continue
		}
		known = append(known, s)
		m.scheme, m.blockRows, m.blockCols = s, s.Rows, s.Cols
		if s.Rows == 0 {
			m.blockRows = m.rows
		}
		if s.Cols == 0 {
			m.blockCols = m.cols
		}
		m.down, m.across = (m.rows+m.blockRows-1)/m.blockRows, (m.cols+m.blockCols-1)/m.blockCols
		if m.fits(scales) {
			return nil
		}
	}
	if known == nil {
		return fmt.Errorf("%w: it is %s, there is %s", ErrScheme, m.scheme.Codes, q)
	}
	return fmt.Errorf("%w: scales %v of codes for %v, which are %v", ErrShape, scales, m.shape, known)
}

// fits reports whether scales have the shape of the blocks. The last dimension may be left out
// where it is 1, and one scale of a matrix may have any shape.
func (m *Matrix) fits(scales []int) bool {
	want := append(slices.Clone(m.shape[:len(m.shape)-2]), m.down, m.across)
	if m.lead*m.down*m.across == 1 {
		return !slices.ContainsFunc(scales, func(d int) bool { return d != 1 })
	}
	return slices.Equal(scales, want) || m.across == 1 && slices.Equal(scales, want[:len(want)-1])
}
