package kerneltest

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"krater/kernels/tensor"
)

// scaleAt are the half-precision scales of a block.
var scaleAt = map[string][]int{
	"q4_0": {0}, "q4_k": {0, 2}, "q5_k": {0, 2}, "q6_k": {208}, "iq4_xs": {0}, "iq2_xxs": {0}, "iq2_xs": {0}, "iq3_xxs": {0}, "iq3_s": {0},
}

// Blocks are rows of an encoding of blocks whose bytes fill gives (nil: any); scales are such that
// weights are small numbers.
func Blocks(r *rand.Rand, e *tensor.Encoding, rows, cols int, fill func() byte) []byte {
	b := make([]byte, rows*e.RowBytes(cols))
	for i := range b {
		if fill != nil {
			b[i] = fill()
		} else {
			b[i] = byte(r.Uint32())
		}
	}
	_, size := e.Block()
	for at := 0; at < len(b); at += size {
		block := b[at : at+size]
		for _, off := range scaleAt[e.Name()] {
			binary.LittleEndian.PutUint16(block[off:], tensor.F32ToF16(float32(r.NormFloat64())*0.01))
		}
		switch e.Name() {
		case "mxfp4":
			block[0] = byte(r.IntN(255))
			if r.IntN(4) > 0 {
				block[0] = byte(115 + r.IntN(8))
			}
		case "nvfp4":
			for i := range 4 {
				block[i] = byte(r.IntN(127))
			}
		}
	}
	return b
}

// ScaledBlocks are Blocks whose values have about the given size (their root mean square).
func ScaledBlocks(r *rand.Rand, e *tensor.Encoding, rows, cols int, size float64) []byte {
	b := Blocks(r, e, rows, cols, nil)
	columns, bytes := e.Block()
	row := make([]float32, columns)
	for at := 0; at < len(b); at += bytes {
		block := b[at : at+bytes]
		switch e.Name() {
		case "mxfp4": // values are up to 6, 3 in the middle
			block[0] = byte(127 + int(math.Round(math.Log2(size/3))))
			continue
		case "nvfp4":
			for i := range 4 {
				block[i] = byte(max(0, 56+8*int(math.Round(math.Log2(size/3)))+r.IntN(8)))
			}
			continue
		}
		m, err := e.FromBlocks(block, 1, columns)
		if err != nil {
			panic(err)
		}

		m.Row(row, 0)
		sum := 1e-30
		for _, v := range row {
			sum += float64(v) * float64(v)
		}
		for _, off := range scaleAt[e.Name()] {
			d := float64(tensor.F16ToF32(binary.LittleEndian.Uint16(block[off:])))
			binary.LittleEndian.PutUint16(block[off:], tensor.F32ToF16(float32(d*size/math.Sqrt(sum/float64(columns)))))
		}
	}
	return b
}
