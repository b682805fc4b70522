package synth

import (
	"encoding/binary"
	"math"

	"krater/kernels/tensor"
)

// integers is how a matrix of integers packed for a CPU is made: integers that are all alike
// likely and scales that differ by half. It is never a float matrix.
type integers struct {
	tensor.Layout
	values, scales uint64 // keys
	magnitude      *[256]uint16
	skip           bool // zero in every common-th column
}

// The spreads of the integers, each as likely: INT4 -8..7, INT8 -127..127 with -127 twice as likely.
var intStd = map[*tensor.Encoding]float64{
	tensor.INT3: math.Sqrt((16*16 + 10*10 + 6*6 + 3*3 + 3*3 + 7*7 + 12*12) / 8.0),
	tensor.INT4: math.Sqrt((16*16 - 1) / 12.0), tensor.INT8: math.Sqrt((256*256 - 1) / 12.0),
}

// integers finds the recipe of a matrix whose values have the spread std.
func (m *Model) integers(name string, l tensor.Layout, std float64) integers {
	x := integers{Layout: l, values: m.key(name + ".values"), scales: m.key(name + ".scales"), magnitude: new([256]uint16)}
	x.For, x.Joined = tensor.CPU, false // where it is packed otherwise, matrix gives what is packed
	unit := intStd[l.Encoding]
	if l.HasRule() { // it is made of INT8
		unit = intStd[tensor.INT8]
	}
	for i := range x.magnitude {
		// 0.75 to 1.25 of the mean. The square's mean is 1.02 times the mean's square.
		x.magnitude[i] = tensor.F32ToBF16(float32(std / unit * (0.75 + 0.5*(float64(i)+0.5)/256)))
	}
	return x
}

// fillByRule makes a matrix whose encoding has a rule of its own from one of INT8.
func (x *integers) fillByRule(values, scales []byte, threads int) {
	from := *x
	from.Format = tensor.INT8.By(x.Group)
	m, q := from.matrix(make([]byte, from.Bytes()), threads), tensor.NewMatrix(x.Format, x.Rows, x.Cols)
	spread(x.Bands(), threads, func(band int) {
		row := make([]float32, x.Cols)
		for r := band * tensor.TileRows; r < min((band+1)*tensor.TileRows, x.Rows); r++ {
			m.Row(row, r)
			q.Quantize(row, r)
		}
		x.PackBands(values, scales, q, band, band+1)
	})
}

// fill writes the packed values and scales, ValueBytes and ScaleBytes.
func (x *integers) fill(values, scales []byte, threads int) {
	if x.HasRule() {
		x.fillByRule(values, scales, threads)
		return
	}
	tile, scale := x.BandBytes()
	step := max(1, stripe/tile)
	spread((x.Bands()+step-1)/step, threads, func(i int) {
		from, to := i*step, min((i+1)*step, x.Bands())
		v := values[from*tile : to*tile]
		fillBytes(v, x.values, uint64(from*tile/8))
		if x.Encoding == tensor.INT8 {
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
// magnitude, one for the sign. INT3 and INT4 scales have both signs, as the integers reach
// further down than up.
func (x *integers) fillScales(b []byte, first uint64) {
	sign := uint64(0)
	if x.Encoding != tensor.INT8 {
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

// line is the size of a line of integers: 4 bytes of each row of a band.
const line = 4 * tensor.TileRows

// blankCommon makes every common-th column of whole tiles zero. Columns are dealt to
// lines in order, and common is a multiple of a line's columns.
func (x *integers) blankCommon(b []byte) {
	if x.Encoding == tensor.INT3 {
		for ; len(b) > 0; b = b[3*line:] { // columns 0 and 16 of 32
			for r := 0; r < line; r += 4 {
				b[r] &^= 7
				b[2*line+r] &^= 7
			}
		}
		return
	}
	mask, zero := byte(0x0f), byte(0x08) // the first column of a line: low nibble of byte 0
	if x.Encoding == tensor.INT8 {
		mask, zero = 0xff, 0x80
	}
	every := common / x.LineCols()
	tile, _ := x.BandBytes()
	lines := tile / line
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
	tile, _ := x.BandBytes()
	for t := range x.Bands() {
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
				blank(part, x.Encoding, r, c)
			}
		}
	}
}

// blank makes a value of a tile zero.
func blank(tile []byte, e *tensor.Encoding, row, col int) {
	switch e {
	case tensor.INT8:
		tile[col/4*line+4*row+col%4] = 0x80
		return
	case tensor.INT3:
		at, n := tile[col/32*3*line+4*row+col%4:], col%32/4
		if n < 6 {
			at[n/2*line] &^= 7 << (n % 2 * 3)
			return
		}
		at[(n-6)*line] &^= 0xc0
		at[2*line] &^= 1 << n
		return
	}
	at, shift := col/8*line+4*row+col%4, col%8/4*4
	tile[at] = tile[at]&^(15<<shift) | 8<<shift
}

// matrix returns the same integers unpacked; packed is scratch of ValueBytes and
// ScaleBytes.
func (x *integers) matrix(packed []byte, threads int) *tensor.Matrix {
	values, scales := packed[:x.ValueBytes()], packed[x.ValueBytes():][:x.ScaleBytes()]
	x.fill(values, scales, threads)
	m := tensor.NewMatrix(x.Format, x.Rows, x.Cols)
	spread(x.Bands(), threads, func(band int) {
		x.UnpackRows(m, values, scales, band*tensor.TileRows, min((band+1)*tensor.TileRows, x.Rows))
	})
	return m
}
