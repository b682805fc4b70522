// Package scaled reads quantised matrices of safetensors files: FP8, INT8, INT4, MXFP4 and NVFP4.
// A checkpoint stores one as several tensors, codes and the scales of their blocks. View joins
// them to a tensor that has the name of the plain weight.
//
// A value is the number of its code times its scale, one product in float32. Formats and their
// sources: DeepSeek-V3's FP8 (README_WEIGHTS.md of the release), compressed-tensors
// (float-quantized, int-quantized, pack-quantized, nvfp4-pack-quantized), NVIDIA's Model
// Optimizer, and gpt-oss's MXFP4 (OCP microscaling formats 1.0).
package scaled

import (
	"encoding/binary"
	"fmt"
	"math"

	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights"
)

// Matrix is the codes of a tensor [.., rows, cols] with their scales (weights.Coded).
type Matrix struct {
	scheme     model.Scheme
	shape      []int
	lead       int // matrices [rows, cols], one after the other
	rows, cols int

	codes  []byte // of lead * rows rows
	stride int    // bytes of a row of codes
	halves bool   // a byte has two codes, the first in its low half
	values *[256]float32

	scales               []byte // [lead, down, across]
	scaleType            tensor.DType
	down, across         int
	blockRows, blockCols int

	global  []byte  // NVFP4: the scale of the whole tensor
	factor  float32 // what it says
	divides bool    // scales are divided by it, else multiplied with it
}

// tensor returns the matrix under its plain name.
func (m *Matrix) tensor() weights.Tensor {
	t := weights.Tensor{DType: tensor.F32, Shape: m.shape, Coded: m}
	if m.scheme.Codes == model.MXFP4 { // every value is a bfloat16 number
		t.DType = tensor.BF16
	}
	return t
}

// Encoding implements weights.Coded.
func (m *Matrix) Encoding() string { return m.scheme.Encoding() }

// Scheme says what the codes are and which of them share a scale.
func (m *Matrix) Scheme() model.Scheme { return m.scheme }

// Blocks implements weights.Coded: codes and scales lie apart.
func (m *Matrix) Blocks() ([]byte, bool) { return nil, false }

// Stored implements weights.Coded.
func (m *Matrix) Stored() [][]byte {
	if m.global != nil {
		return [][]byte{m.codes, m.scales, m.global}
	}
	return [][]byte{m.codes, m.scales}
}

// Floats implements weights.Coded.
func (m *Matrix) Floats(dst []float32, firstRow int) error {
	n := len(dst) / m.cols
	if len(dst)%m.cols != 0 || firstRow < 0 || firstRow > m.lead*m.rows-n {
		return fmt.Errorf("scaled: %d values from row %d of %d rows of %d", len(dst), firstRow, m.lead*m.rows, m.cols)
	}
	for i := range n {
		m.row(dst[i*m.cols:][:m.cols], firstRow+i)
	}
	return nil
}

// row decodes row r of all matrices.
func (m *Matrix) row(dst []float32, r int) {
	codes, at := m.codes[r*m.stride:][:m.stride], m.scaleRow(r)
	for c := 0; c < m.cols; c += m.blockCols {
		block, s := dst[c:min(c+m.blockCols, m.cols)], m.Scale(at+c/m.blockCols)
		if !m.halves {
			for i, code := range codes[c:][:len(block)] {
				block[i] = m.values[code] * s
			}
			continue
		}
		pairs := codes[c/2:]
		for i := 1; i < len(block); i += 2 {
			b := pairs[i/2]
			block[i-1], block[i] = m.values[b&15]*s, m.values[b>>4]*s
		}
		if n := len(block); n%2 != 0 {
			block[n-1] = m.values[pairs[n/2]&15] * s
		}
	}
}

// code returns the code of a column in a row.
func (m *Matrix) code(row []byte, c int) byte {
	if m.halves {
		return row[c/2] >> (4 * (c % 2)) & 15
	}
	return row[c]
}

// scaleRow returns the number of the first scale of row r.
func (m *Matrix) scaleRow(r int) int {
	return (r/m.rows*m.down + r%m.rows/m.blockRows) * m.across
}

// Scale returns a scale by its number, with that of the whole tensor.
func (m *Matrix) Scale(i int) float32 {
	le, s := binary.LittleEndian, float32(0)
	switch m.scaleType {
	case tensor.F32:
		s = math.Float32frombits(le.Uint32(m.scales[4*i:]))
	case tensor.BF16:
		s = tensor.BF16ToF32(le.Uint16(m.scales[2*i:]))
	case tensor.F16:
		s = tensor.F16ToF32(le.Uint16(m.scales[2*i:]))
	case tensor.F8E4M3:
		s = tensor.F8E4M3ToF32(m.scales[i])
	default: // U8 or F8_E8M0
		s = tensor.F8E8M0ToF32(m.scales[i])
	}
	switch {
	case m.global == nil:
		return s
	case m.divides:
		return s / m.factor
	}
	return s * m.factor
}

