package cards

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"krater/kernels/cuda/launch"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

// data is a dense matrix and its copies.
type data struct {
	launch.Mat // the first copy
	step       int64
	host       []byte
}

// of returns a copy.
func (x data) of(copy int) launch.Mat {
	m := x.Mat
	m.At += launch.Ptr(int64(copy) * x.step)
	return m
}

// get returns an element of the host's copy.
func (x data) get(row, col int) float64 {
	i := row*x.Cols + col
	switch x.DType {
	case tensor.F32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(x.host[4*i:])))
	case tensor.BF16:
		return float64(tensor.BF16ToF32(binary.LittleEndian.Uint16(x.host[2*i:])))
	case tensor.F8E4M3:
		return float64(tensor.F8E4M3ToF32(x.host[i]))
	case tensor.I8:
		return float64(signed(x.host[i]))
	case tensor.I32:
		return float64(int32(binary.LittleEndian.Uint32(x.host[4*i:])))
	}
	panic(fmt.Sprintf("cards: elements of %s", x.DType))
}

// signed converts a byte to a signed integer (int8 is a format here).
func signed(b byte) int { return int(b) - int(b>>7)<<8 }

// row returns a row of the host's copy.
func (x data) row(row int) []float64 {
	out := make([]float64, x.Cols)
	switch x.DType {
	case tensor.BF16:
		b := x.host[2*row*x.Cols:][:2*x.Cols]
		for i := range out {
			out[i] = float64(tensor.BF16ToF32(uint16(b[2*i]) | uint16(b[2*i+1])<<8))
		}
	case tensor.F8E4M3:
		for i, b := range x.host[row*x.Cols:][:x.Cols] {
			out[i] = float64(tensor.F8E4M3ToF32(b))
		}
	default:
		for i := range out {
			out[i] = x.get(row, i)
		}
	}
	return out
}

// Random numbers have a random sign and significand, and one of four exponents from low on: they
// are between 2^(low-127) and 16 times that. unit gives numbers of about 1. small gives numbers
// for which a product of 2,048 terms with unit numbers is about 2.
const (
	unit  = 124
	small = 120
)

// words sets every 64-bit word of b to random & keep | set. Pieces have their own generators, so
// all cores work at once.
func words(rng *rand.Rand, b []byte, keep, set uint64) {
	const piece = 1 << 20
	seed := rng.Uint64()
	parallel((len(b)+piece-1)/piece, func(i int) {
		r := rand.NewPCG(seed, uint64(i))
		p := b[i*piece : min(len(b), (i+1)*piece)]
		for ; len(p) >= 8; p = p[8:] {
			binary.LittleEndian.PutUint64(p, r.Uint64()&keep|set)
		}
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], r.Uint64()&keep|set)
		copy(p, last[:])
	})
}

func put32(b []byte, v float64) { binary.LittleEndian.PutUint32(b, math.Float32bits(float32(v))) }

// random fills b with random numbers of a type; low is a multiple of 4.
func random(rng *rand.Rand, b []byte, dt tensor.DType, low uint64) {
	switch dt {
	case tensor.F32:
		words(rng, b, 0x81ffffff_81ffffff, low<<23|low<<55)
	case tensor.BF16:
		words(rng, b, 0x81ff81ff_81ff81ff, 0x0001000100010001*(low<<7))
	case tensor.F8E4M3: // 0.5 to 2
		words(rng, b, 0x8f8f8f8f_8f8f8f8f, 0x30303030_30303030)
	case tensor.I8: // odd: -128, which a cache never holds, does not occur
		words(rng, b, 0xfefefefe_fefefefe, 0x01010101_01010101)
	default:
		panic(fmt.Sprintf("cards: random %s", dt))
	}
}

// room makes a poisoned matrix.
func (d *desk) room(dt tensor.DType, rows, cols int) data { return d.mat(dt, rows, cols, nil) }

// numbers makes a random matrix.
func (d *desk) numbers(dt tensor.DType, rows, cols int, low uint64) data {
	return d.mat(dt, rows, cols, func(b []byte) { random(d.rng, b, dt, low) })
}

// ints makes a matrix of the values that value returns.
func (d *desk) ints(rows, cols int, value func(i int) int32) data {
	return d.mat(tensor.I32, rows, cols, func(b []byte) {
		for i := range rows * cols {
			binary.LittleEndian.PutUint32(b[4*i:], uint32(value(i)))
		}
	})
}

func (d *desk) mat(dt tensor.DType, rows, cols int, fill func([]byte)) data {
	at, step, host := d.arena.put(rows*cols*dt.Size(), d.copies, fill)
	return data{launch.Mat{At: at, DType: dt, Rows: rows, Cols: cols, Stride: cols}, step, host}
}

// format is how weights are stored: as rows of a type, or packed.
type format struct {
	dtype  tensor.DType
	packed tensor.Format
}

var (
	bf16 = format{dtype: tensor.BF16}
	f32  = format{dtype: tensor.F32}
	int3 = format{packed: tensor.INT3.By(128)}
	int4 = format{packed: tensor.INT4.By(128)}
	int8 = format{packed: tensor.INT8.By(128)}
)

