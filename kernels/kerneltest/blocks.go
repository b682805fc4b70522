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
	n, _ := e.Factors(cols)
	for at := 0; at < len(b); at += e.RowBytes(cols) {
		row := b[at:][:e.RowBytes(cols)]
		for i := range n {
			factor := float32(r.NormFloat64()) * 0.01
			if e == tensor.NVFP4Scaled && factor < 0 { // it divides
				factor = 1 / factor
			}
			binary.LittleEndian.PutUint32(row[4*i:], math.Float32bits(factor))
		}
		for blocks := row[4*n:]; len(blocks) > 0; blocks = blocks[size:] {
			setScales(r, e, blocks[:size])
		}
	}
	return b
}

// setScales sets the scales of a block, and the codes that are not numbers.
func setScales(r *rand.Rand, e *tensor.Encoding, block []byte) {
	for _, off := range scaleAt[e.Name()] {
		binary.LittleEndian.PutUint16(block[off:], tensor.F32ToF16(float32(r.NormFloat64())*0.01))
	}
	switch e {
	case tensor.MXFP4:
		block[0] = byte(r.IntN(255))
		if r.IntN(4) > 0 {
			block[0] = byte(115 + r.IntN(8))
		}
	case tensor.NVFP4, tensor.NVFP4Scaled:
		for i := range 4 {
			block[i] = byte(r.IntN(127))
		}
	case tensor.FP8:
		for i, code := range block {
			if code&0x7f == 0x7f {
				block[i]--
			}
		}
	}
}

// ScaledBlocks are Blocks whose values have about the given size (their root mean square).
func ScaledBlocks(r *rand.Rand, e *tensor.Encoding, rows, cols int, size float64) []byte {
	b := Blocks(r, e, rows, cols, nil)
	columns, bytes := e.Block()
	factors, share := e.Factors(cols)
	for at := 0; at < len(b); at += e.RowBytes(cols) {
		line := b[at:][:e.RowBytes(cols)]
		for i := range factors { // random codes of FP8 are about 100, scales of NVFP4 too, and its values 3
			factor := size / 100
			if share > cols {
				factor = size / 300
			}
			binary.LittleEndian.PutUint32(line[4*i:], math.Float32bits(float32(factor)))
		}
		for blocks := line[4*factors:]; factors == 0 && len(blocks) > 0; blocks = blocks[bytes:] {
			scaleBlock(r, e, blocks[:bytes], columns, size)
		}
	}
	return b
}

// scaleBlock sets the scales of a block so that values have the given size.
func scaleBlock(r *rand.Rand, e *tensor.Encoding, block []byte, columns int, size float64) {
	switch e {
	case tensor.MXFP4: // values are up to 6, 3 in the middle
		block[0] = byte(127 + int(math.Round(math.Log2(size/3))))
		return
	case tensor.NVFP4:
		for i := range 4 {
			block[i] = byte(max(0, 56+8*int(math.Round(math.Log2(size/3)))+r.IntN(8)))
		}
		return
	}
	m, err := e.FromBlocks(block, 1, columns)
	if err != nil {
		panic(err)
	}
	row, sum := make([]float32, columns), 1e-30
	m.Row(row, 0)
	for _, v := range row {
		sum += float64(v) * float64(v)
	}
	for _, off := range scaleAt[e.Name()] {
		d := float64(tensor.F16ToF32(binary.LittleEndian.Uint16(block[off:])))
		binary.LittleEndian.PutUint16(block[off:], tensor.F32ToF16(float32(d*size/math.Sqrt(sum/float64(columns)))))
	}
}