// IntegerRow implements weights.Integers: integers, and 4-bit floats times 2, become the integers of
// INT4, INT8 or Q8_0 where these have them and the scales, and where a group of the format lies
// within a block. MXFP4, NVFP4 and FP8 become the blocks of their encodings.
func (m *Matrix) IntegerRow(dst *tensor.Matrix, at, row int) bool {
	if dst.Stored() {
		n := dst.RowBytes(m.cols)
		return dst.Cols == m.cols && m.blockRow(dst.Encoding, dst.Blocks[at*n:][:n], row)
	}
	exact := exactScale[dst.Encoding]
	if exact == nil || dst.Cols != m.cols || m.scheme.Codes == model.FP8 || m.blockCols < m.cols && m.blockCols%dst.Group != 0 {
		return false
	}
	integers, unit := m.values, float32(1)
	if m.values == e2m1Values {
		integers, unit = e2m1Doubles, 0.5
	}
	least, most := dst.Range()
	scales, first := dst.Scales[at*dst.Groups():][:dst.Groups()], m.scaleRow(row)
	for g := range scales {
		if scales[g] = m.Scale(first+min(g*dst.Group/m.blockCols, m.across-1)) * unit; !exact(scales[g]) {
			return false
		}
	}
	codes, values := m.codes[row*m.stride:], dst.Values[at*m.cols:][:m.cols]
	for c := range values {
		v := int(integers[m.code(codes, c)])
		if v < least || v > most {
			return false
		}
		values[c] = int8(v)
	}
	return true
}

// blockRow writes a row of blocks. It reports false for what the encoding does not have, such as a
// scale that is not a number.
func (m *Matrix) blockRow(e *tensor.Encoding, dst []byte, row int) bool {
	codes, first := m.codes[row*m.stride:][:m.stride], m.scaleRow(row)
	switch {
	case e == tensor.MXFP4 && m.scheme.Codes == model.MXFP4:
		return m.mxfp4Row(dst, codes, first)
	case e == tensor.NVFP4Scaled && m.scheme.Codes == model.NVFP4 && m.blockCols == 16:
		return m.nvfp4Row(dst, codes, first)
	case e == tensor.FP8 && m.scheme.Codes == model.FP8 && (m.blockCols >= m.cols || m.blockCols%tensor.FP8Share == 0):
		return m.fp8Row(dst, codes, first)
	}
	return false
}

// mxfp4Row writes blocks as ggml has them: a byte e, the scale being 2^(e-127), and 16 bytes with
// columns j and j+16.
func (m *Matrix) mxfp4Row(dst, codes []byte, first int) bool {
	for i, e := range m.scales[first:][:m.across] {
		b := dst[17*i:][:17]
		if b[0] = e; e == 0xff {
			return false
		}
		for j := range 16 {
			b[1+j] = m.code(codes, 32*i+j) | m.code(codes, 32*i+j+16)<<4
		}
	}
	return true
}

// nvfp4Row writes the factor of the tensor, negative if it divides, and blocks as ggml has them: four
// scales, and 8 bytes for each, with columns j and j+8. The bounds keep products and quotients normal
// numbers.
func (m *Matrix) nvfp4Row(dst, codes []byte, first int) bool {
	factor := m.factor
	if factor < 1.0/(1<<60) || factor > 1<<60 {
		return false
	}
	if m.divides {
		factor = -factor
	}
	binary.LittleEndian.PutUint32(dst, math.Float32bits(factor))
	for g, s := range m.scales[first:][:m.across] {
		b := dst[4+g/4*36:][:36]
		if b[g%4] = s; s >= 0x7f { // no number, or a sign
			return false
		}
		for j := range 8 {
			b[4+g%4*8+j] = m.code(codes, 16*g+j) | m.code(codes, 16*g+j+8)<<4
		}
	}
	return true
}

// fp8Row writes a scale for 128 columns, then the codes.
func (m *Matrix) fp8Row(dst, codes []byte, first int) bool {
	n := len(dst) - m.cols
	for i := range n / 4 {
		s := m.Scale(first + i*tensor.FP8Share/m.blockCols)
		const unit = 512 // of codes: their scale is exact but where it is subnormal
		if !(math.Abs(float64(s)) <= math.MaxFloat32) || s/unit*unit != s {
			return false
		}
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(s))
	}
	for _, code := range codes[:m.cols] {
		if code&0x7f == 0x7f { // no number
			return false
		}
	}
	copy(dst[n:], codes)
	return true
}

// exactScale reports whether the scales of an encoding of integers have a number.
var exactScale = map[*tensor.Encoding]func(s float32) bool{
	tensor.INT4: inBF16, tensor.INT8: inBF16,
	tensor.Q8_0: func(s float32) bool { return tensor.F16ToF32(tensor.F32ToF16(s)) == s },
}

func inBF16(s float32) bool {
	return tensor.BF16ToF32(tensor.F32ToBF16(s)) == s && !math.IsInf(float64(s), 0)
}