func (f format) String() string {
	if f.packed.Zero() {
		return f.dtype.String()
	}
	if f.packed.Shared() {
		return strings.ToUpper(f.packed.Name())
	}
	return fmt.Sprintf("INT%d g%d", f.packed.Bits(), f.packed.Group)
}

func (f format) tiles(rows, cols int, joined bool) tensor.Layout {
	return tensor.Layout{Format: f.packed, Rows: rows, Cols: cols, For: tensor.GPU, Joined: joined && !f.packed.Shared()}
}

// bytes returns the size of a matrix.
func (f format) bytes(rows, cols int) int {
	if f.packed.Zero() {
		return rows * cols * f.dtype.Size()
	}
	return f.tiles(rows, cols, false).Bytes()
}

// weights is n matrices of a format, one after the other, and their copies.
type weights struct {
	format
	launch.Weight   // the first matrix of the first copy
	next, nextScale int64
	values, scales  data
	tiles           bool // products of many rows: values are rounded to BF16 after their scale, as in the kernels
}

// weights makes n matrices [rows, cols]; joined means gate and up.
func (d *desk) weights(f format, n, rows, cols int, joined bool) weights {
	w := weights{format: f}
	if f.packed.Zero() {
		w.values = d.numbers(f.dtype, n*rows, cols, small)
		w.F = w.values.Mat
		w.F.Rows = rows
		w.next = int64(rows * cols * f.dtype.Size())
		return w
	}
	a := f.tiles(rows, cols, joined)
	w.next, w.nextScale = int64(a.ValueBytes()), int64(a.ScaleBytes())
	if f.packed.Shared() {
		values, scales := d.blocks(a)
		w.values = d.mat(tensor.I8, n, a.ValueBytes(), func(b []byte) { repeat(b, values) })
		w.scales = d.mat(tensor.I8, n, a.ScaleBytes(), func(b []byte) { repeat(b, scales) })
		w.A = launch.Tiles{Layout: a, Values: w.values.At, Scales: w.scales.At}
		return w
	}
	w.values = d.mat(tensor.I8, n, a.ValueBytes(), func(b []byte) {
		if f.packed.Encoding != tensor.INT8 {
			words(d.rng, b, ^uint64(0), 0)
			return
		}
		words(d.rng, b, 0xfefefefe_fefefefe, 0x01010101_01010101) // odd: -128, which is stored as 0, does not occur
	})
	low := uint64(0x3a00) // 2^-11 and up: about 1/64 when multiplied with the integers
	if f.packed.Encoding == tensor.INT8 {
		low = 0x3800
	}
	w.scales = d.mat(tensor.BF16, n, a.ScaleBytes()/2, func(b []byte) { words(d.rng, b, 0x01ff01ff_01ff01ff, 0x0001000100010001*low) })
	w.A = launch.Tiles{Layout: a, Values: w.values.At, Scales: w.scales.At}
	return w
}

// blocks are a few bands of random blocks of a file, packed, whose values are about 1/32: NVFP4 has none much smaller.
func (d *desk) blocks(a tensor.Layout) (values, scales []byte) {
	a.Rows = min(a.Rows, 4*tensor.TileRows)
	m := tensor.NewMatrix(a.Format, a.Rows, a.Cols)
	if a.Stored() {
		copy(m.Blocks, kerneltest.ScaledBlocks(d.rng, a.Encoding, a.Rows, a.Cols, 1./32))
	} else {
		x := make([]float32, a.Cols)
		for r := range a.Rows {
			for i := range x {
				x[i] = float32(d.rng.NormFloat64()) / 32
			}
			m.Quantize(x, r)
		}
	}
	values, scales = make([]byte, a.ValueBytes()), make([]byte, a.ScaleBytes())
	a.Pack(values, scales, m)
	return values, scales
}

// repeat fills b with x, over and over.
func repeat(b, x []byte) {
	for len(b) > 0 {
		b = b[copy(b, x):]
	}
}

// of returns the first matrix of a copy.
func (w *weights) of(copy int) launch.Weight {
	out := w.Weight
	if w.packed.Zero() {
		out.F.At = w.values.of(copy).At
		return out
	}
	out.A.Values, out.A.Scales = w.values.of(copy).At, w.scales.of(copy).At
	return out
}

// row returns a row of matrix i of the host's copy.
func (w *weights) row(i, row int) []float64 {
	if w.packed.Zero() {
		return w.values.row(i*w.F.Rows + row)
	}
	wide, out := make([]float32, w.A.Cols), make([]float64, w.A.Cols)
	w.A.Row(wide, w.values.host[int64(i)*w.next:][:w.next], w.scales.host[int64(i)*w.nextScale:][:w.nextScale], row)
	for col, v := range wide {
		if w.tiles {
			v = tensor.BF16ToF32(tensor.F32ToBF16(v))
		}
		out[col] = float64(v)
	}
	return out
}
