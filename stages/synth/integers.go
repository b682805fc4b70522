package synth

import (
	"encoding/binary"
	"math"

	"krater/kernels/tensor"
	"krater/stages/weights/quant"
)

// integers is how a matrix in format B is made: integers that are all alike likely
// and scales that differ by half. It is never a float matrix.
type integers struct {
	tensor.FormatB
	values, scales uint64 // keys
	magnitude      *[256]uint16
	skip           bool // zero in every common-th column
}

// The spreads of the integers: INT4 -8..7, INT8 -127..127 with -127 twice as likely.
var intStd = map[int]float64{4: math.Sqrt((16*16 - 1) / 12.0), 8: math.Sqrt((256*256 - 1) / 12.0)}

// integers finds the recipe of a matrix whose values have the spread std.
func (m *Model) integers(name string, f tensor.FormatB, std float64) integers {
	x := integers{FormatB: f, values: m.key(name + ".values"), scales: m.key(name + ".scales"), magnitude: new([256]uint16)}
	for i := range x.magnitude {
		// 0.75 to 1.25 of the mean. The square's mean is 1.02 times the mean's square.
		x.magnitude[i] = tensor.F32ToBF16(float32(std / intStd[f.Bits] * (0.75 + 0.5*(float64(i)+0.5)/256)))
	}
	return x
}

// fill writes the packed values and scales, ValueBytes and ScaleBytes.
func (x *integers) fill(values, scales []byte, threads int) {
	tile, scale := x.TileBytes(), 2*tensor.TileRows*x.Groups()
	step := max(1, stripe/tile)
	spread((x.Tiles()+step-1)/step, threads, func(i int) {
		from, to := i*step, min((i+1)*step, x.Tiles())
		v := values[from*tile : to*tile]
		fillBytes(v, x.values, uint64(from*tile/8))
		if x.Bits == 8 {
			noMinimum(v)
		}
		if x.skip {
			x.blankCommon(v)
		}
		x.fillScales(scales[from*scale:to*scale], uint64(from*scale/8))
	})
	x.blankPadding(values, scales)
}

// noMinimum turns -128, which INT8 does not have, into -127: bytes 0 into 1. A
// byte's borrow can only mark a 1 beside it too, which stays what it is.
func noMinimum(b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		w := binary.LittleEndian.Uint64(b)
		zero := (w - 0x0101010101010101) & ^w & 0x8080808080808080
		binary.LittleEndian.PutUint64(b, w|zero>>7)
	}
}

// fillScales writes scales from word first of their stream on: 8 bits for the
// magnitude, one for the sign. INT4 scales have both signs, as the integers reach
// further down than up.
func (x *integers) fillScales(b []byte, first uint64) {
	sign := uint64(0)
	if x.Bits == 4 {
		sign = 0x8000
	}
	for i := first; len(b) >= 8; i++ {
		w := random(x.scales, i)
		var out uint64
		for s := 0; s < 64; s += 16 {
			out |= (uint64(x.magnitude[w>>s&255]) | w>>s&sign) << s
		}
		binary.LittleEndian.PutUint64(b, out)
		b = b[8:]
	}
}

// line is the size of a line of format B: 4 bytes of each row of a tile.
const line = 4 * tensor.TileRows

// blankCommon makes every common-th column of whole tiles zero. Columns are dealt to
// lines in order, and common is a multiple of a line's columns.
func (x *integers) blankCommon(b []byte) {
	mask, zero := byte(0x0f), byte(0x08) // the first column of a line: low nibble of byte 0
	if x.Bits == 8 {
		mask, zero = 0xff, 0x80
	}
	every := common / x.LineCols()
	lines := x.TileBytes() / line
	for i := range len(b) / line {
		if i%lines%every != 0 {
			continue
		}
		for r := 0; r < line; r += 4 {
			at := i*line + r
			b[at] = b[at]&^mask | zero
		}
	}
}

// blankPadding makes what fills up tiles and columns zero.
func (x *integers) blankPadding(values, scales []byte) {
	tile := x.TileBytes()
	for t := range x.Tiles() {
		part := values[t*tile : (t+1)*tile]
		for r := range tensor.TileRows {
			from := x.Cols
			if t*tensor.TileRows+r >= x.Rows {
				from = 0
				for g := range x.Groups() {
					at := 2 * ((t*x.Groups()+g)*tensor.TileRows + r)
					scales[at], scales[at+1] = 0, 0
				}
			}
			for c := from; c < x.PaddedCols(); c++ {
				blank(part, x.Bits, r, c)
			}
		}
	}
}

// blank makes a value of a tile zero.
func blank(tile []byte, bits, row, col int) {
	if bits == 8 {
		tile[col/4*line+4*row+col%4] = 0x80
		return
	}
	at, shift := col/8*line+4*row+col%4, col%8/4*4
	tile[at] = tile[at]&^(15<<shift) | 8<<shift
}

// matrix gives the same integers unpacked; packed is scratch of ValueBytes and
// ScaleBytes.
func (x *integers) matrix(packed []byte, threads int) *quant.Matrix {
	values, scales := packed[:x.ValueBytes()], packed[x.ValueBytes():][:x.ScaleBytes()]
	x.fill(values, scales, threads)
	m := &quant.Matrix{FormatB: x.FormatB, Values: make([]int8, x.Rows*x.Cols), Scales: make([]float32, x.Rows*x.Groups())}
	spread(x.Tiles(), threads, func(t int) {
		for r := t * tensor.TileRows; r < min((t+1)*tensor.TileRows, x.Rows); r++ {
			x.row(m.Values[r*x.Cols:(r+1)*x.Cols], values[t*x.TileBytes():], r%tensor.TileRows)
			for g := range x.Groups() {
				m.Scales[r*x.Groups()+g] = x.Scale(scales, r, g)
			}
		}
	})
	return m
}

// row unpacks a row of a tile.
func (x *integers) row(dst []int8, tile []byte, r int) {
	at := 4 * r
	for n := x.LineCols(); len(dst) > 0; at += line {
		b := tile[at : at+4]
		for c := range min(n, len(dst)) {
			v := b[c%4]
			if x.Bits == 8 {
				dst[c] = int8(v ^ 0x80)
				continue
			}
			dst[c] = int8(v>>(c/4*4)&15) - 8
		}
		dst = dst[min(n, len(dst)):]
	}
}
