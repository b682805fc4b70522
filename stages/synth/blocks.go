package synth

import (
	"encoding/binary"
	"math"
	"slices"

	"krater/kernels/tensor"
	"krater/stages/weights/gguf"
)

// halfScales are where the binary16 scales of a block lie, for the types that random blocks can have.
// A second one is that of the minimum, which all bits of a value are moved down by. Types without
// them begin with scales of a byte (byteScales).
var halfScales = map[gguf.Type][]int{
	gguf.Q8_0: {0}, gguf.Q4_0: {0}, gguf.Q4_K: {0, 2}, gguf.Q5_K: {0, 2}, gguf.Q6_K: {208}, gguf.IQ4_XS: {0}, gguf.IQ3_S: {0}, gguf.IQ3_XXS: {0},
	gguf.IQ2_XS: {0}, gguf.IQ2_XXS: {0}, gguf.MXFP4: nil, gguf.NVFP4: nil,
}

// byteScales is how many scales of a byte a block begins with: exponents of MXFP4, FP8 (E4M3) of NVFP4.
var byteScales = map[gguf.Type]int{gguf.MXFP4: 1, gguf.NVFP4: 4}

// middle is the mean of the values of a type with a minimum: the minimum moves it to zero.
var middle = map[gguf.Type]float64{gguf.Q4_K: 7.5, gguf.Q5_K: 15.5}

// BlockTypes are the types that random blocks can have, in the order of their numbers.
func BlockTypes() []gguf.Type {
	var list []gguf.Type
	for t := range halfScales {
		list = append(list, t)
	}
	slices.Sort(list)
	return list
}

// blocks is how a matrix of a GGUF type is made: bits that are all alike likely, and scales that give
// its values a spread. It is never a float matrix.
type blocks struct {
	gguf.Type
	bits, scales uint64      // keys
	d, minimum   [256]uint16 // bits of scales
	factor       float32     // what all values are multiplied by: 1, but of NVFP4
}

// blocks finds the recipe of a matrix whose values have the spread std.
func (m *Model) blocks(name string, t gguf.Type, std float64) *blocks {
	x := &blocks{Type: t, bits: m.key(name + ".blocks"), scales: m.key(name + ".scales")}
	size := std / unitSpread(t)
	x.factor = 1
	if t == gguf.NVFP4 {
		x.factor, size = float32(size), 1
	}
	for i := range x.d {
		u := (float64(i) + 0.5) / 256
		if t == gguf.MXFP4 { // the power of two below or above, so that the mean square is right
			low := math.Floor(math.Log2(size))
			if above := math.Pow(size/math.Exp2(low), 2); u < (above-1)/3 { // above is 1 to 4
				low++
			}
			x.d[i] = uint16(min(max(127+low, 0), 254))
			continue
		}
		// 0.75 to 1.25 of the mean. The square's mean is 1.02 times the mean's square.
		d := size * (0.75 + 0.5*u)
		x.d[i] = scaleBits(t, d)
		x.minimum[i] = tensor.F32ToF16(float32(d * middle[t]))
	}
	return x
}

// scaleBits returns a scale as blocks of the type have it; not of MXFP4.
func scaleBits(t gguf.Type, scale float64) uint16 {
	if t != gguf.NVFP4 {
		return tensor.F32ToF16(float32(scale))
	}
	best := uint8(0)
	for b := range uint8(0x7f) {
		if math.Abs(float64(tensor.F8E4M3ToF32(b))-scale) < math.Abs(float64(tensor.F8E4M3ToF32(best))-scale) {
			best = b
		}
	}
	return uint16(best)
}

// scale gives block i its scale. Both signs are alike likely, as the integers reach further down
// than up, but for types with a minimum.
func (x *blocks) scale(block []byte, i uint64) {
	w := random(x.scales, i)
	d := x.d[w&255]
	at := halfScales[x.Type]
	switch len(at) {
	case 0:
		for g := range byteScales[x.Type] {
			block[g] = byte(x.d[w>>(8*g)&255])
		}
	case 1:
		binary.LittleEndian.PutUint16(block[at[0]:], d|uint16(w>>8&1)<<15)
	default:
		binary.LittleEndian.PutUint16(block[at[0]:], d)
		binary.LittleEndian.PutUint16(block[at[1]:], x.minimum[w&255])
	}
}

// fill writes blocks from number first on, a multiple of 8.
func (x *blocks) fill(dst []byte, first uint64, threads int) {
	b := x.Block()
	step := max(8, stripe/b.Elements&^7)
	n := len(dst) / b.Bytes
	spread((n+step-1)/step, threads, func(s int) {
		from, to := s*step, min((s+1)*step, n)
		part := dst[from*b.Bytes : to*b.Bytes]
		whole := len(part) &^ 7
		word := (first + uint64(from)) / 8 * uint64(b.Bytes)
		fillBytes(part[:whole], x.bits, word)
		var last [8]byte
		fillBytes(last[:], x.bits, word+uint64(whole/8))
		copy(part[whole:], last[:])
		for i := from; i < to; i++ {
			x.scale(dst[i*b.Bytes:][:b.Bytes], first+uint64(i))
		}
	})
}

// unitSpread returns the root mean square of the values of random blocks with the scale 1, or 2^0.
func unitSpread(t gguf.Type) float64 {
	const n = 256
	b := t.Block()
	x := &blocks{Type: t}
	for i := range x.d {
		x.d[i], x.minimum[i] = scaleBits(t, 1), tensor.F32ToF16(float32(middle[t]))
		if t == gguf.MXFP4 {
			x.d[i] = 127
		}
	}
	data, values := make([]byte, n*b.Bytes), make([]float32, n*b.Elements)
	x.fill(data, 0, 1)
	if err := t.Decode(values, data); err != nil {
		panic(err) // the lengths fit
	}
	sum := 0.0
	for _, v := range values {
		sum += float64(v) * float64(v)
	}
	return math.Sqrt(sum / float64(len(values)))
}
