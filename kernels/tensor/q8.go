package tensor

import (
	"fmt"
	"math"
)

// Q8_0 is llama.cpp's type of that name: integers with an IEEE half-precision scale for every 32
// columns. Its rule makes integers from -127 to 127; a file may have -128 too. A CPU has it as INT8,
// with these scales.
var Q8_0 = register(&Encoding{
	name: "q8_0", bits: 8, groups: []int{32}, levels: between(-128, 127),
	packings: [kinds]Packing{CPU: integerTiles{putHalf, getHalf}, GPU: integerTiles{putHalf, getHalf}}, shared: true,
	quantize: quantizeQ8, widen: widenIntegers,
})

// quantizeQ8 is llama.cpp's rule: the scale is the largest magnitude by 127, and values are
// divided by it before it is rounded to half precision; halves are rounded away from zero.
func quantizeQ8(m *Matrix, x []float32, r int) {
	groups := m.Groups()
	for g := range groups {
		from, to := g*m.Group, min((g+1)*m.Group, m.Cols)
		top := float32(0)
		for _, v := range x[from:to] {
			top = max(top, float32(math.Abs(float64(v))))
		}
		scale, inverse := top/127, float32(0)
		if scale > 0 {
			inverse = 1 / scale
		}
		for c, v := range x[from:to] {
			m.Values[r*m.Cols+from+c] = int8(min(max(math.Round(float64(v*inverse)), -127), 127))
		}
		m.Scales[r*groups+g] = F16ToF32(F32ToF16(scale))
	}
}

// Q8Block is the unit of Q8_0 in a file: the scale, then the integers.
const Q8Block = 34

// Q8Blocks is a matrix of rows of Q8_0's blocks as a file has them. Columns are a multiple of 32.
func Q8Blocks(b []byte, rows, cols int) (*Matrix, error) {
	if rows < 1 || cols < 1 || cols%32 != 0 || len(b) != rows*cols/32*Q8Block {
		return nil, fmt.Errorf("q8_0: %d bytes are not blocks of [%d, %d]", len(b), rows, cols)
	}
	m := NewMatrix(Q8_0.By(32), rows, cols)
	for i := range m.Scales {
		block := b[i*Q8Block:][:Q8Block]
		if m.Scales[i] = getHalf(block); !(math.Abs(float64(m.Scales[i])) <= math.MaxFloat32) {
			return nil, fmt.Errorf("q8_0: row %d, block %d: %w", i/(cols/32), i%(cols/32), ErrScale)
		}
		for j, v := range block[2:] {
			m.Values[32*i+j] = int8(v)
		}
	}
	return m, nil
}

func putHalf(dst []byte, scale float32) {
	b := F32ToF16(scale)
	dst[0], dst[1] = byte(b), byte(b>>8)
}

func getHalf(src []byte) float32 { return F16ToF32(uint16(src[0]) | uint16(src[1])<<8) }
